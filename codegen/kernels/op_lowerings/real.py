"""Functions, pools and sums that stay in float32."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import functions, pool, reductions, rows
from ptqc.codegen.kernels.families.functions import TWICE_GELU, Function, with_number
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.kernels.pending import Binary, PendingKernel, RowBinary, Unary, VectorBinary
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Layout
from ptqc.codegen.program.program import UnsupportedOp, Window
from ptqc.ir.nodes import input_of, integer, integers, number, only_consumer, required, text
from ptqc.ir.operators import clip_bounds

# Attributes of functions with their defaults.
NUMBERS = {
    "Elu": (("alpha", 1.0),),
    "LeakyRelu": (("alpha", 0.01),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}
POWERS = {0.5: "Sqrt", 1.0: "Identity", -1.0: "Reciprocal", 2.0: "square", 3.0: "cube"}
LARGEST_FLOAT = 3.4028235e38


def unary(builder: ProgramBuilder, node: ir.Node) -> None:
    """A function of one tensor."""
    by_tanh = node.op_type == "Gelu" and text(node, "approximate", "none") == "tanh"
    function = Function("tanh_gelu" if by_tanh else node.op_type, tuple(_numbers(node)))
    builder.apply(node, lambda _x, _y: Unary(builder.isa, function), stored=True, dtype="float32")
    builder.reals[str(node.outputs[0].name)] = required(node.inputs[0]), function


def _gate(builder: ProgramBuilder, node: ir.Node) -> tuple[ir.Value, Function] | None:
    """x and x · f(x), where a product is that and nothing else reads f(x)."""
    if node.op_type != "Mul":
        return None
    for own, other in (node.inputs, node.inputs[::-1]):
        if _is_one_and_erf(builder, own, other, node):
            return required(own), Function(TWICE_GELU)
        result = builder.reals.get(str(required(other).name))
        if result is not None and result[0] is own and only_consumer(required(other)) is node:
            return result[0], result[1].gating()
    return None


def _is_one_and_erf(builder: ProgramBuilder, x: ir.Value | None, value: ir.Value | None, reader: ir.Node) -> bool:
    """Whether a value that nothing else reads is 1 + erf(x / √2): twice what Gelu multiplies x with."""
    total = _only_maker(value, "Add", reader)
    erf = next((result for v in total.inputs if (result := _only_maker(v, "Erf", total))), None) if total else None
    if total is None or erf is None or not _has_number(builder, total, 1.0):
        return False
    for op_type, factor in (("Div", 2**0.5), ("Mul", 0.5**0.5)):
        scaled = _only_maker(erf.inputs[0], op_type, erf)
        if scaled is not None and x in scaled.inputs[: 1 + (op_type == "Mul")]:
            return _has_number(builder, scaled, factor)
    return False


def _only_maker(value: ir.Value | None, op_type: str, reader: ir.Node) -> ir.Node | None:
    """The node that makes a value for one reader alone, if it is of this operator."""
    maker = required(value).producer()
    return maker if maker and maker.op_type == op_type and only_consumer(required(value)) is reader else None


def _has_number(builder: ProgramBuilder, node: ir.Node, wanted: float) -> bool:
    """Whether an operand of a node is this number, as far as float32 has it."""
    constants = [builder.number(value) for value in node.inputs if builder.is_constant(value)]
    return any(constant.size == 1 and np.isclose(constant.item(), wanted, rtol=1e-6) for constant in constants)


def _numbers(node: ir.Node) -> list[float]:
    if node.op_type == "Clip":
        bounds = clip_bounds(node)
        if bounds is None:
            raise UnsupportedOp("its bounds are not constant")
        return [min(max(bound, -LARGEST_FLOAT), LARGEST_FLOAT) for bound in bounds]
    if node.op_type == "HardSwish":
        return [1 / 6, 0.5]
    return [number(node, name, default) for name, default in NUMBERS.get(node.op_type, ())]


def rounded(builder: ProgramBuilder, node: ir.Node, back: ir.Node) -> None:
    """A Cast to bfloat16 and the one back to float32."""
    source = builder.operand(node.inputs[0], stored=True)
    dtype = BFLOAT16 if builder.isa.bfloats else "float32"
    builder.apply(back, lambda _x, _y: Unary(builder.isa, Function(ROUNDED)), source, dtype=dtype)


def power(builder: ProgramBuilder, node: ir.Node) -> None:
    """Pow with an exponent that is a function of its own."""
    form = form_of_power(builder, node)
    assert form is not None
    builder.apply(node, lambda _x, _y: Unary(builder.isa, Function(form)))


def form_of_power(builder: ProgramBuilder, node: ir.Node) -> str | None:
    """The function that a Pow with a constant exponent is, where it is one."""
    exponent = builder.constants.get(str(required(node.inputs[1]).name))
    return POWERS.get(float(exponent.item())) if exponent is not None and exponent.size == 1 else None


def binary(builder: ProgramBuilder, node: ir.Node) -> None:
    """A function of two tensors, one of which may be constant."""
    if (gate := _gate(builder, node)) is not None:
        source = builder.operand(gate[0], stored=True)
        builder.apply(node, lambda _x, _y: Unary(builder.isa, gate[1]), source, dtype="float32")
        return
    output, constant = node.outputs[0], None
    varying = [value for value in node.inputs if not builder.is_constant(value)]
    lead = outer(builder, varying, output)
    names, layouts = operands(builder, varying, output, lead, stored=True)
    layout = Layout(builder.sizes(output)[lead:], "float32", row_major=layouts[0].row_major)
    for place, value in enumerate(node.inputs):
        if builder.is_constant(value):
            constant = place, _array(builder.number(value), len(layout.shape), lead)
    if (kernel := _fusible(builder, node, layouts, layout, constant)) is not None:
        builder.add(kernel, names, str(output.name), layout)
        return
    builder.add_as(functions.binary(node.op_type, layouts, layout, builder.isa, constant), names, output, layout)


def _fusible(
    builder: ProgramBuilder,
    node: ir.Node,
    inputs: Sequence[Layout],
    layout: Layout,
    constant: tuple[int, np.ndarray] | None,
) -> PendingKernel | None:
    """A kernel that may become part of others, where it goes from element to element of one value, or of two."""
    wide = [x for x in inputs if x.shape == layout.shape]
    if not wide or layout.shape != builder.shape(node.outputs[0]):
        return None
    if constant is not None:
        return _with_constant(builder, node, layout, *constant)
    if len(wide) == len(inputs):
        return Binary(builder.isa, node.op_type)
    (by_row,) = (place for place, x in enumerate(inputs) if x.shape != layout.shape)
    if not layout.row_major or inputs[by_row].shape != (*layout.shape[:-1], 1):
        return None
    built = functions.binary(node.op_type, inputs, layout, builder.isa)
    return RowBinary(builder.isa, node.op_type, by_row, built)


def _with_constant(
    builder: ProgramBuilder, node: ir.Node, layout: Layout, place: int, array: np.ndarray
) -> PendingKernel | None:
    """The same with one number, or with one for each channel of a row-major value."""
    if array.size == 1:
        return Unary(builder.isa, Function(with_number(node.op_type, place), (float(array.item()),)))
    if layout.row_major and array.size == array.shape[-1] == layout.shape[-1]:
        return VectorBinary(builder.isa, node.op_type, place, array.reshape(-1))
    return None


def outer(builder: ProgramBuilder, varying: Sequence[ir.Value | None], output: ir.Value) -> int:
    """See `ProgramBuilder.outer`, of operands that may lack axes in front."""
    ranks = {len(builder.sizes(value)) for value in (*varying, output)}
    return builder.outer(*varying, output, touched=len(ranks) > 1)


def operands(
    builder: ProgramBuilder, values: Sequence[ir.Value | None], output: ir.Value, outer: int, *, stored: bool = False
) -> tuple[list[str], list[Layout]]:
    """Names of values and their layouts, with as many axes as the output's. stored: perhaps of bfloat16."""
    if outer:
        names = builder.aligned([builder.read(value, stored=stored) for value in values])
        return names, [builder.layouts[name] for name in names]
    rank = len(builder.sizes(output))
    pairs = [builder.whole(value) for value in values]
    return [name for name, _ in pairs], [x.with_rank(rank) for _, x in pairs]


