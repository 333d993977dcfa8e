"""Operators of old opsets brought to the present one; ONNX Runtime on the model as it was is the oracle."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.errors import ModelError
from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.convert_opset import CHANGES, TARGET, ConvertOpset

OLDEST = 7
CONSTANTS = {
    "two": np.array([1, 2], np.float32),
    "flat": noise(32, 3),
    "row": noise(1, 3, seed=1),
    "cubes": noise(2, 3, 2, 2, seed=2),
    "slope": noise(2, 1, 1, seed=3),
    "pairs": np.array([2]),
    "none": np.zeros(0, np.float32),
    "larger": np.array([1, 1, 2, 3.5], np.float32),
    "smaller": np.array([1, 1, 0.5, 0.6], np.float32),
    "zero": np.array(0, np.float32),
    "pads": np.array([0, 0, 1, 1, 0, 0, 0, 2]),
    "start": np.array([1]),
    "end": np.array([3]),
    "axis": np.array([2]),
    "places": np.zeros((1, 1, 1, 1), np.int64),
    "updates": np.ones((1, 1, 1, 1), np.float32),
}
# First and last opset that has the operator so, and what is done with x.
CASES: dict[str, tuple[int, int, str]] = {
    "nearest by attribute": (7, 8, 'y = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]> (x)'),
    "linear by attribute": (7, 8, 'y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]> (x)'),
    "nearest": (9, 9, 'y = Upsample <mode = "nearest"> (x, larger)'),
    "linear": (9, 9, 'y = Upsample <mode = "linear"> (x, larger)'),
    "nearest of the next opset": (10, 10, 'y = Resize <mode = "nearest"> (x, larger)'),
    "linear of the next opset": (10, 10, 'y = Resize <mode = "linear"> (x, larger)'),
    "nearest and smaller": (10, 10, 'y = Resize <mode = "nearest"> (x, smaller)'),
    "linear and smaller": (10, 10, 'y = Resize <mode = "linear"> (x, smaller)'),
    "present resize": (11, 12, 'y = Resize <coordinate_transformation_mode = "asymmetric"> (x, none, larger)'),
    "dropout": (7, 11, "a = Dropout <ratio = 0.3> (x) y = Neg(a)"),
    "normalization": (7, 8, "y = BatchNormalization <spatial = 1> (x, two, two, two, two)"),
    "normalization without attributes": (9, 12, "y = BatchNormalization(x, two, two, two, two)"),
    "softmax over channels and all behind": (7, 12, "y = Softmax <axis = 1> (x)"),
    "softmax over the last axis": (7, 12, "y = Softmax <axis = 3> (x)"),
    "softmax by default": (7, 12, "a = LogSoftmax(x) y = Neg(a)"),
    "softmax counted from the end": (11, 12, "y = Softmax <axis = -2> (x)"),
    "hardmax": (7, 12, "y = Hardmax <axis = 2> (x)"),
    "squeezes": (7, 12, "a = Unsqueeze <axes = [0, 3]> (x) y = Squeeze <axes = [0, 3]> (a)"),
    "squeeze of all": (7, 12, "a = Unsqueeze <axes = [0]> (x) y = Squeeze(a)"),
    "sum": (7, 12, "y = ReduceSum <axes = [1, 2], keepdims = 1> (x)"),
    "sum of all": (7, 12, "y = ReduceSum <keepdims = 1> (x)"),
    "other reductions": (7, 12, "a = ReduceMean <axes = [1]> (x) y = ReduceL2 <axes = [2]> (a)"),
    "unequal parts": (7, 12, "a, b = Split <axis = 2, split = [1, 3]> (x) y = Relu(b)"),
    "equal parts": (7, 12, "a, y = Split <axis = 2> (x)"),
    "bounds": (7, 10, "y = Clip <min = -0.5, max = 0.5> (x)"),
    "one bound": (7, 10, "y = Clip <max = 0.5> (x)"),
    "bounds as inputs": (11, 12, "y = Clip(x, zero)"),
    "bounds in half precision": (7, 10, "a = Cast <to = 10> (x) b = Clip <max = 0.5> (a) y = Cast <to = 1> (b)"),
    "border": (7, 10, "y = Pad <pads = [0, 0, 1, 1, 0, 0, 0, 2], value = 2.5> (x)"),
    "reflected border": (7, 10, 'y = Pad <mode = "reflect", pads = [0, 0, 1, 1, 0, 0, 0, 2]> (x)'),
    "border as input": (11, 12, "y = Pad(x, pads)"),
    "part": (7, 9, "y = Slice <starts = [1], ends = [3], axes = [2]> (x)"),
    "part of the first axes": (7, 9, "y = Slice <starts = [0, 1], ends = [3, 2]> (x)"),
    "part as inputs": (10, 12, "y = Slice(x, start, end, axis)"),
    "largest": (7, 9, "y, i = TopK <k = 2, axis = 3> (x)"),
    "largest as input": (10, 12, "y, i = TopK(x, pairs)"),
    "scattered": (9, 10, "y = Scatter <axis = 1> (x, places, updates)"),
    "product": (7, 12, "a = Flatten(x) b = Gemm(a, flat, row) y = Unsqueeze <axes = [2, 3]> (b)"),
    "convolutions": (7, 12, "a = ConvTranspose(x, cubes) b = MaxPool <kernel_shape = [2, 2]> (a) y = Neg(b)"),
    "pool": (7, 12, "a = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> (x) y = PRelu(a, slope)"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_it_gave(name: str) -> None:
    """The pipeline compares the outputs."""
    first, last, body = CASES[name]
    for opset in {first, last}:
        used = {key: array for key, array in CONSTANTS.items() if key in body}
        model = parse(f"g (float[N, 2, 4, 4] x) => (float[A, B, C, D] y) {{ {body} }}", opset, **used)
        (note,) = rewrite(model, ConvertOpset(), x=noise(3, 2, 4, 4))
        assert note.message == f"opset {opset} converted to 18; the outputs on 1 samples are the same"


def test_every_operator_that_lost_or_changed_an_attribute_has_an_adapter() -> None:
    """By onnx's own record of its versions."""
    history: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= TARGET:
            history.setdefault(schema.name, []).append(schema)
    changed = set()
    for name, versions in history.items():
        for old, new in pairwise(sorted(versions, key=lambda schema: schema.since_version)):
            kept = {key for key in old.attributes if key in new.attributes}
            other = {key for key in kept if old.attributes[key].default_value != new.attributes[key].default_value}
            if new.since_version > OLDEST and (new.deprecated or other or kept != set(old.attributes)):
                changed.add((new.since_version, name))
    known = {(version, name) for version, adapters in CHANGES.items() for name in adapters}
    assert changed - known == {(9, "Upsample")}  # left to the next version, which has its successor


