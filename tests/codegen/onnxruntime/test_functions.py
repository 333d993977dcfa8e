"""The unpacking functions as ONNX Runtime evaluates them: the codes that come out, and what is left of them."""

from collections import Counter

import numpy as np
import onnx
import pytest
from graphs import noise
from kernels import ELEMENT, Graph, run_optimized
from onnx import helper

from ptqc.codegen.onnxruntime import constants
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN, UnpackFunction, UnpackKind
from ptqc.formats import (
    UINT8,
    Codebook,
    Coded,
    Entropy,
    Format,
    Integer,
    Palette,
    QuantParams,
    Scaled,
    Sparse,
    SparseCodebook,
    Trellis,
    TwoOfFour,
    VectorCodebook,
    entropy,
    trellis,
)
from ptqc.formats.sparse import PATTERNS
from ptqc.formats.trellis import RowTrellis
from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.passes.canonicalize import split_products

FORMS = [Integer(bits) for bits in range(2, 9)] + [Codebook(bits) for bits in range(2, 5)] + [Entropy(8)]
PAIRS = [VectorCodebook(bits) for bits in range(3, 9)]
SPARSE = [*Sparse.members(), *SparseCodebook.members()]
FOURS = [TwoOfFour(1), TwoOfFour(4)]
KINDS = {True: UnpackKind.FLOAT, False: UnpackKind.VALUES}
SHAPES = [((1,), 0), ((13,), 0), ((3, 5), 0), ((3, 5), 1), ((4, 3, 3, 3), 0), ((2, 5, 1), 1), ((8, 8), 0), ((6, 5), 1)]
SHAPES += [((3, 4), 0), ((12, 5), 1), ((5, 8, 3, 3), 0), ((3, 4, 5), 0), ((2, 4, 2, 1, 3), 0)]


def test_no_two_formats_share_the_name_of_a_function() -> None:
    """A file may hold both. A family that says no `mark` would be called like the integers."""
    members = {form.unpacked_as for family in Format.families for form in family.members() if not form.is_plain}
    names = Counter(UnpackFunction(KINDS[form.is_scaled], form).name for form in members)
    assert [name for name, count in names.items() if count > 1] == []


def codes_of(form: Format, shape: tuple[int, ...]) -> np.ndarray:
    """Codes that go through the whole grid, ends included."""
    if isinstance(form, Integer | Sparse):
        every = form.levels(np.empty(0))
    else:
        every = np.rint(63 * np.sin(np.arange(2**form.bits * form.group) + form.keeps_zeros))
    if form.keeps_zeros:
        assert isinstance(form, Coded)
        every = np.concatenate([form.levels(every), np.zeros(len(every) + 1)])
    if isinstance(form, TwoOfFour):
        return np.resize(pairs_of_four(form.levels(every)), shape).astype(np.int8)
    return np.resize(every[::-1], shape).astype(np.int8)


def pairs_of_four(levels: np.ndarray) -> np.ndarray:
    """Fours of which two are not zero, in all patterns."""
    fours = np.zeros((6, 4))
    fours[PATTERNS.astype(bool)] = np.resize(levels, 12)
    return fours


def codes_along(form: Format, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The same of a weight whose channels, in which pairs are neighbours, run along an axis; fours, along inputs."""
    if form.along_inputs and len(shape) > 2:
        return np.moveaxis(codes_of(form, (shape[0], *shape[2:], shape[1])), -1, 1)
    if not form.within_channels or len(shape) != 2 or axis == 0:
        return codes_of(form, shape)
    return codes_of(form, shape[::-1]).T


def model(
    graph: Graph, outputs: dict[str, list[None] | None], function: UnpackFunction, opset: int = 18
) -> onnx.ModelProto:
    """The graph's model with a function. outputs: name -> open dimensions, or None where the rank is open too."""
    inputs = [helper.make_tensor_value_info(n, ELEMENT[str(a.dtype)], a.shape) for n, a in graph.feeds.items()]
    element = onnx.TensorProto.UINT8 if graph.nodes[-1].op_type == "QuantizeLinear" else onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, element, shape) for name, shape in outputs.items()]
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "g", inputs, values, graph.constants),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[function.to_proto(opset)],
    )
    proto.ir_version = max(8, helper.find_min_ir_version_for(proto.opset_import[:1]))
    return proto


