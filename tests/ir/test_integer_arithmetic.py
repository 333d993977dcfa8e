"""Integer layers, sums and products against ONNX Runtime's kernels, code by code."""

from typing import Any

import numpy as np
import pytest
from graphs import parse
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernels import RNG, Graph, codes_like, near_halves, params, scales, x86

from ptqc.execution.onnxruntime import Runner
from ptqc.formats import BFLOAT16, FLOAT8_ACTIVATION, UINT8, ActivationParams, Affine, QuantParams
from ptqc.ir import integer_arithmetic as integer

pytestmark = pytest.mark.processor

UNSIGNED = QuantParams(UINT8, 0.01, 9)
SEVEN_BITS = (-64, 64)  # cannot saturate the 16-bit sums of processors without VNNI


def weights_like(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(*SEVEN_BITS, shape).astype(np.int8)


# Quantization


def test_halves_go_to_even_and_ends_saturate() -> None:
    params = QuantParams(UINT8, 0.5, 3)
    x = np.array([-9.0, -0.75, -0.25, 0.25, 0.75, 1.25, 1e30, -1e30], np.float32)
    assert integer.quantize(x, params).tolist() == [0, 1, 3, 3, 5, 5, 255, 0]
    assert integer.fake_quantize(x, params).tolist() == [-1.5, -1.0, 0.0, 0.0, 1.0, 1.0, 126.0, -1.5]


@pytest.mark.parametrize(("form", "zero"), [(UINT8, np.uint8(3)), (Affine(8, signed=True), np.int8(3))])
def test_the_code_of_nan_is_the_lowest_as_in_onnxruntime(form: Affine, zero: np.generic) -> None:
    x = np.array([[np.nan, 1.0], [-np.inf, np.inf]], np.float32)
    codes = integer.quantize(x, QuantParams(form, 0.5, 3))
    assert codes.tolist() == [[form.low, 5], [form.low, form.high]]
    graph = f"g (float[N,2] x) => ({zero.dtype}[N,2] y) {{ y = QuantizeLinear(x, s, z) }}"
    result = Runner(parse(graph, s=np.float32(0.5), z=zero)).run({"x": x})["y"]
    np.testing.assert_array_equal(result, codes)


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
    value = QuantParams(Affine(8, signed), scale, zero - 128 * signed)
    halves = np.float32(scale) * (np.array(steps, np.float32) / 2)
    x = np.concatenate([np.array(values, np.float32), halves])
    graph = Graph()
    codes, _ = graph.run(graph.codes(graph.input(x), value))
    np.testing.assert_array_equal(integer.quantize(x, value), codes)
    graph = Graph()
    real, _ = graph.run(graph.real(graph.input(codes), value))
    np.testing.assert_array_equal(integer.dequantize(codes, value), real)
    np.testing.assert_array_equal(integer.fake_quantize(x, value), real)


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
    result, operators = graph.run(graph.codes(graph.add("Conv", inputs, **attributes), y))
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
    np.testing.assert_array_equal(integer.requantize(accumulator, factor, y), result)


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
    result, operators = graph.run(graph.codes(gemm(graph), y))
    assert operators == {"QGemm"}
    np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), result)
    graph = Graph()
    result, operators = graph.run(gemm(graph))
    assert operators == {"QGemm"}
    np.testing.assert_array_equal(integer.product(accumulator, x, scale), result)


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
    result, operators = graph.run(graph.codes(product, y))
    assert operators == {"QLinearMatMul"}
    accumulator = integer.matmul_accumulator(data, x.zero_point, weight, None)
    np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), result)
    graph = Graph()
    product = graph.add("MatMul", [graph.real(graph.input(data), x), graph.weight(weight, scale, 1)])
    result, operators = graph.run(product)
    assert operators == {"MatMulIntegerToFloat"}
    np.testing.assert_array_equal(integer.product(accumulator, x, scale), result)


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
    result, operators = graph.run(graph.codes(graph.add(op_type, inputs), y))
    assert operators == {f"QLinear{op_type}"}
    computed = {"Add": integer.add, "Mul": integer.mul}[op_type](left, a, right, b, y)
    np.testing.assert_array_equal(computed, result)


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
        result, _ = graph.run(graph.codes(graph.add("Add", inputs), y))
        np.testing.assert_array_equal(integer.add(left, a, right, b, y), result)


def test_products_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, y, b = near_halves(rng, [4, 6, 8, 10])
        y = QuantParams(UINT8, float(np.float32(a.scale * b.scale * rng.integers(4, 60))), y.zero_point)
        left, right = codes_like(rng, 30, 40), codes_like(rng, 30, 40)
        graph = Graph()
        inputs = [graph.real(graph.input(left), a), graph.real(graph.input(right), b)]
        result, _ = graph.run(graph.codes(graph.add("Mul", inputs), y))
        np.testing.assert_array_equal(integer.mul(left, a, right, b, y), result)


def test_accumulators_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [4, 6, 8, 10])
        scale = (np.float32(y.scale / x.scale) / rng.integers(20, 200, 40)).astype(np.float32)
        data, weight = codes_like(rng, 30, 3), weights_like(rng, 3, 40)
        graph = Graph()
        product = graph.add("MatMul", [graph.real(graph.input(data), x), graph.weight(weight, scale, 1)])
        result, _ = graph.run(graph.codes(product, y))
        accumulator = integer.matmul_accumulator(data, x.zero_point, weight, None)
        np.testing.assert_array_equal(integer.requantize(accumulator, integer.multiplier(x, scale, y), y), result)


@pytest.mark.parametrize("rounding", [UNSIGNED, FLOAT8_ACTIVATION.of_range(-1, 2), BFLOAT16.of_range(-1, 2)])
def test_a_number_without_axes_stays_an_array(rounding: ActivationParams) -> None:
    number, row = np.array(0.7, np.float32), np.array([0.7], np.float32)
    result = rounding.rounded(number)
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result == rounding.rounded(row)[0]


def test_codes_of_a_number_without_axes_stay_arrays() -> None:
    y = QuantParams(UINT8, 0.02, 3)
    code = integer.quantize(np.array(0.7, np.float32), UNSIGNED)
    real = integer.dequantize(code, UNSIGNED)
    results = (
        code,
        real,
        integer.add(code, UNSIGNED, code, UNSIGNED, y),
        integer.mul(code, UNSIGNED, code, UNSIGNED, y),
        integer.leaky_relu(code, UNSIGNED, y, 0.1),
        *integer.sigmoid(code, UNSIGNED, y),
    )
    assert all(isinstance(each, np.ndarray) and each.shape == () for each in results)
    assert abs(float(real) - 0.7) <= UNSIGNED.scale / 2
