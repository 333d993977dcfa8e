"""Functions, element-wise operators, layers and means of real values."""

from collections.abc import Callable
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c import packing
from ptqc.codegen.c.builder import CODES, REAL, CWindow, NetworkBuilder, rows_of
from ptqc.codegen.c.constants import real
from ptqc.codegen.c.network import SCRATCH, STRUCTURE, Argument, CTensor, Place, Step, channels_last
from ptqc.codegen.c.rules.codes import elementwise, in_place
from ptqc.codegen.c.rules.layers import LARGEST_CODE
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, integers, number
from ptqc.ir.operators import clip_bounds

UNARY = {"Sigmoid": "SIGMOID", "Tanh": "TANH", "Exp": "EXP", "Sqrt": "SQRT", "Neg": "NEG", "Abs": "ABS",
         "Reciprocal": "RECIPROCAL"}  # fmt: skip
BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "Max": "MAX", "Min": "MIN"}


# Defaults of alpha and beta.
SHAPED = {
    "LeakyRelu": ("LEAKY_RELU", 0.01, 0.0),
    "HardSigmoid": ("HARD_SIGMOID", 0.2, 0.5),
    "HardSwish": ("HARD_SWISH", 1 / 6, 0.5),
}


def unary(builder: NetworkBuilder, node: ir.Node) -> None:
    """A function of each real number."""
    function, alpha, beta = SHAPED.get(node.op_type, (UNARY.get(node.op_type, ""), 0.0, 0.0))
    _each(builder, node, function, number(node, "alpha", alpha), number(node, "beta", beta))


def power(builder: NetworkBuilder, node: ir.Node) -> None:
    """Squares and roots."""
    exponent, names = builder.number(node.inputs[1]), {2.0: "SQUARE", 0.5: "SQRT", -1.0: "RECIPROCAL"}
    if exponent.size != 1 or float(exponent.reshape(-1)[0]) not in names:
        raise UnsupportedOp("only the powers 2, 0.5 and -1 have a kernel")
    _each(builder, node, names[float(exponent.reshape(-1)[0])])


def _each(builder: NetworkBuilder, node: ir.Node, function: str, alpha: float = 0.0, beta: float = 0.0) -> None:
    source = builder.read(node.inputs[0])
    check_real(source)
    further = [str(source.size), function, real(alpha), real(beta)]
    in_place(builder, "real_unary", source, str(node.outputs[0].name), further, node.op_type)


def softmax(builder: NetworkBuilder, node: ir.Node) -> None:
    """Softmax along an axis."""
    source = builder.plain(builder.read(node.inputs[0]))
    check_real(source)
    axis = integer(node, "axis", -1) % len(source.shape)
    sizes = prod(source.shape[:axis]), source.shape[axis], prod(source.shape[axis + 1 :])
    in_place(builder, "real_softmax", source, str(node.outputs[0].name), list(map(str, sizes)), node.op_type)


def binary(builder: NetworkBuilder, node: ir.Node) -> None:
    """Two tensors of real numbers."""
    if len(node.inputs) != 2:
        raise UnsupportedOp("only two operands have a kernel")
    operands = [builder.read(value) for value in node.inputs]
    for operand in operands:
        check_real(operand)
    output = node.outputs[0]
    elementwise(builder, "real_binary", operands, output, REAL, [BINARY[node.op_type]], str(output.name))


def limit(builder: NetworkBuilder, node: ir.Node) -> None:
    """Relu or Clip of codes or of real numbers."""
    bounds = clip_bounds(node)
    if bounds is None:
        raise UnsupportedOp("its bounds are not constant")
    source, name = builder.read(node.inputs[0]), str(node.outputs[0].name)
    if source.dtype == CODES:
        numbers = [str(int(np.clip(bound, 0, LARGEST_CODE))) for bound in bounds]
        in_place(builder, "limit", source, name, [str(source.size), *numbers], node.op_type)
        return
    check_real(source)
    numbers = [real(float(bound)) for bound in bounds]
    in_place(builder, "real_limit", source, name, [str(source.size), *numbers], node.op_type)


def check_real(tensor: CTensor) -> None:
    if tensor.dtype != REAL:
        raise UnsupportedOp(f"it reads {tensor.dtype}")


def average_along(builder: NetworkBuilder, node: ir.Node) -> None:
    """Sums and means of real numbers along neighbouring axes."""
    source = builder.plain(builder.read(node.inputs[0]))
    check_real(source)
    rank = len(source.shape)
    if node.op_type == "GlobalAveragePool":
        axes = list(range(2, rank))
    else:
        stated = builder.number(node.inputs[1]).tolist() if input_of(node, 1) is not None else []
        axes = sorted(axis % rank for axis in (stated or integers(node, "axes", list(range(rank)))))
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise UnsupportedOp("only neighbouring axes have a kernel")
    outer, inner = prod(source.shape[: axes[0]]), prod(source.shape[axes[-1] + 1 :])
    count = source.size // outer // inner
    target = builder.output(node.outputs[0], REAL)
    factor = real(1.0 if node.op_type == "ReduceSum" else 1.0 / count)
    arguments: list[Argument] = [Place(source.buffer), Place(target.buffer), str(outer), str(count), str(inner), factor]
    step = Step("real_mean", arguments, [source.buffer], [target.buffer], target.buffer.name, target)
    builder.add(step, node.op_type)


