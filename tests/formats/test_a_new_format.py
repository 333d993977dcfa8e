"""A weight format is one class and its place in the list: the solvers, the program, the file and its reader follow.

E4M3, eight bits of floating point with a scale per channel, stored as ONNX's own type and unpacked by Cast and Mul.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, proto, samples, weight

import ptqc
from ptqc.formats import Float, Format, Grid, Nodes, Scaled, scales
from ptqc.formats.base import V

LARGEST = 448.0

NETWORK = """g (float[N,16] x) => (float[N,6] y) {
    h = Gemm(x, w1, b1)
    r = Relu(h)
    y = Gemm(r, w2, b2)
}"""


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """Nearest numbers of the format, float32; what is larger than the largest becomes the largest."""
    clipped = np.clip(values, -LARGEST, LARGEST)
    return np.asarray(clipped.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


class E4M3(Scaled):
    """e4m3fn8: four bits of exponent, three of fraction."""

    family = "e4m3fn"
    mark: ClassVar[str] = "e"
    opset: ClassVar[int] = 19

    @classmethod
    def members(cls) -> Iterable["E4M3"]:
        """The one."""
        return [cls(8)]

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:  # noqa: ARG003
        """Whatever widths of integers are asked for."""
        return [cls(8)]

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each weight is rounded for itself."""
        scale = scales.search(rows, importance, to_e4m3, LARGEST)
        lowest = 0.0 if keeps_sign else -np.inf
        return Grid(scale, 1, lambda ratio, _: to_e4m3(np.maximum(ratio, lowest)), ml_dtypes.float8_e4m3fn)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Codes in bytes; then the scales."""
        return [codes, scales.narrow(scale)]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """Codes as real numbers; whoever asks multiplies by the scales."""
        return nodes.add("Cast", [nodes.stored()], to=to)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a line of `ptqc.formats` does; the integers are left out so that a budget can only be kept by it."""
    monkeypatch.setattr(Format, "families", (Float, E4M3))


def test_its_name_is_read() -> None:
    assert Format.parse("e4m3fn8") == E4M3(8)


def test_weights_in_it_are_solved_packed_run_and_read_again(tmp_path: Path) -> None:
    constants = {"w1": weight(16, 64), "b1": weight(64, seed=1), "w2": weight(64, 6, seed=2), "b2": weight(6, seed=3)}
    artifact = compiled(proto(NETWORK, 19, **constants), samples(16, count=48), tmp_path, "40%", activations="float")
    stored = [t for t in onnx.load(artifact.path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT8E4M3FN]
    assert [16, 64] in [list(tensor.dims) for tensor in stored]
    assert "e4m3fn8" in json.dumps(artifact.plan)
    ptqc.verify(artifact.folder)
    again = ptqc.resolve(artifact.folder, budget="40%", output=tmp_path / "again", cache=tmp_path / "cache")
    assert again.path.read_bytes() == artifact.path.read_bytes()
