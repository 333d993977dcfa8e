"""Functions, pools and sums that stay in float32."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.drafts import Binary, PendingKernel, RowBinary, Unary, VectorBinary
from ptqc.codegen.kernels.emission import Emission
from ptqc.codegen.kernels.families import functions, pool, reductions, rows
from ptqc.codegen.kernels.families.functions import TWICE_GELU, Function, with_number
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Layout
from ptqc.codegen.program.program import Unsupported, Window
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


def unary(emission: Emission, node: ir.Node) -> None:
    """A function of one tensor."""
    by_tanh = node.op_type == "Gelu" and text(node, "approximate", "none") == "tanh"
    function = Function("tanh_gelu" if by_tanh else node.op_type, tuple(_numbers(node)))
    emission.apply(node, lambda _x, _y: Unary(emission.isa, function), stored=True, dtype="float32")
    emission.reals[str(node.outputs[0].name)] = required(node.inputs[0]), function


def _gate(emission: Emission, node: ir.Node) -> tuple[ir.Value, Function] | None:
    """x and x · f(x), where a product is that and nothing else reads f(x)."""
    if node.op_type != "Mul":
        return None
    for own, other in (node.inputs, node.inputs[::-1]):
        if _is_one_and_erf(emission, own, other, node):
            return required(own), Function(TWICE_GELU)
        found = emission.reals.get(str(required(other).name))
        if found is not None and found[0] is own and only_consumer(required(other)) is node:
            return found[0], found[1].gating()
    return None


def _is_one_and_erf(emission: Emission, x: ir.Value | None, value: ir.Value | None, reader: ir.Node) -> bool:
    """Whether a value that nothing else reads is 1 + erf(x / √2): twice what Gelu multiplies x with."""
    total = _only_maker(value, "Add", reader)
    erf = next((found for v in total.inputs if (found := _only_maker(v, "Erf", total))), None) if total else None
    if total is None or erf is None or not _has_number(emission, total, 1.0):
        return False
    for op_type, factor in (("Div", 2**0.5), ("Mul", 0.5**0.5)):
        scaled = _only_maker(erf.inputs[0], op_type, erf)
        if scaled is not None and x in scaled.inputs[: 1 + (op_type == "Mul")]:
            return _has_number(emission, scaled, factor)
    return False


def _only_maker(value: ir.Value | None, op_type: str, reader: ir.Node) -> ir.Node | None:
    """The node that makes a value for one reader alone, if it is of this operator."""
    maker = required(value).producer()
    return maker if maker and maker.op_type == op_type and only_consumer(required(value)) is reader else None


def _has_number(emission: Emission, node: ir.Node, wanted: float) -> bool:
    """Whether an operand of a node is this number, as far as float32 has it."""
    constants = [emission.number(value) for value in node.inputs if emission.is_constant(value)]
    return any(constant.size == 1 and np.isclose(constant.item(), wanted, rtol=1e-6) for constant in constants)


def _numbers(node: ir.Node) -> list[float]:
    if node.op_type == "Clip":
        bounds = clip_bounds(node)
        if bounds is None:
            raise Unsupported("its bounds are not constant")
        return [min(max(bound, -LARGEST_FLOAT), LARGEST_FLOAT) for bound in bounds]
    if node.op_type == "HardSwish":
        return [1 / 6, 0.5]
    return [number(node, name, default) for name, default in NUMBERS.get(node.op_type, ())]


def rounded(emission: Emission, node: ir.Node, back: ir.Node) -> None:
    """A Cast to bfloat16 and the one back to float32."""
    source = emission.operand(node.inputs[0], stored=True)
    dtype = BFLOAT16 if emission.isa.bfloats else "float32"
    emission.apply(back, lambda _x, _y: Unary(emission.isa, Function(ROUNDED)), source, dtype=dtype)


def power(emission: Emission, node: ir.Node) -> None:
    """Pow with an exponent that is a function of its own."""
    form = form_of_power(emission, node)
    assert form is not None
    emission.apply(node, lambda _x, _y: Unary(emission.isa, Function(form)))


def form_of_power(emission: Emission, node: ir.Node) -> str | None:
    """The function that a Pow with a constant exponent is, where it is one."""
    exponent = emission.constants.get(str(required(node.inputs[1]).name))
    return POWERS.get(float(exponent.item())) if exponent is not None and exponent.size == 1 else None


def binary(emission: Emission, node: ir.Node) -> None:
    """A function of two tensors, one of which may be constant."""
    if (gate := _gate(emission, node)) is not None:
        source = emission.operand(gate[0], stored=True)
        emission.apply(node, lambda _x, _y: Unary(emission.isa, gate[1]), source, dtype="float32")
        return
    output, constant = node.outputs[0], None
    varying = [value for value in node.inputs if not emission.is_constant(value)]
    lead = outer(emission, varying, output)
    names, given = operands(emission, varying, output, lead, stored=True)
    layout = Layout(emission.sizes(output)[lead:], "float32", plain=given[0].plain)
    for place, value in enumerate(node.inputs):
        if emission.is_constant(value):
            constant = place, _array(emission.number(value), len(layout.shape), lead)
    if (kernel := _fusible(emission, node, given, layout, constant)) is not None:
        emission.add(kernel, names, str(output.name), layout)
        return
    emission.add_as(functions.binary(node.op_type, given, layout, emission.isa, constant), names, output, layout)


def _fusible(
    emission: Emission,
    node: ir.Node,
    given: Sequence[Layout],
    layout: Layout,
    constant: tuple[int, np.ndarray] | None,
) -> PendingKernel | None:
    """A kernel that may become part of others, where it goes from element to element of one value, or of two."""
    wide = [x for x in given if x.shape == layout.shape]
    if not wide or layout.shape != emission.shape(node.outputs[0]):
        return None
    if constant is not None:
        return _with_constant(emission, node, layout, *constant)
    if len(wide) == len(given):
        return Binary(emission.isa, node.op_type)
    (by_row,) = (place for place, x in enumerate(given) if x.shape != layout.shape)
    if not layout.plain or given[by_row].shape != (*layout.shape[:-1], 1):
        return None
    built = functions.binary(node.op_type, given, layout, emission.isa)
    return RowBinary(emission.isa, node.op_type, by_row, built)


def _with_constant(
    emission: Emission, node: ir.Node, layout: Layout, place: int, array: np.ndarray
) -> PendingKernel | None:
    """The same with one number, or with one for each channel of a plain value."""
    if array.size == 1:
        return Unary(emission.isa, Function(with_number(node.op_type, place), (float(array.item()),)))
    if layout.plain and array.size == array.shape[-1] == layout.shape[-1]:
        return VectorBinary(emission.isa, node.op_type, place, array.reshape(-1))
    return None


def outer(emission: Emission, varying: Sequence[ir.Value | None], output: ir.Value) -> int:
    """See `Emission.outer`, of operands that may lack axes in front."""
    ranks = {len(emission.sizes(value)) for value in (*varying, output)}
    return emission.outer(*varying, output, touched=len(ranks) > 1)


def operands(
    emission: Emission, values: Sequence[ir.Value | None], output: ir.Value, outer: int, *, stored: bool = False
) -> tuple[list[str], list[Layout]]:
    """Names of values and their layouts, with as many axes as the output's. stored: perhaps of bfloat16."""
    if outer:
        names = emission.aligned([emission.read(value, stored=stored) for value in values])
        return names, [emission.layouts[name] for name in names]
    rank = len(emission.sizes(output))
    pairs = [emission.whole(value) for value in values]
    return [name for name, _ in pairs], [x.with_rank(rank) for _, x in pairs]


