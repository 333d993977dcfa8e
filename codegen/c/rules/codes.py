"""Element-wise operators and pools of codes, rounding, and functions of one tensor as tables."""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c import requantize
from ptqc.codegen.c.builder import CODES, REAL, CWindow, NetworkBuilder
from ptqc.codegen.c.constants import real
from ptqc.codegen.c.network import STRUCTURE, Argument, CTensor, Place, Shape, Step, channels_last, collapsed, plain
from ptqc.codegen.c.rules.layers import LARGEST_CODE
from ptqc.codegen.program.folding import table_between
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.formats import QuantParams
from ptqc.ir import reference
from ptqc.ir.integer_arithmetic import (
    EVERY_CODE,
    add_numbers,
    mean_factor,
    multiplier,
    repeats_inside,
    softmax_steps,
    softmax_table,
)
from ptqc.ir.nodes import integer, integers
from ptqc.ir.operators import known
from ptqc.ir.operators.base import LoweredStep, codes_of, input_params, output_params, params_of


def _pair(first: CTensor, second: CTensor, shape: Shape) -> tuple[str, tuple[int, ...]]:
    """The fields of a `struct pair`, and the order of the output in memory."""
    largest = first if len(first.shape) == len(shape) and first.size >= second.size else second
    order = largest.order if len(largest.shape) == len(shape) else plain(len(shape))
    steps = []
    for tensor in (first, second):
        lead = len(shape) - len(tensor.shape)
        repeated = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.steps, strict=True)]
        steps.append([0] * lead + repeated)
    joined = collapsed(*([each[axis] for axis in order] for each in (shape, *steps)))
    if joined is None:
        raise UnsupportedOp("its operands repeat along too many axes")
    sizes, (one, other) = joined
    return "{" + ", ".join("{" + ", ".join(map(str, each)) + "}" for each in (sizes, one, other)) + "}", order


def elementwise(
    builder: NetworkBuilder,
    function: str,
    operands: Sequence[CTensor],
    output: ir.Value,
    dtype: str,
    further: Sequence[str],
    name: str,
) -> None:
    first, second = operands
    shape = builder.shapes[str(output.name)]
    text, order = _pair(first, second, shape)
    target = builder.new(name, shape, dtype, order)
    step = Step(
        function,
        [STRUCTURE, Place(first.buffer), Place(second.buffer), Place(target.buffer), *further],
        [first.buffer, second.buffer],
        [target.buffer],
        name,
        target,
        overwrites=first.size == target.size and first.order == order and first.buffer is not second.buffer,
        structure=lambda _: text,
    )
    builder.add(step, function.title())


def add(builder: NetworkBuilder, step: LoweredStep) -> None:
    """A sum of codes."""
    operands = [builder.codes(name) for name in step.inputs]
    params = [input_params(step, 0), input_params(step, 1)]
    if repeats_inside(operands[0].shape, operands[1].shape):
        operands.reverse()
        params.reverse()
    ratios = np.array(add_numbers(params[0], params[1], output_params(step)), np.float32).reshape(-1)
    name = builder.network.constants.add(ratios, "ratio")
    elementwise(builder, "add", operands, step.node.outputs[0], CODES, [name], step.output)


def mul(builder: NetworkBuilder, step: LoweredStep) -> None:
    """A product of codes."""
    a, b, y = input_params(step, 0), input_params(step, 1), output_params(step)
    zeros = np.array([a.zero_point, b.zero_point, y.zero_point], np.uint8)
    factor = float(multiplier(a, np.asarray(b.scale), y))
    further = [builder.network.constants.add(zeros, "zeros"), real(factor)]
    operands = [builder.codes(name) for name in step.inputs]
    elementwise(builder, "mul", operands, step.node.outputs[0], CODES, further, step.output)


def mean(builder: NetworkBuilder, step: LoweredStep) -> None:
    """A global average pool of codes."""
    source = builder.image(builder.codes(step.inputs[0]))
    target = builder.output(step.node.outputs[0], CODES, name=step.output)
    _mean(builder, (source, target), (input_params(step), output_params(step)), step.output, step.kind)


def _mean(
    builder: NetworkBuilder,
    ends: tuple[CTensor, CTensor],
    params: tuple[QuantParams, QuantParams],
    value: str,
    operator: str,
) -> None:
    """The mean over all pixels of each channel. ends, params: of input and output."""
    (source, target), (x, y) = ends, params
    channels, pixels = source.shape[1], source.size // source.shape[1]
    factor = mean_factor(x, y, pixels)
    reach = np.array([pixels * LARGEST_CODE], np.int64)
    exact = requantize.is_exact(factor.reshape(1), -reach, reach, y.zero_point)
    numbers = [str(pixels), str(channels), real(float(factor)), str(x.zero_point), str(y.zero_point), str(int(exact))]
    arguments: list[Argument] = [Place(source.buffer), Place(target.buffer), *numbers]
    builder.add(Step("mean", arguments, [source.buffer], [target.buffer], value, target), operator)


