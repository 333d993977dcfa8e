"""Element-wise operators and pools on codes, rounding, and functions of one tensor as tables."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnx import helper

from ptqc.codegen.tvm.emission import Emission
from ptqc.codegen.tvm.emitters import real
from ptqc.codegen.tvm.families import Built, Declined, planes, pointwise, pool, rows
from ptqc.codegen.tvm.isa import Isa
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.oracle import compute, standalone
from ptqc.formats import QuantParams
from ptqc.integer import add_numbers, mean_factor, multiplier, repeats_inside, softmax_steps, softmax_table
from ptqc.nodes import integer
from ptqc.operators import clip_bounds
from ptqc.reference import Step, codes_of, input_params, output_params, params_of

CODES = 256


def add(emission: Emission, step: Step) -> None:
    """A sum of codes."""
    parameters = [input_params(step, 0), input_params(step, 1)]
    names, operands = _operands(emission, step)
    y, layout = output_params(step), _of(emission, step, names[0])
    if repeats_inside(operands[0].shape, operands[1].shape):
        for pair in (names, operands, parameters):
            pair.reverse()
    numbers = np.array(add_numbers(parameters[0], parameters[1], y), np.float32)
    emission.add(pointwise.add(operands, layout, emission.isa, numbers), names, step.output, layout)


def mul(emission: Emission, step: Step) -> None:
    """A product of two tensors of codes."""
    a, b, y = input_params(step, 0), input_params(step, 1), output_params(step)
    names, operands = _operands(emission, step)
    layout = _of(emission, step, names[0])
    factor = float(multiplier(a, np.asarray(b.scale), y))
    zeros = (a.zero_point, b.zero_point, y.zero_point)
    emission.add(pointwise.mul(operands, layout, emission.isa, zeros, factor), names, step.output, layout)


def _operands(emission: Emission, step: Step) -> tuple[list[str], list[pointwise.Operand]]:
    """Names of the operands that vary, in one order in memory, and both operands."""
    rank = len(emission.shape(step.node.outputs[0]))
    names = emission.aligned([name for name in step.inputs if name not in emission.constants])
    varying = iter(names)
    return names, [
        _fixed(emission.constants[name], rank) if name in emission.constants else emission.layouts[next(varying)]
        for name in step.inputs
    ]


def _fixed(codes: np.ndarray, rank: int) -> np.ndarray:
    """Codes that never change, for one sample."""
    shape = (1,) * (rank + 1 - codes.ndim) + codes.shape
    if len(shape) != rank + 1 or shape[0] != 1:
        raise Declined("its constant differs from sample to sample")
    return codes.reshape(shape[1:])


def _of(emission: Emission, step: Step, operand: str) -> Layout:
    """The layout of a result whose axes lie in memory like an operand's."""
    return Layout(emission.shape(step.node.outputs[0]), "uint8", plain=emission.layouts[operand].plain)


def mean(emission: Emission, step: Step) -> None:
    """A global average pool of codes."""
    x, y = input_params(step), output_params(step)
    source = emission.inside(step.inputs[0])
    given, layout = emission.layouts[source], Layout(emission.shape(step.node.outputs[0]), "uint8")
    factor = float(mean_factor(x, y, given.elements // given.shape[0]))
    kernel = pool.mean_codes(given, layout, emission.isa, (x.zero_point, y.zero_point), factor)
    emission.add(kernel, [source], step.output, layout)


def average(emission: Emission, node: ir.Node, output: ir.Node) -> None:
    """An average pool between codes: in float32, but for how ONNX Runtime's pool of codes rounds."""
    real.average(emission, node)
    _round(emission, output, pointwise.quantize_moved)


def quantize(emission: Emission, node: ir.Node) -> None:
    """QuantizeLinear of a float tensor."""
    _round(emission, node, _quantize)


def _quantize(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> Built:
    quantized: Built = (planes if planes.takes(x, y, isa) else pointwise).quantize(x, y, isa, scale, zero_point)
    return quantized


def _round(emission: Emission, node: ir.Node, kernel: Callable[[Layout, Layout, Isa, float, int], Built]) -> None:
    """What a QuantizeLinear makes of its float input."""
    params, source = params_of(node), emission.read(node.inputs[0])
    layout = replace(emission.layouts[source], dtype="uint8", outside=False)
    built = kernel(emission.layouts[source], layout, emission.isa, params.scale, params.zero_point)
    emission.add(built, [source], str(node.outputs[0].name), layout)


def limit(emission: Emission, node: ir.Node) -> None:
    """Relu or Clip of codes."""
    bounds = clip_bounds(node) or (0.0, 255.0)
    low, high = (int(np.clip(bound, 0, CODES - 1)) for bound in bounds)
    emission.apply(node, lambda x, y: pointwise.limit(x, y, emission.isa, low, high))


def softmax(emission: Emission, node: ir.Node, output: ir.Node) -> None:
    """Softmax between codes."""
    source = emission.plain(str(codes_of(node.inputs[0])))
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    x, y = params_of(maker), params_of(output)
    layout = emission.layouts[source]
    axis = integer(node, "axis", -1) % (len(layout.shape) + 1)
    if axis == 0:
        raise Declined("it runs along the batch axis")
    powers, steps = softmax_table(x, layout.shape[axis - 1]), float(softmax_steps(y))
    kernel = rows.softmax_codes(layout, layout, emission.isa, axis - 1, powers, steps, y.zero_point)
    emission.add(kernel, [source], str(output.outputs[0].name), layout)


def table(emission: Emission, node: ir.Node, output: ir.Node) -> None:
    """A function of one tensor between codes; ONNX Runtime itself says what it gives for each code."""
    source = emission.aligned([str(codes_of(node.inputs[0]))])[0]
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    entries = _table(emission, node, params_of(maker), params_of(output))
    layout = emission.layouts[source]
    emission.add(pointwise.table(layout, layout, emission.isa, entries), [source], str(output.outputs[0].name), layout)


def _table(emission: Emission, node: ir.Node, x: QuantParams, y: QuantParams) -> np.ndarray:
    """The output code of every input code."""
    proto, constants = standalone(node, emission.number)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "s", "z"], ["x"]),
        proto,
        helper.make_node("QuantizeLinear", ["y", "t", "w"], ["found"]),
    ]
    for scale, zero_point, params in (("s", "z", x), ("t", "w", y)):
        constants |= {scale: np.array(params.scale, np.float32), zero_point: np.array(params.zero_point, np.uint8)}
    codes = np.arange(CODES, dtype=np.uint8).reshape(1, CODES)
    return compute(emission.lowered.model, nodes, constants, {"codes": codes}, ["found"])["found"].reshape(-1)
