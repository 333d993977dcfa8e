"""Models that look words up in the table that gives their last scores: the file has the table once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto
from graphs import noise
from mostly_slow import mostly_slow
from onnx import numpy_helper

from ptqc.errors import Infeasible
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir import layers

WORDS, WIDTH = 300, 32
MODEL = """g (int64[N,T] i) => (float[N,T,300] y) {
    e = Gather(t, i)
    a = MatMul(e, w)
    b = Tanh(a)
    c = MatMul(b, v)
    d = Add(c, e)
    h = Transpose<perm = [1, 0]>(t)
    y = MatMul(d, h)
}"""


def tied() -> onnx.ModelProto:
    table = noise(WORDS, WIDTH, scale=0.5)
    return proto(MODEL, t=table, w=noise(WIDTH, WIDTH, seed=1, scale=0.2), v=noise(WIDTH, WIDTH, seed=2, scale=0.2))


def texts(count: int = 24) -> list[Feeds]:
    rng = np.random.default_rng(0)
    return [{"i": rng.integers(0, WORDS, (1, 9))} for _ in range(count)]


def stored(path: Path) -> int:
    """Bytes of all constants that are large enough to be planes of the table."""
    arrays = [numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    return sum(array.nbytes for array in arrays if array.size >= WORDS * WIDTH // 8)


@pytest.mark.parametrize(
    ("large", "activations"),
    [
        pytest.param(1, "float", marks=pytest.mark.slow),
        pytest.param(1, "integer", marks=pytest.mark.slow),
        pytest.param(10**9, "float", marks=pytest.mark.slow),
        (10**9, "integer"),
    ],
)
def test_the_table_is_stored_once(
    large: int, activations: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it stays packed in memory or not, and whether the product with it is on integers or not."""
    monkeypatch.setattr(layers, "LARGE", large)
    result = compiled(tied(), texts(), tmp_path, "25%", activations=activations)
    assert 0 < stored(result.path) <= WORDS * WIDTH
    assert result.manifest["results"]["sqnr_db"] > 20
    (head,) = (weight["layers"] for weight in result.plan["weights"] if "y" in weight["layers"])
    assert head == {"y": "float" if activations == "float" else "integer"}


@pytest.mark.parametrize("bits", mostly_slow([4, 8], 4))
def test_operators_of_onnxruntime_read_one_stored_table(
    bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows and its product; in memory each operator has its codes, which are far less than float."""
    monkeypatch.setattr(layers, "LARGE", 1)
    result = compiled(tied(), texts(), tmp_path, None, bits=(bits,), activations="float", operators="onnxruntime")
    assert result.manifest["file"]["runtime_operators"] == ["GatherBlockQuantized", "MatMulNBits"]
    assert 0 < stored(result.path) <= 1.2 * WORDS * WIDTH * bits / 8
    assert result.manifest["results"]["sqnr_db"] > (12 if bits == 4 else 30)
    file = onnx.load(result.path)
    (head,) = (node for node in file.graph.node if node.op_type == "MatMulNBits" and _attribute(node, "N") == WORDS)
    (table,) = (tensor for tensor in file.graph.initializer if tensor.name == head.input[1])
    assert list(table.dims) == [WORDS, 1, WIDTH * bits // 8]
    assert [node.op_type for node in file.graph.node if table.name in node.input] == ["Reshape", "MatMulNBits"]
    assert result.manifest["memory"]["weights_bytes"] < 3 * WORDS * WIDTH


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next(attribute.i for attribute in node.attribute if attribute.name == name)


@pytest.mark.parametrize(
    ("operators", "own"),
    [pytest.param("onnxruntime", ["MatMulNBits"], marks=pytest.mark.slow), ("dequantize", [])],
)
def test_a_small_table_is_unpacked_and_its_product_too(operators: str, own: list[str], tmp_path: Path) -> None:
    result = compiled(tied(), texts(), tmp_path, "35%", bits=(8,), activations="float", operators=operators)
    assert result.manifest["file"]["runtime_operators"] == own
    assert result.manifest["verification"]["operators"]["MatMulNBits"] == 2
    assert not any(
        _attribute(node, "N") == WORDS for node in onnx.load(result.path).graph.node if node.op_type == "MatMulNBits"
    )
    assert 0 < stored(result.path) <= 1.1 * WORDS * WIDTH


def test_a_budget_that_no_plan_keeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Infeasible):
        compiled(tied(), texts(), tmp_path, "12%", bits=(8,), activations="float")


BOTH_WAYS = """g (float[N,24] x) => (float[N,24] y) {
    a = Gemm(x, w, b)
    r = Relu(a)
    y = Gemm<transB = 1>(r, w)
}"""


@pytest.mark.parametrize("sensitivity", mostly_slow(["outputs", "curvature"], "outputs"))
def test_a_weight_is_used_as_it_is_and_transposed(sensitivity: str, tmp_path: Path) -> None:
    """Its two products read rows of different lengths; the file has it once."""
    weight = noise(24, 60, scale=0.2)
    model = proto(BOTH_WAYS, w=weight, b=noise(60, seed=1, scale=0.3))
    result = compiled(model, noise(40, 24, seed=2), tmp_path, "75%", sensitivity=sensitivity)
    x = noise(200, 24, seed=3)
    expected = np.maximum(x @ weight + noise(60, seed=1, scale=0.3), 0) @ weight.T
    y = np.concatenate([result.run({"x": row[None]})["y"] for row in x])
    assert np.sum((y - expected) ** 2) < 4e-3 * np.sum(expected**2)
    assert [weight["weight"] for weight in result.plan["weights"]] == ["w"]


@pytest.mark.slow
def test_gradient_steps_leave_it_tied(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="gradient steps need torch")
    result = compiled(tied(), texts(), tmp_path, "25%", pipeline="advanced")
    assert 0 < stored(result.path) <= WORDS * WIDTH
    assert result.manifest["results"]["sqnr_db"] > 20
