"""Functions, pools and sums that stay in float32."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptqc.codegen.tvm.emission import Emission
from ptqc.codegen.tvm.emitters.sliding import slide
from ptqc.codegen.tvm.families import Declined, functions, pool, rows
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.window import Window
from ptqc.nodes import input_of, integer, integers, number, text
from ptqc.operators import clip_bounds

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
    form, numbers = "gelu_by_tanh" if by_tanh else node.op_type, _numbers(node)
    emission.apply(node, lambda x, y: functions.unary(form, x, y, emission.isa, numbers))


def _numbers(node: ir.Node) -> list[float]:
    if node.op_type == "Clip":
        bounds = clip_bounds(node)
        if bounds is None:
            raise Declined("its bounds are not constant")
        return [min(max(bound, -LARGEST_FLOAT), LARGEST_FLOAT) for bound in bounds]
    if node.op_type == "HardSwish":
        return [1 / 6, 0.5]
    return [number(node, name, default) for name, default in NUMBERS.get(node.op_type, ())]


def power(emission: Emission, node: ir.Node) -> None:
    """Pow with an exponent that is a function of its own."""
    exponent = emission.number(node.inputs[1])
    form = POWERS.get(float(exponent.reshape(-1)[0])) if exponent.size == 1 else None
    if form is None:
        raise Declined(f"only the exponents {', '.join(map(str, POWERS))} have a kernel")
    emission.apply(node, lambda x, y: functions.unary(form, x, y, emission.isa, ()))


def binary(emission: Emission, node: ir.Node) -> None:
    """A function of two tensors, one of which may be constant."""
    if len(node.inputs) != 2:
        raise Declined("only two operands have a kernel")
    output, constant = node.outputs[0], None
    varying = [value for value in node.inputs if not emission.is_constant(value)]
    outer = _outer(emission, node)
    names, given = _operands(emission, varying, output, outer)
    layout = Layout(emission.sizes(output)[outer:], "float32", plain=given[0].plain)
    for place, value in enumerate(node.inputs):
        if emission.is_constant(value):
            constant = place, _array(emission.number(value), len(layout.shape), outer)
    kernel = functions.binary(node.op_type, given, layout, emission.isa, constant)
    emission.add(kernel, names, str(output.name), replace(layout, shape=emission.shape(output)))


def _outer(emission: Emission, node: ir.Node) -> int:
    """See `Emission.outer`, of operands that may lack axes in front."""
    values = [*(value for value in node.inputs if not emission.is_constant(value)), node.outputs[0]]
    ranks = {len(emission.sizes(value)) for value in values}
    return emission.outer(*values, touched=len(ranks) > 1)


def _operands(
    emission: Emission, values: Sequence[ir.Value | None], output: ir.Value, outer: int
) -> tuple[list[str], list[Layout]]:
    """Names of values and their layouts, with as many axes as the output's."""
    if outer:
        names = emission.aligned([emission.read(value) for value in values])
        return names, [emission.layouts[name] for name in names]
    rank = len(emission.sizes(output))
    pairs = [emission.whole(value) for value in values]
    padded = [replace(x, shape=(1,) * (rank - len(x.shape)) + x.shape) for _, x in pairs]
    return [name for name, _ in pairs], padded


def _array(constant: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """A constant operand for one sample: one number, or `rank` axes."""
    if constant.size == 1:
        return constant.reshape(-1)
    shape = (1,) * (rank + outer - constant.ndim) + constant.shape
    if outer and shape[0] != 1:
        raise Declined("its constant differs from sample to sample")
    return constant.reshape(shape[outer:])


def mean(emission: Emission, node: ir.Node) -> None:
    """GlobalAveragePool."""
    emission.check_one_sample(node.inputs[0])
    source = emission.inside(emission.read(node.inputs[0]))
    emission.apply(node, lambda x, y: pool.mean(x, y, emission.isa), source)


def average(emission: Emission, node: ir.Node) -> None:
    """AveragePool over one or two axes."""
    kernel = integers(node, "kernel_shape", [])
    name = emission.read(node.inputs[0])
    source, window = slide(emission, node, name, kernel, 0.0)
    if integer(node, "ceil_mode", 0):
        raise Declined("its size is rounded up")
    counts = np.full(window.output, np.prod(window.kernel))
    if not integer(node, "count_include_pad", 0):
        pads = integers(node, "pads", [0] * (2 * len(kernel)))
        counts = _present(window, (0, *emission.layouts[name].shape[1:])[-2:], ([0, *pads[: len(kernel)]])[-2:])
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
    """ReduceSum, ReduceMean, ReduceMax, ReduceMin over neighbouring axes."""
    given = input_of(node, 1)
    rank = len(emission.sizes(node.inputs[0]))
    chosen = emission.number(given).tolist() if given is not None else integers(node, "axes", [])
    axes = sorted(axis % rank for axis in chosen) or list(range(rank))
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise Declined("only neighbouring axes have a kernel")
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=axes[0] == 0)
    source = emission.plain(emission.read(node.inputs[0]))
    first, last = axes[0] - outer, axes[-1] - outer
    emission.apply(node, lambda x, y: rows.fold(node.op_type, x, y, emission.isa, first, last), source, outer=outer)


def softmax(emission: Emission, node: ir.Node) -> None:
    """Softmax and LogSoftmax along an axis."""
    axis = integer(node, "axis", -1) % len(emission.sizes(node.inputs[0]))
    outer = emission.outer(node.inputs[0], touched=axis == 0)
    source = emission.plain(emission.read(node.inputs[0]))
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
        raise Declined("only its result has a kernel")
    outer = emission.outer(node.inputs[0], touched=axis == 0)
    source = emission.plain(emission.read(node.inputs[0]))
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
