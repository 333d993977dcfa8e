"""Models that look words up in the table that gives their last scores: the file has the table once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto
from graphs import noise
from onnx import numpy_helper

from ptqc.execute.onnxruntime import Feeds
from ptqc.graph import picked_rows

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


@pytest.mark.parametrize("activations", ["float", "integer"])
@pytest.mark.parametrize("large", [1, 10**9])
def test_the_table_is_stored_once(
    large: int, activations: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it stays packed in memory or not, and whether the product with it is on integers or not."""
    monkeypatch.setattr(picked_rows, "LARGE", large)
    found = compiled(tied(), texts(), tmp_path, "25%", activations=activations)
    assert 0 < stored(found.path) <= WORDS * WIDTH
    assert found.manifest["results"]["sqnr_db"] > 20
    (head,) = (weight["layers"] for weight in found.plan["weights"] if "y" in weight["layers"])
    assert head == {"y": "float" if activations == "float" else "integer"}


def test_gradient_steps_leave_it_tied(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="gradient steps need torch")
    found = compiled(tied(), texts(), tmp_path, "25%", pipeline="advanced")
    assert 0 < stored(found.path) <= WORDS * WIDTH
    assert found.manifest["results"]["sqnr_db"] > 20
