"""Activations of 8 bits that would give an infinity stay float, with a warning, instead of ending the compile."""

from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, proto
from graphs import noise

from ptqc.errors import NotFinite

RECIPROCAL = """g (float[N,512] x) => (float[N,512] y) {
    h = MatMul(x, w)
    gate = Sigmoid(h)
    a = MatMul(gate, v)
    other = Reciprocal(gate)
    b = MatMul(other, v)
    y = Add(a, b)
}"""


WIDTH = 512  # wide enough for codes to save time
IDENTITY = np.eye(WIDTH, dtype=np.float32)
WEIGHTS = {"w": IDENTITY + noise(WIDTH, WIDTH, scale=0.004), "v": noise(WIDTH, WIDTH, scale=0.04)}


@pytest.fixture
def x() -> np.ndarray:
    """Samples of which one, not among those held back, has a gate that 8 bits round to 0."""
    values = noise(40, WIDTH, scale=0.1)
    values[1] = -8
    return values


@pytest.mark.long
def test_all_stay_float_with_a_warning(x: np.ndarray, tmp_path: Path) -> None:
    model = proto(RECIPROCAL, **WEIGHTS)
    artifact = compiled(model, {"x": x}, tmp_path, activation_limit=1e6, bits=(7,))
    (warning,) = [note for note in artifact.manifest["notes"] if "stay float" in note["message"]]
    assert warning["level"] == "warning"
    assert "Reciprocal 'other' is infinite" in warning["message"]
    assert artifact.manifest["activation_loss"] == 0
    assert np.isfinite(artifact.run({"x": x[1:2]})["y"]).all()


def test_codes_that_are_asked_for_end_the_compile(x: np.ndarray, tmp_path: Path) -> None:
    model = proto(RECIPROCAL, **WEIGHTS)
    with pytest.raises(NotFinite, match="try --activations float"):
        compiled(model, {"x": x}, tmp_path, activations="integer", bits=(7,))