def look_up(builder: NetworkBuilder, node: ir.Node, rounding: ir.Node) -> None:
    """A function of one tensor between codes."""
    source = builder.codes(str(codes_of(node.inputs[0])))
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    output = str(rounding.outputs[0].name)
    step = LoweredStep(node, (source.buffer.name,), output, output)
    operator = known(node)
    if operator is not None and operator.is_looked_up:
        entries, _ = reference.bounds(step, {step.inputs[0]: EVERY_CODE})
    else:
        entries = table_between(builder.lowered.model, node, builder.number, params_of(maker), params_of(rounding))
    name = builder.network.constants.add(entries.astype(np.uint8), "table")
    in_place(builder, "look_up", source, output, [str(source.size), name], node.op_type)


def in_place(
    builder: NetworkBuilder, function: str, source: CTensor, name: str, further: Sequence[str], operator: str
) -> None:
    target = builder.new(name, source.shape, source.dtype, source.order)
    arguments: list[Argument] = [Place(source.buffer), Place(target.buffer), *further]
    step = Step(function, arguments, [source.buffer], [target.buffer], name, target, overwrites=True)
    builder.add(step, operator)


def softmax(builder: NetworkBuilder, node: ir.Node, rounding: ir.Node) -> None:
    """Softmax between codes."""
    source = builder.plain(builder.codes(str(codes_of(node.inputs[0]))))
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    x, y = params_of(maker), params_of(rounding)
    axis = integer(node, "axis", -1) % len(source.shape)
    outer, size, inner = prod(source.shape[:axis]), source.shape[axis], prod(source.shape[axis + 1 :])
    powers = builder.network.constants.add(softmax_table(x, size), "powers")
    further = [str(outer), str(size), str(inner), powers, real(float(softmax_steps(y))), str(y.zero_point)]
    in_place(builder, "softmax", source, str(rounding.outputs[0].name), further, node.op_type)
    builder.network.steps[-1].overwrites = False


def average(builder: NetworkBuilder, node: ir.Node, rounding: ir.Node) -> None:
    """An average pool between codes."""
    source = builder.image(builder.codes(str(codes_of(node.inputs[0]))))
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    x, y = params_of(maker), params_of(rounding)
    shape, kernel = builder.shapes[str(node.outputs[0].name)], integers(node, "kernel_shape", [])
    if set(integers(node, "dilations", [1])) != {1}:
        raise UnsupportedOp("only windows without gaps have a kernel")
    window = builder.window(source, shape, node, kernel)
    output = str(rounding.outputs[0].name)
    target = builder.new(output, shape, CODES, channels_last(len(shape)))
    covered = builder.windows[builder.name(node.inputs[0])][2:]
    if tuple(kernel) == covered and not any(integers(node, "pads", [0])):  # as ONNX Runtime does
        _mean(builder, (source, target), (x, y), output, node.op_type)
        return
    counts = str(integer(node, "count_include_pad", 0))
    further = [real(x.scale), str(x.zero_point), real(y.scale), str(y.zero_point), counts]
    _pool(builder, "average", source, target, window, output, further, node.op_type)


def _pool(
    builder: NetworkBuilder,
    function: str,
    source: CTensor,
    target: CTensor,
    window: CWindow,
    value: str,
    further: Sequence[str],
    operator: str,
) -> None:
    fields = window.fields("source", "output", "padding", "size", "strides", "dilations")
    arguments: list[Argument] = [STRUCTURE, Place(source.buffer), Place(target.buffer), *further]
    step = Step(
        function, arguments, [source.buffer], [target.buffer], value, target, structure=lambda _: f"{{{fields}}}"
    )
    builder.add(step, operator)


def largest(builder: NetworkBuilder, node: ir.Node) -> None:
    """A max pool of codes."""
    source = builder.image(builder.read(node.inputs[0]))
    if source.dtype != CODES or len(node.outputs) > 1:
        raise UnsupportedOp("max pools have a kernel only on integers and without indices")
    shape = builder.shapes[str(node.outputs[0].name)]
    window = builder.window(source, shape, node, integers(node, "kernel_shape", []))
    target = builder.new(str(node.outputs[0].name), shape, CODES, channels_last(len(shape)))
    _pool(builder, "largest", source, target, window, target.buffer.name, [], node.op_type)


def quantize(builder: NetworkBuilder, node: ir.Node) -> None:
    """Codes of real values."""
    output = str(node.outputs[0].name)
    if output in builder.tensors:  # an input that comes as codes
        return
    source, params = builder.read(node.inputs[0]), params_of(node)
    if source.dtype != REAL or node.outputs[0].dtype != ir.DataType.UINT8:
        raise UnsupportedOp("only floats are quantized to 8 bits")
    target = builder.new(output, source.shape, CODES, source.order)
    further = [str(source.size), real(params.scale), str(params.zero_point)]
    arguments: list[Argument] = [Place(source.buffer), Place(target.buffer), *further]
    builder.add(Step("quantize", arguments, [source.buffer], [target.buffer], output, target), node.op_type)
