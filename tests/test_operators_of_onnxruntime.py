"""Files with operators of ONNX Runtime's own, where these are allowed."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, store_of, weight
from graphs import noise

import ptqc
from ptqc.errors import UsageError

MODEL = """g (float[N,T,64] x) => (float[N,T,32] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = Tanh(c) y = MatMul(d, u)
}"""


def model() -> onnx.ModelProto:
    return proto(MODEL, w=weight(64, 128), v=weight(128, 128, seed=1), u=weight(128, 32, seed=2))


def texts() -> list[dict[str, np.ndarray]]:
    return [{"x": noise(1, 6, 64, seed=seed)} for seed in range(24)]


def test_products_in_float_stay_packed_where_that_is_asked_for(tmp_path: Path) -> None:
    own = compiled(model(), texts(), tmp_path, "24%", activations="float", operators="onnxruntime")
    assert own.manifest["file"]["runtime_operators"] == ["MatMulNBits"]
    assert "ONNX Runtime alone, with operators of its own: MatMulNBits" in str(own)
    assert {entry["format"] for entry in own.plan["weights"]} <= {"int4", "int8"}
    assert own.manifest["results"]["sqnr_db"] > 20
    levels = {a.i for n in onnx.load(own.path).graph.node for a in n.attribute if a.name == "accuracy_level"}
    assert levels == {4}
    again = ptqc.resolve(
        own.folder, output=tmp_path / "standard", budget="24%", cache=store_of(own), operators="standard"
    )
    assert again.manifest["file"]["runtime_operators"] == []
    assert own.manifest["memory"]["weights_bytes"] < 0.4 * again.manifest["memory"]["weights_bytes"]


def test_products_on_integers_are_as_they_were(tmp_path: Path) -> None:
    found = compiled(model(), texts(), tmp_path, "30%", activations="integer", operators="onnxruntime")
    assert found.manifest["file"]["runtime_operators"] == []


def test_other_operators_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="operators is 'tensorrt'"):
        compiled(model(), texts(), tmp_path, "30%", operators="tensorrt")
