"""Times that follow from sizes: what they say of layers and conversions that were timed in ONNX Runtime."""

import pytest

from ptqc.ir.layers import Layer
from ptqc.passes.allocate.cost_model import (
    Edge,
    Network,
    OperatorSizes,
    TimedOperator,
    arithmetic_times,
    npu_times,
    usual_times,
)


def convolution(shape: tuple[int, ...], groups: int = 1) -> Layer:
    return Layer("y", "Conv", "x", "w", None, "y", shape, 0, groups)


def product(inputs: int, outputs: int) -> Layer:
    return Layer("y", "Gemm", "x", "w", None, "y", (inputs, outputs), 1)


def microseconds(layer: Layer, positions: int) -> tuple[float, float]:
    """In float and on codes. positions: of the output, or rows."""
    network = Network((TimedOperator("y", layer.op_type, ("x", "y")),), ())
    sizes = OperatorSizes({"y": positions * layer.channels * layer.width}, {"y": (1, layer.channels, positions)})
    times = usual_times(network, {"y": layer}, sizes)
    return times.floats["y"] / 1e3, times.integers["y"] / 1e3


# Microseconds that ONNX Runtime 1.32 took, in float and on codes.
TIMED = [
    (convolution((64, 64, 3, 3)), 784, 586, 310),
    (convolution((256, 64, 1, 1)), 784, 276, 171),
    (convolution((64, 1, 3, 3), groups=64), 784, 23, 38),
    (convolution((96, 1, 3, 3), groups=24), 256, 38, 322),
    (convolution((128, 4, 3, 3), groups=32), 196, 146, 352),
    (product(1024, 1000), 1, 83, 34),
    (product(256, 256), 128, 184, 104),
]


@pytest.mark.parametrize(("layer", "positions", "real", "codes"), TIMED)
def test_layers_take_about_what_was_timed(layer: Layer, positions: int, real: float, codes: float) -> None:
    result = microseconds(layer, positions)
    assert result == pytest.approx((real, codes), rel=0.4)
    if not 0.8 < real / codes < 1.25:
        assert (result[0] < result[1]) == (real < codes)


def test_small_products_are_not_faster_on_codes() -> None:
    real, codes = microseconds(product(192, 192), 1)
    assert codes >= real


def test_conversions_cost_by_elements_and_by_operator() -> None:
    network = Network((), (Edge("image", None, (), True), Edge("row", None, (), True), Edge("small", None, (), True)))
    shapes = {"image": (1, 64, 28, 28), "row": (1, 50_176), "small": (1, 1)}
    times = usual_times(network, {}, OperatorSizes({}, shapes))
    assert times.quantize["image"] / 1e3 == pytest.approx(33, rel=0.4)
    assert times.quantize["image"] > times.quantize["row"] > 10 * times.quantize["small"] > 0
    assert times.dequantize["row"] < times.quantize["row"]


def test_arithmetic_alone_halves_all_but_narrow_groups() -> None:
    for layer, is_narrow in ((product(16, 16), False), (convolution((96, 1, 3, 3), groups=24), True)):
        network = Network((TimedOperator("y", layer.op_type, ("x", "y")),), (Edge("x", None, ("y",), False),))
        times = arithmetic_times(network, {"y": layer}, OperatorSizes({"y": 10**5}, {}))
        assert not times.quantize
        assert (times.integers["y"] == times.floats["y"] / 2) == (not is_narrow)


def test_codes_of_16_bits_take_twice_as_long() -> None:
    """And a conversion as long as an operator on as many elements."""
    operators = (TimedOperator("y", "Conv", ("x", "y")), TimedOperator("z", "Add", ("y", "z")))
    network = Network(operators, (Edge("y", "y", ("z",), False),))
    sizes = OperatorSizes({"y": 10**5}, {"y": (1, 8, 8, 8), "z": (1, 8, 8, 8)})
    times = npu_times(network, {"y": convolution((8, 8, 3, 3))}, sizes)
    assert {node: ns / times.integers[node] for node, ns in times.floats.items()} == {"y": 2.0, "z": 2.0}
    assert times.quantize["y"] == times.dequantize["y"] == times.integers["z"] > 0
