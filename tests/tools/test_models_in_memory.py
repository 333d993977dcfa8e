"""Every function that takes a model takes it in memory, as `compile` does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import product, samples

import ptqc
from ptqc.errors import UsageError
from ptqc.tools.benching import FileBench

FORMS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "bytes": onnx.ModelProto.SerializeToString,
    "onnx.ModelProto": lambda model: model,
    "onnx_ir.Model": ir.from_proto,
}
X = samples(16)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_in_memory_is_scored_compared_run_and_timed(form: str, tmp_path: Path) -> None:
    model, path = FORMS[form](product()), tmp_path / "m.onnx"
    onnx.save(product(), path)
    labels = (X @ onnx.numpy_helper.to_array(product().graph.initializer[0])).argmax(1)
    scored = ptqc.evaluate(model, path, metric="top-1", data=X, labels=labels)
    assert [(row.model, row.score.value) for row in scored.models] == [(f"the {form}", 100), (str(path), 100)]
    first, second = ptqc.compare(path, model, data=X, samples=4).models
    assert second.loss == 0
    assert (first.model, second.model) == (str(path), f"the {form}")
    ptqc.run(model, {"x": X, "labels": labels}, output=tmp_path / "y.npz")
    ptqc.run(path, X, output=tmp_path / "same.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], np.load(tmp_path / "same.npz")["y"])
    timed = ptqc.bench(model)
    assert isinstance(timed, FileBench)
    assert [operator.op_type for operator in timed.operators] == ["Gemm"]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    for call in (
        lambda: ptqc.evaluate(3, metric="top-1", data=X),  # type: ignore[arg-type]
        lambda: ptqc.run(3, X, output=tmp_path / "y.npz"),  # type: ignore[arg-type]
        lambda: ptqc.compare(3, 3),  # type: ignore[arg-type]
        lambda: ptqc.bench(3),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"model is 3; give the path of an \.onnx file, its bytes"):
            call()
