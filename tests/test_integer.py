"""Every integer operator against ONNX Runtime's kernels, code by code."""

import platform
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernels import Graph, params, scales

from ptqc import integer
from ptqc.execute.onnxruntime import softmax_in_float64
from ptqc.formats import UINT8, Affine, QuantParams

pytestmark = pytest.mark.processor

RNG = st.integers(0, 2**32 - 1).map(np.random.default_rng)
SEVEN_BITS = (-64, 64)  # cannot saturate the 16-bit sums of processors without VNNI

# Elsewhere MLAS adds and averages with fixed-point multipliers.
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the formulas are those of x86 kernels")


def codes_like(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


def weights_like(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(*SEVEN_BITS, shape).astype(np.int8)


# Quantization


def test_halves_go_to_even_and_ends_saturate() -> None:
    params = QuantParams(UINT8, 0.5, 3)
    x = np.array([-9.0, -0.75, -0.25, 0.25, 0.75, 1.25, 1e30, -1e30], np.float32)
    assert integer.quantize(x, params).tolist() == [0, 1, 3, 3, 5, 5, 255, 0]
    assert integer.fake_quantize(x, params).tolist() == [-1.5, -1.0, 0.0, 0.0, 1.0, 1.0, 126.0, -1.5]


def test_dtypes() -> None:
    x = np.linspace(-3, 300, 50, dtype=np.float32)
    for form, dtype in ((UINT8, np.uint8), (Affine(8, signed=True), np.int8), (Affine(16), np.uint16)):
        codes = integer.quantize(x, QuantParams(form, 0.5, 7))
        assert codes.dtype == dtype
        assert integer.dequantize(codes, QuantParams(form, 0.5, 7)).dtype == np.float32


extreme = st.sampled_from([0.0, -0.0, 3e38, -3e38, 1e-38, 1e-45, -1e-45, float("inf"), float("-inf")])


@settings(deadline=None, max_examples=60)
@given(
    scale=st.floats(2.0**-126, 2.0**100, width=32) | scales(),
    zero=st.integers(0, 255),
    signed=st.booleans(),
    values=st.lists(st.floats(width=32, allow_nan=False) | extreme, min_size=1, max_size=20),
    steps=st.lists(st.integers(-600, 600), min_size=1, max_size=40),
)
def test_quantize_and_dequantize(scale: float, zero: int, signed: bool, values: list[float], steps: list[int]) -> None:
    given = QuantParams(Affine(8, signed), scale, zero - 128 * signed)
    halves = np.float32(scale) * (np.array(steps, np.float32) / 2)
    x = np.concatenate([np.array(values, np.float32), halves])
    graph = Graph()
    codes, _ = graph.run(graph.codes(graph.input(x), given))
    np.testing.assert_array_equal(integer.quantize(x, given), codes)
    graph = Graph()
    real, _ = graph.run(graph.real(graph.input(codes), given))
    np.testing.assert_array_equal(integer.dequantize(codes, given), real)
    np.testing.assert_array_equal(integer.fake_quantize(x, given), real)


# Layers


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of input and weight, and attributes, of a 1-D or 2-D convolution."""
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    kind = draw(st.sampled_from(["plain", "grouped", "depthwise", "multiplied"]))
    groups = 1 if kind == "plain" else draw(st.integers(2, 9))
    inputs = groups * (1 if kind in ("depthwise", "multiplied") else draw(st.integers(1, 9)))
    outputs = groups * (1 if kind == "depthwise" else draw(st.integers(1, 5)))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilations = [draw(small) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [max(1, span - pads[i] - pads[i + rank]) + draw(st.integers(0, 6)) for i, span in enumerate(spans)]
    strides = [draw(small) for _ in range(rank)]
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups}
    shape = (draw(st.integers(1, 2)), inputs, *sizes)
    return shape, (outputs, inputs // groups, *kernel), attributes


@settings(deadline=None, max_examples=120)
@given(shapes=convolutions(), x=params(), y=params(), biased=st.booleans(), rng=RNG)
def test_convolution(
    shapes: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    x: QuantParams,
    y: QuantParams,
    biased: bool,
    rng: np.random.Generator,
) -> None:
    shape, kernel, attributes = shapes
    data, weight = codes_like(rng, *shape), weights_like(rng, *kernel)
    scale = rng.uniform(0.001, 0.1, kernel[0]).astype(np.float32)
    bias = rng.integers(-20_000, 20_000, kernel[0]).astype(np.int32) if biased else None
    graph = Graph()
    inputs = [graph.real(graph.input(data), x), graph.weight(weight, scale, 0)]
    if bias is not None:
        inputs.append(graph.weight(bias, np.float32(x.scale) * scale, 0))
    found, operators = graph.run(graph.codes(graph.add("Conv", inputs, **attributes), y))
    assert "QLinearConv" in operators
    assert "Conv" not in operators
    accumulator = integer.conv_accumulator(
        data,
        x.zero_point,
        weight,
        bias,
        strides=attributes["strides"],
        pads=attributes["pads"],
        dilations=attributes["dilations"],
        groups=attributes["group"],
    )
    factor = integer.multiplier(x, scale, y).reshape(1, -1, *(1,) * (data.ndim - 2))
    np.testing.assert_array_equal(integer.requantize(accumulator, factor, y), found)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 70), st.integers(1, 20)),
    x=params(),
    y=params(),
    transposed=st.booleans(),
    rng=RNG,
)
def test_gemm(
    sizes: tuple[int, int, int], x: QuantParams, y: QuantParams, transposed: bool, rng: np.random.Generator
) -> None:
    rows, inner, columns = sizes
    data, weight = codes_like(rng, rows, inner), weights_like(rng, inner, columns)
    scale = rng.uniform(0.001, 0.1, columns).astype(np.float32)
    bias = rng.integers(-20_000, 20_000, columns).astype(np.int32)
    accumulator = integer.matmul_accumulator(data, x.zero_point, weight, bias)
    stored, axis = (np.ascontiguousarray(weight.T), 0) if transposed else (weight, 1)

    def gemm(graph: Graph) -> str:
        biases = graph.weight(bias, np.float32(x.scale) * scale, 0)
        inputs = [graph.real(graph.input(data), x), graph.weight(stored, scale, axis), biases]
        return graph.add("Gemm", inputs, transB=int(transposed))

    graph = Graph()
    found, operators = graph.run(graph.codes(gemm(graph), y))
    assert operators == {"QGemm"}
    np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), found)
    graph = Graph()
    found, operators = graph.run(gemm(graph))
    assert operators == {"QGemm"}
    np.testing.assert_array_equal(integer.product(accumulator, x, scale), found)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    inner=st.integers(1, 70),
    columns=st.integers(1, 20),
    x=params(),
    y=params(),
    rng=RNG,
)
def test_matrix_product(
    shape: list[int], inner: int, columns: int, x: QuantParams, y: QuantParams, rng: np.random.Generator
) -> None:
    data, weight = codes_like(rng, *shape, inner), weights_like(rng, inner, columns)
    scale = rng.uniform(0.001, 0.1, columns).astype(np.float32)
    graph = Graph()
    product = graph.add("MatMul", [graph.real(graph.input(data), x), graph.weight(weight, scale, 1)])
    found, operators = graph.run(graph.codes(product, y))
    assert operators == {"QLinearMatMul"}
    accumulator = integer.matmul_accumulator(data, x.zero_point, weight, None)
    np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), found)
    graph = Graph()
    product = graph.add("MatMul", [graph.real(graph.input(data), x), graph.weight(weight, scale, 1)])
    found, operators = graph.run(product)
    assert operators == {"MatMulIntegerToFloat"}
    np.testing.assert_array_equal(integer.product(accumulator, x, scale), found)


# Element-wise operators and pools


@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast against each other, of different ranks or with axes of size 1."""
    full = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    pair = [tuple(1 if draw(st.integers(0, 3)) == 0 else size for size in full) for _ in range(2)]
    shorter = draw(st.integers(0, 1))
    pair[shorter] = pair[shorter][draw(st.integers(0, len(full) - 1)) :]
    return pair[0], pair[1]


PLAIN_AND_SINGLE = [
    ((40, 50), (40, 50)),
    ((1, 3, 6, 1), (1,)),
    ((40, 1), (1,)),
    ((40, 1), (1, 1)),
    ((1, 1), (1, 1)),
    ((), (5, 1)),
    ((5, 1), ()),
    ((3, 5), ()),
]


@x86
@pytest.mark.parametrize("op_type", ["Add", "Mul"])
@settings(deadline=None, max_examples=150)
@given(shapes=broadcast_shapes() | st.sampled_from(PLAIN_AND_SINGLE), a=params(), b=params(), y=params(), rng=RNG)
def test_element_wise(
    op_type: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    a: QuantParams,
    b: QuantParams,
    y: QuantParams,
    rng: np.random.Generator,
) -> None:
    assume(a.scale * b.scale < 2**14 * y.scale)  # products of 2^31 steps overflow in the kernel
    left, right = (codes_like(rng, *shape) for shape in shapes)
    graph = Graph()
    inputs = [graph.real(graph.input(left), a), graph.real(graph.input(right), b)]
    found, operators = graph.run(graph.codes(graph.add(op_type, inputs), y))
    assert operators == {f"QLinear{op_type}"}
    computed = {"Add": integer.add, "Mul": integer.mul}[op_type](left, a, right, b, y)
    np.testing.assert_array_equal(computed, found)


def near_halves(rng: np.random.Generator, denominators: list[int]) -> tuple[QuantParams, ...]:
    """Parameters of the operands and the result, for which many results lie within one rounding error of a half."""
    step = np.float32(np.exp(rng.normal(-4, 1)))
    steps = [step * np.float32(rng.integers(1, 16)) / np.float32(rng.choice(denominators)) for _ in range(2)]
    return tuple(QuantParams(UINT8, float(s), int(rng.integers(0, 256))) for s in (*steps, step))


@x86
@pytest.mark.parametrize("shapes", [((30, 40), (30, 40)), ((30, 40), (30, 1)), ((30, 1), (30, 40)), ((), (9,))])
def test_sums_near_halves(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The order of operations decides here; a formula that differs in one rounding gives thousands of other codes."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, b, y = near_halves(rng, [4, 6, 8, 10])
        left, right = (codes_like(rng, *shape) for shape in shapes)
        graph = Graph()
        inputs = [graph.real(graph.input(left), a), graph.real(graph.input(right), b)]
        found, _ = graph.run(graph.codes(graph.add("Add", inputs), y))
        np.testing.assert_array_equal(integer.add(left, a, right, b, y), found)


def test_products_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, y, b = near_halves(rng, [4, 6, 8, 10])
        y = QuantParams(UINT8, float(np.float32(a.scale * b.scale * rng.integers(4, 60))), y.zero_point)
        left, right = codes_like(rng, 30, 40), codes_like(rng, 30, 40)
        graph = Graph()
        inputs = [graph.real(graph.input(left), a), graph.real(graph.input(right), b)]
        found, _ = graph.run(graph.codes(graph.add("Mul", inputs), y))
        np.testing.assert_array_equal(integer.mul(left, a, right, b, y), found)


def test_accumulators_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [4, 6, 8, 10])
        scale = (np.float32(y.scale / x.scale) / rng.integers(20, 200, 40)).astype(np.float32)
        data, weight = codes_like(rng, 30, 3), weights_like(rng, 3, 40)
        graph = Graph()
        product = graph.add("MatMul", [graph.real(graph.input(data), x), graph.weight(weight, scale, 1)])
        found, _ = graph.run(graph.codes(product, y))
        accumulator = integer.matmul_accumulator(data, x.zero_point, weight, None)
        np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), found)