def call(graph: Graph, made: constants.UnpackedConstant) -> list[str]:
    graph.nodes.append(made.call)
    return list(made.call.output)


def evaluated(graph: Graph, outputs: dict[str, int], function: UnpackFunction, opset: int = 18) -> list[np.ndarray]:
    """What the outputs (name -> rank) are in a model that passes the checker."""
    onnx.checker.check_model(model(graph, {name: [None] * rank for name, rank in outputs.items()}, function, opset))
    left = {"DequantizeLinear"} if function.kind in (UnpackKind.LAYER, UnpackKind.WEIGHT) else set()
    result = []
    for name in outputs:  # each by itself, since the runner gives one
        array, operators = run_optimized(model(graph, {name: None}, function, opset).SerializeToString(), graph.feeds)
        assert operators <= left, "the rest folds when the file is loaded"
        result.append(array)
    return result


def optimized(graph: Graph, output: str, function: UnpackFunction) -> tuple[np.ndarray, set[str]]:
    return run_optimized(model(graph, {output: None}, function).SerializeToString(), graph.feeds)


def along(scale: np.ndarray, rank: int, axis: int) -> np.ndarray:
    return scale.reshape([-1 if i == axis else 1 for i in range(rank)])


def fits(form: Format, shape: tuple[int, ...], axis: int) -> bool:
    if form.along_inputs and len(shape) > 2:
        return isinstance(form, Scaled) and form.fits(shape[1], shape[0])
    return not isinstance(form, Scaled) or form.fits(int(np.prod(shape)) // shape[axis], shape[axis])


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("form", [*FORMS, *PAIRS, *SPARSE, *FOURS], ids=str)
def test_weights(form: Format, shape: tuple[int, ...], axis: int) -> None:
    if not fits(form, shape, axis):
        return
    codes = codes_along(form, shape, axis)
    scale = np.abs(noise(shape[axis])) + np.float32(0.1)
    expected = codes.astype(np.float32) * along(scale, len(shape), axis)
    for as_float in (False, True):
        graph = Graph()
        made = constants.weight(QuantizedWeight(form, codes, scale, axis), "w", graph.constant, as_float=as_float)
        call(graph, made)
        (result,) = evaluated(graph, {"w": len(shape)}, made.function)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("shape", "axis"), [((16,), 0), ((2, 4), 0), ((4, 6), 1), ((4, 2, 3, 3), 0), ((3, 5), 0)])
