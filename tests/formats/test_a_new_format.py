"""A weight format is one class and its place in the list: the solvers, the program, the file and its reader follow.

E5M2, that of the package in examples/plugin.
"""

import json
import sys
from pathlib import Path

import onnx
import pytest
from compiling import compiled, proto, samples, weight

import ptqc
from ptqc.formats import Float, Format

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "plugin"))

from ptqc_example.e5m2 import E5M2

NETWORK = """g (float[N,16] x) => (float[N,6] y) {
    h = Gemm(x, w1, b1)
    r = Relu(h)
    y = Gemm(r, w2, b2)
}"""


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a line of `ptqc.formats` does; the integers are left out so that a budget can only be kept by it."""
    monkeypatch.setattr(Format, "families", (Float, E5M2))


def test_its_name_is_read() -> None:
    assert Format.parse("e5m28") == E5M2(8)


def test_weights_in_it_are_solved_packed_run_and_read_again(tmp_path: Path) -> None:
    constants = {"w1": weight(16, 64), "b1": weight(64, seed=1), "w2": weight(64, 6, seed=2), "b2": weight(6, seed=3)}
    artifact = compiled(proto(NETWORK, 19, **constants), samples(16, count=48), tmp_path, "40%", activations="float")
    stored = [t for t in onnx.load(artifact.path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT8E5M2]
    assert [16, 64] in [list(tensor.dims) for tensor in stored]
    assert "e5m28" in json.dumps(artifact.plan)
    ptqc.verify(artifact.folder)
    again = ptqc.resolve(artifact.folder, budget="40%", output=tmp_path / "again", cache=tmp_path / "cache")
    assert again.path.read_bytes() == artifact.path.read_bytes()
