"""Functions, pools and sums that stay in float32."""

from collections.abc import Sequence

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
    shape = emission.shape(node.outputs[0])
    names = emission.aligned([emission.read(value) for value in node.inputs if not emission.is_constant(value)])
    given = [_with_rank(emission.layouts[name], len(shape)) for name in names]
    layout = Layout(shape, "float32", plain=given[0].plain)
    constant = None
    for place, value in enumerate(node.inputs):
        if emission.is_constant(value):
            constant = place, _array(emission.number(value), len(shape))
    kernel = functions.binary(node.op_type, given, layout, emission.isa, constant)
    emission.add(kernel, names, str(node.outputs[0].name), layout)


def _with_rank(layout: Layout, rank: int) -> Layout:
    if len(layout.shape) != rank:
        raise Declined("its operands differ in rank")
    return layout


def _array(constant: np.ndarray, rank: int) -> np.ndarray:
    """A constant operand for one sample: one number, or `rank` axes."""
    if constant.size == 1:
        return constant.reshape(-1)
    shape = (1,) * (rank + 1 - constant.ndim) + constant.shape
    if len(shape) != rank + 1 or shape[0] != 1:
        raise Declined("its constant differs from sample to sample")
    return constant.reshape(shape[1:])


def mean(emission: Emission, node: ir.Node) -> None:
    """GlobalAveragePool."""
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
    rank = len(emission.shapes[str(emission.read(node.inputs[0]))])
    chosen = emission.number(given).tolist() if given is not None else integers(node, "axes", [])
    axes = sorted(axis % rank for axis in chosen)
    if not axes or axes[0] == 0 or axes != list(range(axes[0], axes[-1] + 1)):
        raise Declined("only neighbouring axes without the batch have a kernel")
    source = emission.plain(emission.read(node.inputs[0]))
    first, last = axes[0] - 1, axes[-1] - 1
    emission.apply(node, lambda x, y: rows.fold(node.op_type, x, y, emission.isa, first, last), source)


def softmax(emission: Emission, node: ir.Node) -> None:
    """Softmax and LogSoftmax along an axis."""
    source = emission.plain(emission.read(node.inputs[0]))
    axis = integer(node, "axis", -1) % (len(emission.layouts[source].shape) + 1)
    if axis == 0:
        raise Declined("it runs along the batch axis")
    logarithm = node.op_type == "LogSoftmax"
    emission.apply(node, lambda x, y: rows.softmax(x, y, emission.isa, axis - 1, logarithm=logarithm), source)


def normalize(emission: Emission, node: ir.Node) -> None:
    """LayerNormalization."""
    source = emission.plain(emission.read(node.inputs[0]))
    shape = emission.layouts[source].shape
    axis = integer(node, "axis", -1) % (len(shape) + 1)
    if axis == 0 or len([value for value in node.outputs if value.name]) > 1:
        raise Declined("only its result has a kernel, and not along the batch axis")
    scale = np.broadcast_to(emission.number(node.inputs[1]), shape[axis - 1 :])
    given = input_of(node, 2)
    bias = np.zeros_like(scale) if given is None else np.broadcast_to(emission.number(given), scale.shape)
    epsilon = number(node, "epsilon", 1e-5)
    emission.apply(node, lambda x, y: rows.normalize(x, y, emission.isa, axis - 1, epsilon, scale, bias), source)