@pytest.mark.parametrize("form", [*FORMS, *PAIRS, SPARSE[2]], ids=str)
def test_close_planes_give_the_same(
    form: Format, shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of large weights, unless some bytes would not be full."""
    if not fits(form, shape, axis):
        return
    monkeypatch.setattr(constants, "LARGE", 8)
    solution = QuantizedWeight(form, codes_along(form, shape, axis), np.abs(noise(shape[axis])) + np.float32(0.1), axis)
    is_full = solution.codes.size % (8 * form.group) == 0
    for as_float in (False, True):
        graph = Graph()
        made = constants.weight(solution, "w", graph.constant, as_float=as_float)
        assert made.function.close == (is_full and form.bits < 8 and form.is_regular)
        call(graph, made)
        (result,) = evaluated(graph, {"w": len(shape)}, made.function)
        np.testing.assert_array_equal(result, solution.weight)


# Of each way to unpack large weights some, with those that make the most bytes on the way.
LARGE_ONES = [
    *map(Integer, (3, 4, 7, 8)),
    *map(Codebook, (3, 4)),
    *map(VectorCodebook, (3, 7, 8)),
    SPARSE[0],
    SPARSE[-1],
]
LARGE_ONES += [FOURS[1], *map(Trellis, (3, 8, 10)), *map(RowTrellis, (3, 8, 10)), Entropy(8), Entropy(14)]
FOLDED_BYTES = 2**30  # of an output, at most, for ONNX Runtime to fold its node, since 1.27
FOLDED = "optimization.constant_folding_max_output_size_in_bytes"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", LARGE_ONES, ids=str)
def test_the_largest_weights_are_folded(form: Format, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has an output of static shape, and of no more bytes of each number than the limit leaves to it."""
    monkeypatch.setattr(constants, "LARGE", 8)
    shape = (64, 96)
    is_path = isinstance(form, Trellis)
    codes = np.full(shape, trellis.TABLE[0], np.int8) if is_path else codes_along(form, shape, 0)
    solution = QuantizedWeight(form, codes, np.abs(noise(shape[0])) + np.float32(0.1), 0)
    graph = Graph()
    made = constants.weight(solution, "w", graph.constant, as_float=True, tied=tied)
    call(graph, made)
    output = graph.add("Add", ["w", graph.input(noise(1))])
    largest = entropy.MOST_NUMBERS if isinstance(form, Entropy) else split_products.LARGEST
    limit = codes.size * FOLDED_BYTES // largest
    data = model(graph, {output: None}, made.function).SerializeToString()
    result, operators = run_optimized(data, graph.feeds, {FOLDED: str(limit)})
    np.testing.assert_array_equal(result, solution.weight + graph.feeds["x0"])
    assert operators == {"Add"}


@pytest.mark.parametrize(("shape", "axis"), [((13,), 0), ((4, 4, 3, 3), 0), ((4, 3), 1)])
@pytest.mark.parametrize("form", [*FORMS, *PAIRS, SPARSE[0], SPARSE[-1], *FOURS], ids=str)
def test_layers(form: Format, shape: tuple[int, ...], axis: int) -> None:
    if not fits(form, shape, axis):
        return
    codes, scale = codes_along(form, shape, axis), (np.abs(noise(shape[axis])) + np.float32(0.1)).astype(np.float16)
    bias = (np.arange(shape[axis]) * 7000 - 20_000).astype(np.int32) * 16
    step = np.array(0.37, np.float32)
    graph = Graph()
    scale = scale.astype(np.float32)
    name = graph.constant(step)
    value = constants.Bias(bias, step * scale)
    made = constants.layer(QuantizedWeight(form, codes, scale, axis), value, name, ["w", "b"], graph.constant)
    call(graph, made)
    weight, biases = evaluated(graph, {"w": len(shape), "b": 1}, made.function)
    np.testing.assert_array_equal(weight, codes.astype(np.float32) * along(scale, len(shape), axis))
    np.testing.assert_array_equal(biases, bias.astype(np.float32) * (step * scale))


@pytest.mark.parametrize("shape", [(1,), (13,), (3, 5), (2, 2, 3, 5)])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_palettes(bits: int, shape: tuple[int, ...]) -> None:
    values = noise(2**bits)
    codes = np.resize(np.arange(2**bits)[::-1], shape).astype(np.uint8)
    graph = Graph()
    made = constants.weight(QuantizedWeight(Palette(bits), codes, values, 0), "w", graph.constant, as_float=True)
    call(graph, made)
    (result,) = evaluated(graph, {"w": len(shape)}, made.function)
    np.testing.assert_array_equal(result, values[codes])


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_every_accepted_opset(opset: int) -> None:
    graph = Graph()
    form, codes = Integer(7), codes_of(Integer(7), (3, 5))
    made = constants.weight(QuantizedWeight(form, codes, np.ones(3, np.float32), 0), "w", graph.constant, as_float=True)
    call(graph, made)
    (result,) = evaluated(graph, {"w": 2}, made.function, opset)
    np.testing.assert_array_equal(result, codes.astype(np.float32))


X, Y = QuantParams(UINT8, 0.05, 3), QuantParams(UINT8, 0.4, 128)


@pytest.mark.parametrize("form", [*FORMS[:6], *FORMS[7:], *PAIRS], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_becomes_one_integer_kernel(form: Format, groups: int) -> None:
    codes, scale = codes_of(form, (4, 4 // groups, 3, 3)), np.array([0.5, 0.25, 0.125, 0.375], np.float32)
    bias = np.array([100, -2000, 3, 0], np.int32)
    data = np.random.default_rng(0).integers(0, 256, (2, 4, 7, 7)).astype(np.uint8)
    graph = Graph()
    real = graph.real(graph.input(data), X)
    step = graph.nodes[-1].input[1]
    value = constants.Bias(bias, np.float32(X.scale) * scale)
    made = constants.layer(QuantizedWeight(form, codes, scale, 0), value, step, ["w", "b"], graph.constant)
    output = graph.codes(graph.add("Conv", [real, *call(graph, made)], group=groups, pads=[1, 1, 1, 1]), Y)
    result, operators = optimized(graph, output, made.function)
    assert operators - {"Transpose"} == {"QLinearConv"}
    accumulator = integer.conv_accumulator(
        data, X.zero_point, codes, bias, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=groups
    )
    factor = integer.multiplier(X, scale, Y).reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(result, integer.requantize(accumulator, factor, Y))


@pytest.mark.parametrize("form", [*FORMS[:6], *FORMS[7:], *PAIRS], ids=str)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_a_product_becomes_one_integer_kernel(op_type: str, quantized: bool, form: Format) -> None:
    codes, scale = codes_of(form, (5, 12)).T, np.array([0.5, 0.25, 0.125, 0.375, 1], np.float32)
    bias = np.array([100, -2000, 3, 0, 7], np.int32)
    data = np.random.default_rng(0).integers(0, 256, (4, 12)).astype(np.uint8)
    graph = Graph()
    real = graph.real(graph.input(data), X)
    step = graph.nodes[-1].input[1]
    if op_type == "Gemm":
        value = constants.Bias(bias, np.float32(X.scale) * scale)
        made = constants.layer(QuantizedWeight(form, codes, scale, 1), value, step, ["w", "b"], graph.constant)
    else:
        made = constants.weight(QuantizedWeight(form, codes, scale, 1), "w", graph.constant, as_float=False)
    output = graph.add(op_type, [real, *call(graph, made)])
    if quantized:
        output = graph.codes(output, Y)
    result, operators = optimized(graph, output, made.function)
    kernels = {("Gemm", True): "QGemm", ("Gemm", False): "QGemm", ("MatMul", True): "QLinearMatMul"}
    assert operators == {kernels.get((op_type, quantized), "MatMulIntegerToFloat")}
    accumulator = integer.matmul_accumulator(data, X.zero_point, codes, bias if op_type == "Gemm" else None)
    if quantized:
        expected = integer.requantize(accumulator, integer.multiplier(X, scale, Y), Y)
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, accumulator * (X.scale * scale.astype(np.float64)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", [Integer(2), Integer(5), Integer(8)], ids=str)
def test_a_float_layer_reads_a_folded_constant(form: Format) -> None:
    codes, scale = codes_of(form, (4, 4, 3, 3)), np.full(4, 0.5, np.float32)
    graph = Graph()
    made = constants.weight(QuantizedWeight(form, codes, scale, 0), "w", graph.constant, as_float=True)
    output = graph.add("Conv", [graph.input(noise(1, 4, 7, 7)), *call(graph, made)])
    _, operators = optimized(graph, output, made.function)
    assert operators <= {"Conv", "ReorderOutput", "ReorderInput"}


def test_names_differ_where_functions_do() -> None:
    functions = [
        UnpackFunction(UnpackKind.FLOAT, form, axis, rank) for form in FORMS for axis in range(4) for rank in range(5)
    ]
    functions += [
        UnpackFunction(kind, form, axis)
        for kind in (UnpackKind.LAYER, UnpackKind.WEIGHT)
        for form in FORMS
        for axis in (0, 1)
    ]
    functions += [UnpackFunction(UnpackKind.VALUES, Palette(bits)) for bits in (1, 2, 4)]
    assert len({function.name for function in functions}) == len(functions)