def test_a_softmax_of_unknown_rank_and_one_in_a_branch() -> None:
    graph = """g (float[N, 2, 3] x, int64[R] shape, bool c) => (float y) {
        a = Reshape(x, shape)
        y = If(c) <then_branch = t () => (float b) { b = Softmax <axis = 1> (a) },
                   else_branch = e () => (float o) { o = ReduceSum <axes = [1]> (a) }>
    }"""
    for taken in (True, False):
        rewrite(parse(graph, 9), ConvertOpset(), x=noise(4, 2, 3), shape=np.array([4, 3, 2]), c=np.array(taken))


def test_a_softmax_over_one_axis_stays_one_node() -> None:
    model = parse("g (float[N, 7, 1, 1] x) => (float[N, 7, 1, 1] y) { y = Softmax(x) }", 9)
    rewrite(model, ConvertOpset(), x=noise(3, 7, 1, 1))
    assert operators(model) == ["Softmax"]


@pytest.mark.parametrize(
    ("opset", "body", "message"),
    [
        (
            8,
            "y = BatchNormalization <spatial = 0> (x, e, e, e, e)",
            "BatchNormalization node that gives 'y' has a mean",
        ),
        (9, "y, a, b, c, d = BatchNormalization(x, e, e, e, e)", "is in training mode; export the model in evaluation"),
        (10, "y = Resize(x, mixed)", "Resize node that gives 'y' makes some axes larger and others smaller"),
    ],
)
def test_what_has_no_successor_is_refused_by_name(opset: int, body: str, message: str) -> None:
    constants = {"e": np.ones(2, np.float32), "mixed": np.array([1, 1, 2, 0.5], np.float32)}
    used = {key: array for key, array in constants.items() if key in body}
    model = parse(f"g (float[N, 2, 1, 1] x) => (float[N, 2, H, W] y) {{ {body} }}", opset, **used)
    with pytest.raises(ModelError, match=message):
        ConvertOpset().apply(Probed(model))