def _array(constant: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """A constant operand for one sample: one number, or `rank` axes."""
    return constant.reshape(-1) if constant.size == 1 else array(constant, rank, outer)


def array(constant: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """A constant operand for one sample, with `rank` axes."""
    shape = (1,) * (rank + outer - constant.ndim) + constant.shape
    if outer and shape[0] != 1:
        raise UnsupportedOp("its constant differs from sample to sample")
    return constant.reshape(shape[outer:])


def mean(builder: ProgramBuilder, node: ir.Node) -> None:
    """GlobalAveragePool."""
    builder.check_one_sample(node.inputs[0])
    source = builder.channels_last(builder.real(node.inputs[0]))
    builder.apply(node, lambda x, y: pool.mean(x, y, builder.isa), source)


def average(builder: ProgramBuilder, node: ir.Node) -> None:
    """AveragePool over one or two axes."""
    kernel = integers(node, "kernel_shape", [])
    name = builder.real(node.inputs[0])
    source, window = slide(builder, node, name, kernel, 0.0)
    pads, rank = integers(node, "pads", [0] * (2 * len(kernel))), len(kernel)
    sizes, before = (0, *builder.layouts[name].shape[1:])[-2:], [0, *pads[:rank]][-2:]
    if integer(node, "count_include_pad", 0):
        after = [0, *pads[rank:]][-2:]
        sizes = tuple(max(size, 1) + b + a for size, b, a in zip(sizes, before, after, strict=True))
        before = [0, 0]
    counts = _present(window, sizes, before)
    builder.apply(node, lambda x, y: pool.average(x, y, window, builder.isa, counts), source)


def _present(window: Window, sizes: Sequence[int], before: Sequence[int]) -> np.ndarray:
    """How many elements of each window are not padding."""
    counts = []
    for axis, size in enumerate(window.output):
        starts = np.arange(size) * window.strides[axis] - before[axis]
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        counts.append(((places >= 0) & (places < max(sizes[axis], 1))).sum(1))
    return np.asarray(counts[0][:, None] * counts[1])


def fold(builder: ProgramBuilder, node: ir.Node) -> None:
    """Sums and the like over axes: of real numbers along neighbours by vectors, else element by element."""
    rank, axes = len(builder.sizes(node.inputs[0])), _axes(builder, node)
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=0 in axes)
    name, x = builder.flat(node.inputs[0], outer)
    y = Layout(builder.sizes(node.outputs[0])[outer:], x.dtype, row_major=True)
    inner = [axis - outer for axis in axes]
    if x.dtype not in reductions.TYPES or (x.dtype != "float32" and node.op_type in reductions.FOR_REALS_ONLY):
        raise UnsupportedOp(f"of {x.dtype} it has no kernel")
    is_run = rank and inner and inner == list(range(inner[0], inner[-1] + 1))
    if x.dtype == "float32" and is_run and node.op_type in rows.FOLDS:
        kernel = rows.fold(node.op_type, x, y, builder.isa, inner[0], inner[-1])
    else:
        kernel = reductions.reduce(node.op_type, x, y, inner)
    builder.add_as(kernel, [name], node.outputs[0], y)


def _axes(builder: ProgramBuilder, node: ir.Node) -> list[int]:
    """Axes of a reduction: all of them where none is named, unless that means none."""
    operand, rank = input_of(node, 1), len(builder.sizes(node.inputs[0]))
    chosen = builder.number(operand).tolist() if operand is not None else integers(node, "axes", [])
    if not chosen and not integer(node, "noop_with_empty_axes", 0):
        return list(range(rank))
    return sorted(axis % rank for axis in chosen)


def softmax(builder: ProgramBuilder, node: ir.Node) -> None:
    """Softmax and LogSoftmax along an axis."""
    axis = integer(node, "axis", -1) % len(builder.sizes(node.inputs[0]))
    outer = builder.outer(node.inputs[0], touched=axis == 0)
    source = builder.row_major(builder.real(node.inputs[0]))
    logarithm = node.op_type == "LogSoftmax"
    builder.apply(
        node,
        lambda x, y: rows.softmax(x, y, builder.isa, axis - outer, logarithm=logarithm),
        source,
        outer=outer,
    )


def normalize(builder: ProgramBuilder, node: ir.Node) -> None:
    """LayerNormalization."""
    sizes = builder.sizes(node.inputs[0])
    axis = integer(node, "axis", -1) % len(sizes)
    if len([value for value in node.outputs if value.name]) > 1:
        raise UnsupportedOp("only its result has a kernel")
    outer = builder.outer(node.inputs[0], touched=axis == 0)
    source = builder.row_major(builder.real(node.inputs[0]))
    scale = np.broadcast_to(builder.number(node.inputs[1]), sizes[axis:])
    operand = input_of(node, 2)
    bias = np.zeros_like(scale) if operand is None else np.broadcast_to(builder.number(operand), scale.shape)
    epsilon = number(node, "epsilon", 1e-5)
    builder.apply(
        node,
        lambda x, y: rows.normalize(x, y, builder.isa, axis - outer, epsilon, scale, bias),
        source,
        outer=outer,
    )