class RealWeights:
    """Weights (R, K) that multiply real numbers: in codes where they are so in the file."""

    def __init__(self, builder: NetworkBuilder, value: ir.Value | None, arrange: Callable[[np.ndarray], np.ndarray]):
        self.builder, constants = builder, builder.network.constants
        maker = value.producer() if value is not None else None
        is_coded = maker is not None and maker.op_type == "DequantizeLinear"
        codes = builder.number(maker.inputs[0]) if is_coded and maker is not None else None
        rows = arrange(builder.number(value))
        self.packed = packing.raw(np.zeros((1, rows.shape[1]), np.int8))
        if maker is None or codes is None or codes.dtype != np.int8 or (scale := self._scale(maker, arrange)) is None:
            name = constants.add(rows.astype(np.float32), "numbers")
            self.text = f"{{{{0, 0, 0, {rows.shape[1]}, 1, RAW, 8, 0, 1}}, 0, {name}, 0}}"
            self.is_coded = False
            return
        scales, kind = scale
        form = builder.lowered.formats.get(builder.name(maker.inputs[0]))
        self.packed, self.is_coded = packing.packed(arrange(codes), form, is_matrix=codes.ndim == 2), True
        name = constants.add(scales, "scale")
        self.text = f"{{{constants.weights(self.packed)}, {name}, 0, {kind}}}"

    def _scale(self, maker: ir.Node, arrange: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, str] | None:
        codes, scale = (self.builder.number(maker.inputs[place]) for place in (0, 1))
        shape = [1] * codes.ndim
        if scale.size > 1:
            shape[integer(maker, "axis", 1)] = -1
        every = arrange(np.broadcast_to(scale.reshape(shape), codes.shape)).astype(np.float32)
        if (every == every[:1, :1]).all():
            return every[0, :1], "OF_ALL"
        if (every == every[:, :1]).all():
            return every[:, 0], "OF_ROWS"
        if (every == every[:1]).all():
            return every[0], "OF_COLUMNS"
        return None

    @property
    def scratch(self) -> int:
        """Bytes that unpacking a row needs."""
        return self.packed.unpacked(1) if self.is_coded else 0

    @property
    def kinds(self) -> list[str]:
        """Of packings."""
        return [self.packed.kind] if self.is_coded else []


def conv(builder: NetworkBuilder, node: ir.Node) -> None:
    """A convolution of real numbers."""
    source = builder.read(node.inputs[0])
    check_real(source)
    source = builder.image(source)
    kernel = builder.shapes[builder.name(node.inputs[1])]
    shape = builder.shapes[str(node.outputs[0].name)]
    window = builder.window(source, shape, node, kernel[2:])
    target = builder.new(str(node.outputs[0].name), shape, REAL, channels_last(len(shape)))
    weights = RealWeights(builder, node.inputs[1], packing.of_layer)
    bias = builder.number(node.inputs[2]) if input_of(node, 2) is not None else None
    _real_layer(builder, node, (source, target), weights, bias, window)


def product(builder: NetworkBuilder, node: ir.Node) -> None:
    """A product of real numbers with a matrix."""
    if not builder.is_constant(node.inputs[1]) or builder.number(node.inputs[1]).ndim != 2:
        raise UnsupportedOp("only matmuls with one constant matrix have a kernel")
    if integer(node, "transA", 0):
        raise UnsupportedOp("only matmuls of rows have a kernel")
    source = builder.plain(builder.read(node.inputs[0]))
    check_real(source)
    is_turned, alpha = integer(node, "transB", 0), number(node, "alpha", 1.0)
    if alpha != 1.0:
        raise UnsupportedOp("only matmuls without a factor have a kernel")
    weights = RealWeights(builder, node.inputs[1], lambda array: array if is_turned else array.T)
    outputs = builder.shapes[builder.name(node.inputs[1])][0 if is_turned else 1]
    bias = None
    if input_of(node, 2) is not None:
        constant = builder.number(node.inputs[2])
        if constant.size not in (1, outputs):
            raise UnsupportedOp("its bias differs from row to row")
        bias = np.broadcast_to(constant.reshape(-1), (outputs,)) * np.float32(number(node, "beta", 1.0))
    target = builder.output(node.outputs[0], REAL)
    _real_layer(builder, node, (source, target), weights, bias, rows_of(source, outputs))


def _real_layer(
    builder: NetworkBuilder,
    node: ir.Node,
    ends: tuple[CTensor, CTensor],
    weights: RealWeights,
    bias: np.ndarray | None,
    window: CWindow,
) -> None:
    source, target = ends
    biases = "0" if bias is None else builder.network.constants.add(np.asarray(bias, np.float32), "bias")
    sizes, geometry = window.fields("source", "output"), window.fields("padding", "size", "strides", "dilations")
    groups = integer(node, "group", 1)
    step = Step(
        "real_dense",
        [STRUCTURE, Place(source.buffer), Place(target.buffer), SCRATCH],
        [source.buffer],
        [target.buffer],
        target.buffer.name,
        target,
        structure=lambda _: f"{{{weights.text}, {biases}, {sizes}, {groups}, {geometry}}}",
        scratch=lambda _: 4 * weights.packed.row + weights.scratch,
        products=target.size * weights.packed.row,
        kinds=weights.kinds,
    )
    builder.add(step, node.op_type)