@x86
def test_means_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [2, 3, 5])
        data = codes_like(rng, 1, 400, 2, int(rng.integers(1, 8)))
        graph = Graph()
        found, _ = graph.run(graph.codes(graph.add("GlobalAveragePool", [graph.real(graph.input(data), x)]), y))
        np.testing.assert_array_equal(integer.global_average_pool(data, x, y), found)


@x86
@settings(deadline=None, max_examples=100)
@given(
    shape=st.lists(st.integers(1, 24), min_size=2, max_size=4),
    x=params(),
    step=st.floats(1e-4, 0.1),
    zero=st.integers(0, 255),
    lowest=st.integers(0, 250),
    rng=RNG,
)
def test_softmax(
    shape: list[int], x: QuantParams, step: float, zero: int, lowest: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(step)), zero)
    axis = int(rng.integers(1, len(shape)))
    data = rng.integers(lowest, 256, shape).astype(np.uint8)
    graph = Graph()
    found, operators = graph.run(graph.codes(graph.add("Softmax", [graph.real(graph.input(data), x)], axis=axis), y))
    assert "QLinearSoftmax" in operators
    computed = integer.softmax(data, x, y, axis, in_float64=softmax_in_float64())
    np.testing.assert_array_equal(computed, found)


@x86
@settings(deadline=None, max_examples=100)
@given(
    shape=st.lists(st.integers(1, 12), min_size=3, max_size=4),
    x=params(),
    ratio=st.floats(0.05, 20),
    zero=st.integers(0, 255),
    rng=RNG,
)
def test_global_average_pool(
    shape: list[int], x: QuantParams, ratio: float, zero: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data = codes_like(rng, *shape)
    graph = Graph()
    pooled = graph.add("GlobalAveragePool", [graph.real(graph.input(data), x)])
    found, operators = graph.run(graph.codes(pooled, y))
    assert "QLinearGlobalAveragePool" in operators
    assert "GlobalAveragePool" not in operators
    np.testing.assert_array_equal(integer.global_average_pool(data, x, y), found)


@st.composite
def pools(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Shape of the input, and attributes, of an average pool over one to three axes."""
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    pads = [draw(st.integers(0, k - 1)) for _ in range(2) for k in kernel]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    sizes = [max(1, k - pads[i] - pads[i + rank]) + draw(st.integers(0, 6)) for i, k in enumerate(kernel)]
    flags = {name: draw(st.integers(0, 1)) for name in ("ceil_mode", "count_include_pad")}
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 9)), *sizes)
    return shape, {"kernel_shape": kernel, "pads": pads, "strides": strides, **flags}


@settings(deadline=None, max_examples=120)
@given(pool=pools(), x=params(), ratio=st.floats(0.05, 20), zero=st.integers(0, 255), rng=RNG)
def test_average_pool(
    pool: tuple[tuple[int, ...], dict[str, Any]],
    x: QuantParams,
    ratio: float,
    zero: int,
    rng: np.random.Generator,
) -> None:
    shape, attributes = pool
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data = codes_like(rng, *shape)
    graph = Graph()
    pooled = graph.add("AveragePool", [graph.real(graph.input(data), x)], **attributes)
    found, operators = graph.run(graph.codes(pooled, y))
    assert "QLinearAveragePool" in operators
    assert "AveragePool" not in operators
    computed = integer.average_pool(
        data,
        x,
        y,
        kernel=attributes["kernel_shape"],
        strides=attributes["strides"],
        pads=attributes["pads"],
        ceil=bool(attributes["ceil_mode"]),
        counts_pads=bool(attributes["count_include_pad"]),
    )
    np.testing.assert_array_equal(computed, found)


def test_average_pools_near_halves() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [2, 3, 5])
        data, kernel = codes_like(rng, 1, 8, 12, 12), [int(k) for k in rng.integers(1, 5, 2)]
        graph = Graph()
        pooled = graph.add("AveragePool", [graph.real(graph.input(data), x)], kernel_shape=kernel)
        found, _ = graph.run(graph.codes(pooled, y))
        none = [0, 0, 0, 0]
        computed = integer.average_pool(
            data, x, y, kernel=kernel, strides=[1, 1], pads=none, ceil=False, counts_pads=False
        )
        np.testing.assert_array_equal(computed, found)


@settings(deadline=None, max_examples=60)
@given(
    window=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    stride=st.integers(1, 2),
    x=params(),
    ratio=st.sampled_from([0.5, 2.0, 4.0, 8.0]),
    zero=st.integers(0, 255),
    rng=RNG,
)
def test_average_pool_of_one_window(
    window: list[int], stride: int, x: QuantParams, ratio: float, zero: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data, strides, none = codes_like(rng, 1, 8, *window), [stride] * len(window), [0, 0] * len(window)
    graph = Graph()
    real = graph.real(graph.input(data), x)
    found, _ = graph.run(graph.codes(graph.add("AveragePool", [real], kernel_shape=window, strides=strides), y))
    computed = integer.average_pool(
        data, x, y, kernel=window, strides=strides, pads=none, ceil=False, counts_pads=False
    )
    np.testing.assert_array_equal(computed, found)


# Functions of one tensor

EVERY_CODE = np.arange(256, dtype=np.uint8).reshape(1, 256)


@settings(deadline=None, max_examples=100)
@given(x=params(), y=params(), alpha=st.floats(-2, 2, width=32))
def test_leaky_relu(x: QuantParams, y: QuantParams, alpha: float) -> None:
    graph = Graph()
    found, operators = graph.run(
        graph.codes(graph.add("LeakyRelu", [graph.real(graph.input(EVERY_CODE), x)], alpha=alpha), y)
    )
    assert operators == {"QLinearLeakyRelu"}
    np.testing.assert_array_equal(integer.leaky_relu(EVERY_CODE, x, y, alpha), found)


@settings(deadline=None, max_examples=100)
@given(x=params(), step=st.floats(1e-4, 0.1), zero=st.integers(0, 255))
def test_sigmoid(x: QuantParams, step: float, zero: int) -> None:
    y = QuantParams(UINT8, float(np.float32(step)), zero)
    graph = Graph()
    found, operators = graph.run(graph.codes(graph.add("Sigmoid", [graph.real(graph.input(EVERY_CODE), x)]), y))
    assert operators == {"QLinearSigmoid"}
    low, high = integer.sigmoid(EVERY_CODE, x, y)
    assert (low <= found).all()
    assert (found <= high).all()
    assert np.count_nonzero(low != high) <= 16  # of 256: else nothing would be held to anything


def test_the_error_of_a_sigmoid() -> None:
    x = np.linspace(-30, 30, 2**20, dtype=np.float32)
    graph = Graph()
    found, _ = graph.run(graph.add("Sigmoid", [graph.input(x)]))
    assert np.abs(found - 1 / (1 + np.exp(-x.astype(np.float64)))).max() < integer.SIGMOID_ERROR / 2
