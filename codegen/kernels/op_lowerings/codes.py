"""Element-wise operators and pools on codes, rounding, and functions of one tensor as tables."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import planes, pointwise, pool, rows
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.op_lowerings import real
from ptqc.codegen.kernels.pending import IntegerAdd, PendingKernel, Quantized, QuantizedImage, TableLookup
from ptqc.codegen.kernels.program_builder import ProgramBuilder, is_float8
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.folding import table_between
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.execution.onnxruntime import softmax_in_float64
from ptqc.ir import integer_arithmetic as integer
from ptqc.ir import reference
from ptqc.ir.integer_arithmetic import (
    add_numbers,
    mean_factor,
    multiplier,
    repeats_inside,
    softmax_steps,
    softmax_table,
)
from ptqc.ir.nodes import integer as integer_attribute
from ptqc.ir.operators import clip_bounds, known
from ptqc.ir.operators.base import LoweredStep, codes_of, input_params, output_params, params_of
from ptqc.runtime.lengths import varies

CODES = 256


def add(builder: ProgramBuilder, step: LoweredStep) -> None:
    """A sum of codes."""
    parameters = [input_params(step, 0), input_params(step, 1)]
    names, operands, layout = _operands(builder, step)
    y = output_params(step)
    if repeats_inside(operands[0].shape, operands[1].shape):
        for pair in (names, operands, parameters):
            pair.reverse()
    numbers = np.array(add_numbers(parameters[0], parameters[1], y), np.float32)
    result = replace(layout, shape=builder.shape(step.node.outputs[0]))
    if len(names) == len(operands) and {builder.layouts[name] for name in names} == {result}:
        builder.add(IntegerAdd(builder.isa, numbers), names, step.output, result)
        return
    builder.add(pointwise.add(operands, layout, builder.isa, numbers), names, step.output, result)


def mul(builder: ProgramBuilder, step: LoweredStep) -> None:
    """A product of two tensors of codes; of two functions of the same codes, as a table of these."""
    a, b, y = input_params(step, 0), input_params(step, 1), output_params(step)
    (one, left), (other, right) = (_function(builder, name) for name in step.inputs)
    if one == other:
        _look_up(builder, one, integer.mul(left, a, right, b, y), step.output)
        return
    names, operands, layout = _operands(builder, step)
    factor = float(multiplier(a, np.asarray(b.scale), y))
    zeros = (a.zero_point, b.zero_point, y.zero_point)
    result = replace(layout, shape=builder.shape(step.node.outputs[0]))
    builder.add(pointwise.mul(operands, layout, builder.isa, zeros, factor), names, step.output, result)


def _operands(builder: ProgramBuilder, step: LoweredStep) -> tuple[list[str], list[pointwise.Operand], Layout]:
    """Names of the operands that vary, in one order in memory, both operands, and the layout of the result."""
    output = step.node.outputs[0]
    rank = len(builder.sizes(output))
    varying = [name for name in step.inputs if name not in builder.constants]
    ranks = {len(builder.axes.shapes[name]) for name in varying} | {rank}
    outer = builder.axes.outer(*varying, str(output.name), touched=len(ranks) > 1)
    names = builder.aligned(varying) if outer else [builder.row_major(name) for name in varying]
    layouts = [_of_rank(builder.layouts[n], v, builder, rank, outer) for n, v in zip(names, varying, strict=True)]
    left = iter(layouts)
    operands = [
        _fixed(builder.constants[name], rank, outer) if name in builder.constants else next(left)
        for name in step.inputs
    ]
    return names, operands, Layout(builder.sizes(output)[outer:], "uint8", row_major=layouts[0].row_major)


def _of_rank(layout: Layout, name: str, builder: ProgramBuilder, rank: int, outer: int) -> Layout:
    """The layout of a value; with all axes of the model and as many as `rank` where none is left out of account."""
    shape = builder.axes.shapes[name]
    return layout if outer else replace(layout, shape=(1,) * (rank - len(shape)) + shape)


def _fixed(codes: np.ndarray, rank: int, outer: int) -> np.ndarray:
    """Codes that never change, for one sample."""
    shape = (1,) * (rank - codes.ndim) + codes.shape
    if outer and shape[0] != 1:
        raise UnsupportedOp("its constant differs from sample to sample")
    return codes.reshape(shape[outer:])


def mean(builder: ProgramBuilder, step: LoweredStep) -> None:
    """A global average pool of codes."""
    builder.check_one_sample(step.node.inputs[0])
    x, y = input_params(step), output_params(step)
    source = builder.channels_last(step.inputs[0])
    layout_in, layout = builder.layouts[source], Layout(builder.shape(step.node.outputs[0]), "uint8")
    factor = float(mean_factor(x, y, layout_in.elements // layout_in.shape[0]))
    kernel = pool.mean_codes(layout_in, layout, builder.isa, (x.zero_point, y.zero_point), factor)
    builder.add(kernel, [source], step.output, layout)


def average(builder: ProgramBuilder, node: ir.Node, output: ir.Node) -> None:
    """An average pool between codes: in float32, but for how ONNX Runtime's pool of codes rounds."""
    real.average(builder, node)
    _round(builder, output, pointwise.quantize_moved)