def _array(constant: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """A constant operand for one sample: one number, or `rank` axes."""
    return constant.reshape(-1) if constant.size == 1 else array(constant, rank, outer)


def array(constant: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """A constant operand for one sample, with `rank` axes."""
    shape = (1,) * (rank + outer - constant.ndim) + constant.shape
    if outer and shape[0] != 1:
        raise Unsupported("its constant differs from sample to sample")
    return constant.reshape(shape[outer:])


def mean(emission: Emission, node: ir.Node) -> None:
    """GlobalAveragePool."""
    emission.check_one_sample(node.inputs[0])
    source = emission.inside(emission.real(node.inputs[0]))
    emission.apply(node, lambda x, y: pool.mean(x, y, emission.isa), source)


def average(emission: Emission, node: ir.Node) -> None:
    """AveragePool over one or two axes."""
    kernel = integers(node, "kernel_shape", [])
    name = emission.real(node.inputs[0])
    source, window = slide(emission, node, name, kernel, 0.0)
    pads, rank = integers(node, "pads", [0] * (2 * len(kernel))), len(kernel)
    sizes, before = (0, *emission.layouts[name].shape[1:])[-2:], [0, *pads[:rank]][-2:]
    if integer(node, "count_include_pad", 0):
        after = [0, *pads[rank:]][-2:]
        sizes = tuple(max(size, 1) + b + a for size, b, a in zip(sizes, before, after, strict=True))
        before = [0, 0]
    counts = _present(window, sizes, before)
    emission.apply(node, lambda x, y: pool.average(x, y, window, emission.isa, counts), source)


def _present(window: Window, sizes: Sequence[int], before: Sequence[int]) -> np.ndarray:
    """How many elements of each window are not padding."""
    counts = []
    for axis, size in enumerate(window.output):
        starts = np.arange(size) * window.strides[axis] - before[axis]
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        counts.append(((places >= 0) & (places < max(sizes[axis], 1))).sum(1))
    return np.asarray(counts[0][:, None] * counts[1])


def fold(emission: Emission, node: ir.Node) -> None:
    """Sums and the like over axes: of real numbers along neighbours by vectors, else element by element."""
    rank, axes = len(emission.sizes(node.inputs[0])), _axes(emission, node)
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=0 in axes)
    name, x = emission.flat(node.inputs[0], outer)
    y = Layout(emission.sizes(node.outputs[0])[outer:], x.dtype, plain=True)
    inner = [axis - outer for axis in axes]
    if x.dtype not in reductions.TYPES or (x.dtype != "float32" and node.op_type in reductions.FOR_REALS_ONLY):
        raise Unsupported(f"of {x.dtype} it has no kernel")
    is_run = rank and inner and inner == list(range(inner[0], inner[-1] + 1))
    if x.dtype == "float32" and is_run and node.op_type in rows.FOLDS:
        kernel = rows.fold(node.op_type, x, y, emission.isa, inner[0], inner[-1])
    else:
        kernel = reductions.reduce(node.op_type, x, y, inner)
    emission.add_as(kernel, [name], node.outputs[0], y)


def _axes(emission: Emission, node: ir.Node) -> list[int]:
    """Axes of a reduction: all of them where none is named, unless that means none."""
    given, rank = input_of(node, 1), len(emission.sizes(node.inputs[0]))
    chosen = emission.number(given).tolist() if given is not None else integers(node, "axes", [])
    if not chosen and not integer(node, "noop_with_empty_axes", 0):
        return list(range(rank))
    return sorted(axis % rank for axis in chosen)


def softmax(emission: Emission, node: ir.Node) -> None:
    """Softmax and LogSoftmax along an axis."""
    axis = integer(node, "axis", -1) % len(emission.sizes(node.inputs[0]))
    outer = emission.outer(node.inputs[0], touched=axis == 0)
    source = emission.plain(emission.real(node.inputs[0]))
    logarithm = node.op_type == "LogSoftmax"
    emission.apply(
        node,
        lambda x, y: rows.softmax(x, y, emission.isa, axis - outer, logarithm=logarithm),
        source,
        outer=outer,
    )


def normalize(emission: Emission, node: ir.Node) -> None:
    """LayerNormalization."""
    sizes = emission.sizes(node.inputs[0])
    axis = integer(node, "axis", -1) % len(sizes)
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("only its result has a kernel")
    outer = emission.outer(node.inputs[0], touched=axis == 0)
    source = emission.plain(emission.real(node.inputs[0]))
    scale = np.broadcast_to(emission.number(node.inputs[1]), sizes[axis:])
    given = input_of(node, 2)
    bias = np.zeros_like(scale) if given is None else np.broadcast_to(emission.number(given), scale.shape)
    epsilon = number(node, "epsilon", 1e-5)
    emission.apply(
        node,
        lambda x, y: rows.normalize(x, y, emission.isa, axis - outer, epsilon, scale, bias),
        source,
        outer=outer,
    )
