"""PyTorch modules as models: the same function, a free batch, and clear refusals."""

import sys
from typing import Any

import numpy as np
import pytest

import ptqc
from ptqc.errors import ModelError, UsageError
from ptqc.execute.onnxruntime import Runner
from ptqc.reading.torch_module import from_torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")


class TwoInputs(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, left: Any, right: Any) -> Any:
        return self.norm(self.layer(left)) * right


def test_the_function_and_the_batch() -> None:
    module = TwoInputs()
    module.norm.running_mean += 1.0
    module.layer.eval()
    model = from_torch(module, (torch.zeros(1, 8), torch.zeros(1, 4)))
    assert [part.training for part in module.modules()] == [True, False, True]
    left, right = torch.randn(5, 8), torch.randn(5, 4)
    names = [str(value.name) for value in model.graph.inputs]
    (found,) = Runner(model).run(dict(zip(names, (left.numpy(), right.numpy()), strict=True))).values()
    with torch.no_grad():
        np.testing.assert_allclose(found, module.eval()(left, right).numpy(), rtol=1e-5, atol=1e-6)


def test_a_module_that_fixes_its_batch_keeps_it() -> None:
    class Fixed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.reshape(1, 2, 4).sum(1)

    model = from_torch(Fixed(), torch.zeros(1, 8))
    assert model.graph.inputs[0].shape == (1, 8)


def test_inputs_with_different_numbers_of_rows_have_no_batch_together() -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    model = from_torch(Sum(), (torch.zeros(1, 3), torch.zeros(5, 3)))
    assert [value.shape for value in model.graph.inputs] == [(1, 3), (5, 3)]


def test_several_inputs_under_one_name_have_a_free_batch() -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *several: Any) -> Any:
            return sum(several)

    model = from_torch(Sum(), (torch.zeros(1, 3), torch.zeros(1, 3)))
    assert [str(value.shape) for value in model.graph.inputs] == ["[batch,3]"] * 2


def test_it_is_inspected_like_any_other() -> None:
    found = ptqc.inspect(from_torch(torch.nn.Linear(64, 32), torch.zeros(2, 64)))
    assert "1 Gemm" in str(found)


def test_what_is_no_module_or_example() -> None:
    with pytest.raises(UsageError, match=r"module is 3; give a torch\.nn\.Module"):
        from_torch(3, torch.zeros(1))
    with pytest.raises(UsageError, match=r"example is 'x'; give a tensor, or a tuple"):
        from_torch(torch.nn.Identity(), "x")


def test_what_cannot_be_exported() -> None:
    class Broken(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            raise ArithmeticError(f"planted {x.shape}")

    with pytest.raises(ModelError, match=r"PyTorch cannot export Broken: .*planted"):
        from_torch(Broken(), torch.zeros(1, 8))


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"pip install 'ptqc\[torch\]'"):
        from_torch(torch.nn.Identity(), torch.zeros(1))
