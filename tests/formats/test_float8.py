"""FP8 E4M3 against its definition, and against ONNX Runtime's operators."""

import bisect

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptqc.formats import FLOAT8, FLOAT8_ACTIVATION
from ptqc.formats.float8 import LARGEST, to_e4m3


def value_of(code: int) -> float:
    """OCP 8-bit Floating Point Specification 1.0, table 1: a sign, four bits of exponent, bias 7, three of fraction."""
    exponent, fraction = code >> 3, code & 7
    return 2.0**-6 * fraction / 8 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + fraction / 8)


# Not negative, in the order of their codes; the last code is no number.
LEVELS = [value_of(code) for code in range(127)]


def nearest(magnitude: float) -> float:
    """Of a tie the one whose code is even."""
    above = bisect.bisect_left(LEVELS, magnitude)
    if above == len(LEVELS):
        return LEVELS[-1]
    if above == 0:
        return 0.0
    low, high = magnitude - LEVELS[above - 1], LEVELS[above] - magnitude
    return LEVELS[above - 1] if low < high or (low == high and above % 2) else LEVELS[above]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-500, 500, width=32))
def test_numbers_become_the_nearest_level(x: float) -> None:
    (result,) = to_e4m3(np.array([x], np.float32))
    assert result == np.sign(x) * nearest(abs(x))


def test_the_largest_level_and_what_is_no_number() -> None:
    assert LEVELS[-1] == LARGEST
    result = to_e4m3(np.array([np.nan, np.inf, -np.inf], np.float32))
    np.testing.assert_array_equal(result, np.array([np.nan, LARGEST, -LARGEST], np.float32))


def in_onnxruntime(x: np.ndarray, scale: float) -> np.ndarray:
    """What the nodes of the rounding make of x behind a Relu, which must not go."""
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(x.shape))
    relu, made = ir.node("Relu", [value]), list[ir.Value]()

    def constant(array: np.ndarray) -> ir.Value:
        name = f"c{len(made)}"
        made.append(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
        return made[-1]

    nodes = FLOAT8_ACTIVATION.read({"scale": scale}).nodes(relu.outputs[0], constant)
    output = nodes[-1].outputs[0]
    output.name, output.shape = "y", ir.Shape(x.shape)
    graph = ir.Graph([value], [output], nodes=[relu, *nodes], initializers=made, opset_imports={"": 21}, name="g")
    session = ort.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("scale", [1.0, 0.01, 3e-5])
def test_activations_are_rounded_as_in_a_session(scale: float) -> None:
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32) * np.float32(200 * scale)
    x[:8] = np.array([0, -0.0, 448, 449, 1e9, 2**-9, 2**-10, -1], np.float32) * np.float32(scale)
    params = FLOAT8_ACTIVATION.read({"scale": scale})
    np.testing.assert_array_equal(in_onnxruntime(x, scale), params.rounded(np.maximum(x, 0)))


def test_the_range_of_a_site_leaves_room_for_twice_as_much() -> None:
    params = FLOAT8_ACTIVATION.of_range(-3, 2)
    assert params.rounded(np.array([5.9, 7.0], np.float32)).tolist() == pytest.approx([6, 6])
    assert FLOAT8_ACTIVATION.of_range(0, 0).rounded(np.zeros(2, np.float32)).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_positive_and_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        FLOAT8_ACTIVATION.read({"site": "x", "scale": scale})


def test_small_channels_keep_their_digits_beside_large_ones() -> None:
    weight = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    weight *= np.array([1, 1e-3, 0], np.float32)[:, None]
    codes, scale = FLOAT8.rounded(weight, 0)
    assert scale.min() >= scale.max() / 64
    away = np.abs(FLOAT8.decode(codes, scale, 0) - weight)
    assert away[1].mean() < 0.05 * np.abs(weight[1]).mean()
    assert not away[2].any()


def test_weights_are_rounded_within_a_sixteenth() -> None:
    """Three bits of fraction: half a step is at most 2^-4 of the number, above the smallest exponent."""
    weight = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    codes, scale = FLOAT8.rounded(weight, 0)
    result = FLOAT8.decode(codes, scale, 0)
    large = np.abs(weight) > scale[:, None] * 2.0**-6
    assert np.all(np.abs(result - weight)[large] <= np.abs(weight)[large] / 16 * (1 + 1e-6))
    assert codes.dtype.name == str(FLOAT8)