def quantize(builder: ProgramBuilder, node: ir.Node) -> None:
    """QuantizeLinear of a float tensor."""
    if is_float8(node.outputs[0]):
        _round(builder, node, lambda x, y, _isa, scale, _zero_point: builder.to_float8(x, y, scale))
    else:
        _round(builder, node, _quantize)


def _quantize(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> KernelSource | PendingKernel:
    if planes.takes(x, y, isa):
        return QuantizedImage(isa, scale, zero_point, x.shape[2] >= isa.widest("uint8"))
    return Quantized(isa, scale, zero_point)


def _round(
    builder: ProgramBuilder,
    node: ir.Node,
    kernel: Callable[[Layout, Layout, Isa, float, int], KernelSource | PendingKernel],
) -> None:
    """What a QuantizeLinear makes of its float input."""
    params, source = params_of(node), builder.read(node.inputs[0], stored=True)
    layout = replace(builder.layouts[source], dtype="uint8", is_io=False)
    built = kernel(builder.layouts[source], layout, builder.isa, params.scale, params.zero_point)
    builder.add(built, [source], str(node.outputs[0].name), layout)


def limit(builder: ProgramBuilder, node: ir.Node) -> None:
    """Relu or Clip of codes."""
    bounds = clip_bounds(node) or (0.0, 255.0)
    low, high = (int(np.clip(bound, 0, CODES - 1)) for bound in bounds)
    builder.apply(node, lambda x, y: pointwise.limit(x, y, builder.isa, low, high))


def softmax(builder: ProgramBuilder, node: ir.Node, output: ir.Node) -> None:
    """Softmax between codes."""
    codes = str(codes_of(node.inputs[0]))
    maker = node.inputs[0].producer()  # type: ignore[union-attr]
    assert maker is not None
    x, y = params_of(maker), params_of(output)
    sizes = builder.axes.shapes[codes]
    axis = integer_attribute(node, "axis", -1) % len(sizes)
    if varies(sizes[axis : axis + 1]):
        raise UnsupportedOp("its powers of e depend on how many there are")
    outer = builder.axes.outer(codes, touched=axis == 0)
    source = builder.row_major(codes)
    powers, steps = softmax_table(x, sizes[axis]), float(softmax_steps(y))
    whole = Layout(sizes[outer:], "uint8", row_major=True)
    exact = softmax_in_float64()
    kernel = rows.softmax_codes(whole, whole, builder.isa, axis - outer, powers, steps, y.zero_point, in_float64=exact)
    builder.add(kernel, [source], str(output.outputs[0].name), builder.layouts[source])


def table(builder: ProgramBuilder, node: ir.Node, output: ir.Node) -> None:
    """A function of one tensor between codes: the file's own table, or what ONNX Runtime gives for each code."""
    result = str(output.outputs[0].name)
    step = LoweredStep(node, (str(codes_of(node.inputs[0])),), result, result)
    source, before = _function(builder, step.inputs[0])
    operator = known(node)
    if operator is not None and operator.is_looked_up:
        entries, _ = reference.bounds(step, {step.inputs[0]: integer.EVERY_CODE})
    else:
        entries = table_between(builder.lowered.model, node, builder.number, input_params(step), params_of(output))
    _look_up(builder, source, entries[before], step.output)


def _function(builder: ProgramBuilder, name: str) -> tuple[str, np.ndarray]:
    """The codes that a value is a function of, and the table; of any other value, itself."""
    return builder.functions.get(name, (name, np.arange(CODES, dtype=np.uint8)))


def _look_up(builder: ProgramBuilder, source: str, entries: np.ndarray, output: str) -> None:
    """Codes that are entries[source]."""
    name = builder.aligned([source])[0]
    builder.add(TableLookup(builder.isa, entries), [name], output, builder.layouts[name])
    builder.functions[output] = source, entries
