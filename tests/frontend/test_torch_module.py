"""PyTorch modules as models: the same function, a free batch, and clear refusals."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mostly_slow import mostly_slow

import ptqc
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.module_example import exported
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.samples import collect
from ptqc.errors import ModelError, UsageError
from ptqc.execution.onnxruntime import Runner
from ptqc.frontend.in_memory import from_torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")


class TwoInputs(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, left: Any, right: Any) -> Any:
        return self.norm(self.layer(left)) * right


@pytest.mark.long
def test_the_function_and_the_batch() -> None:
    module = TwoInputs()
    module.norm.running_mean += 1.0
    module.layer.eval()
    model = from_torch(module, (torch.zeros(1, 8), torch.zeros(1, 4)))
    assert [part.training for part in module.modules()] == [True, False, True]
    left, right = torch.randn(5, 8), torch.randn(5, 4)
    names = [str(value.name) for value in model.graph.inputs]
    (result,) = Runner(model).run(dict(zip(names, (left.numpy(), right.numpy()), strict=True))).values()
    with torch.no_grad():
        np.testing.assert_allclose(result, module.eval()(left, right).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_module_that_fixes_its_batch_keeps_it() -> None:
    class Fixed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.reshape(1, 2, 4).sum(1)

    model = from_torch(Fixed(), torch.zeros(1, 8))
    assert model.graph.inputs[0].shape == (1, 8)


@pytest.mark.slow
def test_inputs_with_different_numbers_of_rows_have_no_batch_together() -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    model = from_torch(Sum(), (torch.zeros(1, 3), torch.zeros(5, 3)))
    assert [value.shape for value in model.graph.inputs] == [(1, 3), (5, 3)]


@pytest.mark.long
def test_several_inputs_under_one_name_have_a_free_batch() -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *several: Any) -> Any:
            return sum(several)

    model = from_torch(Sum(), (torch.zeros(1, 3), torch.zeros(1, 3)))
    assert [str(value.shape) for value in model.graph.inputs] == ["[batch,3]"] * 2


@pytest.mark.slow
def test_it_is_inspected_like_any_other() -> None:
    result = ptqc.inspect(from_torch(torch.nn.Linear(64, 32), torch.zeros(2, 64)))
    assert "1 Gemm" in str(result)


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


X = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
RIGHT = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
SHOWN: dict[str, Callable[[Path], object]] = {
    "a loader with classes": lambda _: [(torch.from_numpy(x), torch.arange(8)) for x in np.split(X, 4)],
    "an array": lambda _: X.astype(np.float64),
    "a tensor": lambda _: torch.from_numpy(X),
    "a generator": lambda _: (row[None] for row in X),
    "dicts": lambda _: [{"input": row[None]} for row in X],
    "an npz": lambda folder: np.savez(folder / "x.npz", input=X, labels=np.arange(32)) or folder / "x.npz",
}


@pytest.mark.parametrize("way", mostly_slow(SHOWN, "a loader with classes", "an npz"))
def test_calibration_data_show_what_a_module_takes(way: str, tmp_path: Path) -> None:
    network = torch.nn.Linear(8, 4)
    result, data = exported(network, SHOWN[way](tmp_path))
    (spec,) = input_specs(result)
    assert (spec.name, spec.dtype, spec.shape[1:]) == ("input", np.float32, (8,))
    assert not isinstance(spec.shape[0], int)
    samples = collect(data, [spec], tmp_path / "spool", 100, rows=OpenBatches(result))
    np.testing.assert_array_equal(np.concatenate([sample["input"] for sample in samples]), X)


def test_arguments_follow_their_names() -> None:
    result, _ = exported(TwoInputs(), {"right": RIGHT, "left": X})
    assert [(spec.name, spec.shape[1:]) for spec in input_specs(result)] == [("left", (8,)), ("right", (4,))]
    with pytest.raises(UsageError, match="have 'top', and forward of TwoInputs takes left, right"):
        exported(TwoInputs(), {"left": X, "top": X})


@pytest.mark.parametrize("data", ["images/", "module:function", 3, "synthetic"])
def test_data_that_do_not_show_it_ask_for_an_example(data: object) -> None:
    with pytest.raises(UsageError, match=r"do not show what it takes: give ptqc.from_torch\(module, example\)"):
        exported(torch.nn.Linear(8, 4), data)


def test_a_module_is_compiled(tmp_path: Path) -> None:
    network = torch.nn.Linear(8, 4)
    result = ptqc.compile(network, calibration=X, output=tmp_path / "out", cache=tmp_path / "cache")
    (y,) = result.run({"input": X}).values()
    assert np.abs(y - network(torch.from_numpy(X)).detach().numpy()).max() < 0.05
