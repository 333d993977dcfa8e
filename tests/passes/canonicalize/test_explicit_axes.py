"""Pad and Resize that name some axes."""

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from compiling import compiled, proto, samples, weight
from graphs import noise, parse
from mostly_slow import mostly_slow
from rewriting import operators, rewrite

from ptqc.execution.onnxruntime import run
from ptqc.ir.nodes import input_of
from ptqc.passes.canonicalize.explicit_axes import ExplicitAxes

SCALES, SIZES = np.array([2, 1.5], np.float32), np.array([9, 11])
REGION = np.array([0.1, 0.2, 0.9, 0.8], np.float32)
NODES = {
    "pads": "y = Pad(x, p, , rows)",
    "crops": 'y = Pad<mode="reflect">(x, crops, , rows)',
    "axes from the end": "y = Pad(x, p, , back)",
    "pads that are computed": "q = Mul(p, p) y = Pad(x, q, , rows)",
    "scales": "y = Resize<axes=[2,3]>(x, , s)",
    "scales of one axis": 'y = Resize<axes=[-1],mode="linear">(x, , s1)',
    "scales that are computed": "q = Mul(s, s) y = Resize<axes=[3,2]>(x, , q)",
    "sizes": 'y = Resize<axes=[2,3],mode="linear",antialias=1>(x, , , z)',
    "sizes in another order": "y = Resize<axes=[3,2]>(x, , , z)",
    "sizes that are computed": "q = Add(z, z) y = Resize<axes=[2,3]>(x, , , q)",
    "sizes of the first axes": "y = Resize<axes=[0,1]>(x, , , z)",
    "region": 'y = Resize<axes=[2,3],mode="linear",coordinate_transformation_mode="tf_crop_and_resize">(x, r, s)',
    "an empty region": "y = Resize<axes=[2,3]>(x, none, s)",
    "a policy": 'y = Resize<axes=[0,1,2,3],keep_aspect_ratio_policy="not_larger">(x, , , z4)',
}
CONSTANTS = {
    "p": np.array([1, 2, 3, 0]),
    "crops": np.array([-1, 2, 1, -2]),
    "rows": np.array([2, 3]),
    "back": np.array([-1, -2]),
    "s": SCALES,
    "s1": SCALES[1:],
    "z": SIZES,
    "r": REGION,
    "none": np.zeros(0, np.float32),
    "z4": np.array([4, 6, 10, 12]),
}


def used_in(body: str) -> dict[str, np.ndarray]:
    names = set(re.findall(r"\w+", body))
    return {name: array for name, array in CONSTANTS.items() if name in names}


def build(body: str, x: str) -> ir.Model:
    return parse(f"g (float[{x}] x) => (float[A,B,C,D] y) {{ {body} }}", 19, **used_in(body))


@pytest.mark.parametrize("x", ["N,3,5,6", "2,3,5,6"])
@pytest.mark.parametrize("body", NODES.values(), ids=NODES)
def test_the_function_stays(body: str, x: str) -> None:
    """The pipeline compares the outputs."""
    model = build(body, x)
    notes = rewrite(model, ExplicitAxes(), x=noise(2, 3, 5, 6))
    assert [note.level for note in notes] == ["info"]
    node = model.graph[-1]
    assert "axes" not in node.attributes
    assert node.op_type == "Resize" or input_of(node, 3) is None


def test_shapes_are_followed() -> None:
    model = build(NODES["sizes"], "N,3,5,6")
    rewrite(model, ExplicitAxes(), x=noise(2, 3, 5, 6))
    assert operators(model) == ["Shape", "Concat", "Resize"]
    assert list(model.graph.outputs[0].shape or ())[1:] != [None] * 3


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize(("sizes", "level"), [((10, 18), "info"), ((8, 7), "skipped")])
def test_a_policy_for_some_axes(sizes: tuple[int, int], level: str, policy: str) -> None:
    """It becomes a scale for both, unless that gives other sizes: 6 · 8 / 5 and 5 · 7 / 6 are rounded up."""
    body = f'y = Resize<axes=[2,3],mode="linear",keep_aspect_ratio_policy="{policy}">(x, , , sizes)'
    model = parse(f"g (float[N,3,5,6] x) => (float[A,B,C,D] y) {{ {body} }}", 19, sizes=np.array(sizes))
    notes = rewrite(model, ExplicitAxes(), x=noise(2, 3, 5, 6))
    assert [note.level for note in notes] == [level]


BESIDE = ("m = Resize<axes=[2,3]>(c, , , z)", "m = Resize<axes=[2,3]>(c, , s)", "m = Pad(c, p, , rows)")


@pytest.mark.parametrize("node", mostly_slow(BESIDE, BESIDE[0]))
def test_the_file_runs_with_integer_kernels_beside_it(node: str, tmp_path: Path) -> None:
    """As ONNX Runtime loads it by default, with its changes of layout."""
    graph = f"g (float[N,3,6,6] x) => (float[N,8,H,W] y) {{ c = Conv(x, w) {node} y = Conv(m, v) }}"
    model = proto(graph, 19, w=weight(16, 3, 3, 3), v=weight(8, 16, 3, 3), **used_in(node))
    x = samples(3, 6, 6)
    result = compiled(model, x, tmp_path, "60%", activations="integer")
    session = ort.InferenceSession(result.path, providers=["CPUExecutionProvider"])
    expected = run(ir.from_proto(model), {"x": x}, ["y"])["y"]
    y = session.run(["y"], {"x": x})[0]
    assert np.sum((y - expected) ** 2) < 1e-3 * np.sum(expected**2)
