"""Convolutions and matrix products, on codes and in float32."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.backend import KernelBackend, LayerSpec
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.kernels.families import dense, depthwise, depthwise_dot4, matmul
from ptqc.codegen.kernels.families.real_stages import RealStage, functions_of
from ptqc.codegen.kernels.int16_accumulation import Int16Accumulation, suited
from ptqc.codegen.kernels.op_lowerings import kv_attention
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.kernels.pending import IntegerLayer, IntegerProduct, PendingKernel, RealLayer
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.kernels.tiling import SECOND_CACHE, Dense
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp, Window
from ptqc.ir.integer_arithmetic import multiplier
from ptqc.ir.nodes import input_of, integer, number
from ptqc.ir.operators.base import LoweredStep, has_float_output, input_params, layer_constants, output_params

BFLOAT_BYTES, FLOAT_BYTES = 2, 4
MATRIX, BATCHED_MATRICES = 2, 3  # axes


def integer_conv(builder: ProgramBuilder, step: LoweredStep) -> None:
    """A convolution of codes that gives codes."""
    weights, scale, bias = layer_constants(step)
    x, y = input_params(step), output_params(step)
    source, window = slide(builder, step.node, step.inputs[0], weights.shape[2:], x.zero_point)
    groups = integer(step.node, "group", 1)
    layout = Layout(builder.shape(step.node.outputs[0]), "uint8")
    requantization = Requantization(
        _with_zero_point(weights, bias, x.zero_point), multiplier(x, scale, y), y.zero_point
    )
    spec = LayerSpec(builder.layouts[source], layout, window, weights, requantization, groups=groups)
    is_depthwise = _is_depthwise(weights.shape, groups) and not builder.isa.by_element
    isa = suited(builder.isa, weights)
    if is_depthwise and depthwise_dot4.takes(window, isa):
        isa = depthwise_dot4.fitting_isa(isa, window.channels)
        by_column = depthwise_dot4.ColumnLoops(window, isa, Int16Accumulation.of(isa, weights))
        builder.add(IntegerLayer(spec, partial(depthwise_dot4.integer, loops=by_column)), [source], step.output, layout)
    elif is_depthwise:
        builder.add(depthwise.integer(spec, isa), [source], step.output, layout)
    else:
        spec = replace(spec, weights=weights.reshape(*weights.shape[:2], *window.kernel))
        loops = Dense(window, len(weights), groups, isa, 1, Int16Accumulation.of(isa, weights))
        builder.add(IntegerLayer(spec, partial(_dense, builder.backend, loops)), [source], step.output, layout)


def _dense(backend: KernelBackend, loops: Dense, layer: LayerSpec) -> KernelSource:
    """A layer as the target writes it, where it has its own way."""
    return backend.layer(layer) or dense.integer(layer, loops)


def integer_product(builder: ProgramBuilder, step: LoweredStep) -> None:
    """A product of codes with a matrix; step.output is codes, or the node's own output where it stays float."""
    weights, scale, bias = layer_constants(step)
    if integer(step.node, "transB", 0) == 0:
        weights = weights.T
    x, real = input_params(step), has_float_output(step)
    y = None if real else output_params(step)
    factor = np.float32(x.scale) * scale if y is None else multiplier(x, scale, y)
    source = builder.row_major(step.inputs[0])
    layout = rows(builder, step.node, "float32" if real else "uint8")
    window = vectors(builder.layouts[source])
    isa = suited(builder.isa, weights)
    sums = Int16Accumulation.of(isa, weights)
    loops = Dense(window, len(weights), 1, isa, 1, sums, is_streamed=_are_many(builder))
    bias = _with_zero_point(weights, bias, x.zero_point)
    planes = weights.reshape(*weights.shape, 1, 1)
    requantization = Requantization(bias, np.broadcast_to(factor, (len(weights),)), 0 if y is None else y.zero_point)
    spec = LayerSpec(builder.layouts[source], layout, window, planes, requantization)
    kernel: KernelSource | PendingKernel
    if y is not None:
        kernel = IntegerLayer(spec, partial(_dense, builder.backend, loops))
    elif builder.isa.by_element:
        kernel = _dense(builder.backend, loops, spec)
    else:

        def staged(x: Layout, y: Layout, stages: Sequence[RealStage]) -> KernelSource:
            return dense.integer(replace(spec, x=x, y=y), loops, stages)

        kernel = IntegerProduct(window.kernel, staged, is_dense=True)
    builder.add(kernel, [source], step.output, layout)


def _are_many(builder: ProgramBuilder) -> bool:
    """Whether the weights of all layers together are too many to stay near a core from run to run."""
    names = builder.lowered.formats
    return sum(builder.constants[name].size for name in names if name in builder.constants) > SECOND_CACHE


def conv(builder: ProgramBuilder, node: ir.Node) -> None:
    """A convolution in float32."""
    weights = builder.number(node.inputs[1])
    bias = builder.number(node.inputs[2]) if input_of(node, 2) is not None else np.zeros(len(weights), np.float32)
    groups, coded = integer(node, "group", 1), _coded(builder, node)
    pairs = _in_pairs(builder, node, weights.shape[1]) if coded is not None else None
    name = pairs or builder.real(node.inputs[0], stored=_is_depthwise(weights.shape, groups))
    source, window = slide(builder, node, name, weights.shape[2:], 0.0)
    layout = Layout(builder.shape(node.outputs[0]), "float32")

    is_depthwise = _is_depthwise(weights.shape, groups)

    def layer(x: Layout, y: Layout, stages: Sequence[RealStage]) -> KernelSource:
        if is_depthwise:
            return depthwise.real(x, y, window, builder.isa, weights, bias, functions_of(stages))
        loops = Dense(window, len(weights), groups, builder.isa, BFLOAT_BYTES if pairs else FLOAT_BYTES)
        if coded is not None and pairs:
            return dense.bfloat(x, y, loops, coded, bias, stages)
        return dense.real(x, y, loops, coded or weights, bias, stages)

    builder.add(RealLayer(window.kernel, layer, not is_depthwise), [source], str(node.outputs[0].name), layout)


def product(builder: ProgramBuilder, node: ir.Node) -> None:
    """Gemm or MatMul in float32."""
    if not builder.is_constant(node.inputs[1]) or builder.number(node.inputs[1]).ndim != MATRIX:
        _product_of_activations(builder, node)
        return
    weights = builder.number(node.inputs[1])
    source = builder.real(node.inputs[0])
    if not builder.layouts[source].is_io:
        source = builder.row_major(source)
    if integer(node, "transA", 0):
        raise UnsupportedOp("only matmuls of rows with one constant matrix have a kernel")
    weights = weights if integer(node, "transB", 0) else weights.T
    bias = bias_of_rows(builder, node, len(weights))
    layout_in, layout = builder.layouts[source], rows(builder, node, "float32")
    loops = Dense(vectors(layout_in), len(weights), 1, builder.isa, FLOAT_BYTES)
    scaled = np.asarray(weights * np.float32(number(node, "alpha", 1.0)))
    planes = scaled.reshape(*scaled.shape, 1, 1)

    def layer(x: Layout, y: Layout, stages: Sequence[RealStage]) -> KernelSource:
        return dense.real(x, y, loops, planes, bias, stages)

    builder.add(RealLayer(loops.window.kernel, layer, is_dense=True), [source], str(node.outputs[0].name), layout)


def bias_of_rows(builder: ProgramBuilder, node: ir.Node, outputs: int) -> np.ndarray:
    """What a product adds to every row, float32."""
    if input_of(node, 2) is None:
        return np.zeros(outputs, np.float32)
    constant = builder.number(node.inputs[2])
    if constant.size > max(constant.shape[-1:], default=1):
        raise UnsupportedOp("its bias differs from row to row")
    return np.asarray(np.broadcast_to(constant.reshape(-1), (outputs,)) * number(node, "beta", 1.0), np.float32)


def _product_of_activations(builder: ProgramBuilder, node: ir.Node) -> None:
    if node.op_type != "MatMul":
        raise UnsupportedOp("of two tensors that vary, only a MatMul has a kernel")
    if kv_attention.product(builder, node):
        return
    first, second, output = *node.inputs, node.outputs[0]
    ranks = {len(builder.sizes(value)) for value in (first, second, output)}
    if builder.outer(first, second, output, touched=len(ranks) > 1 or max(ranks) < BATCHED_MATRICES):
        names = [builder.row_major(builder.read(value)) for value in (first, second)]
        layout = rows(builder, node, "float32")
        a, b = (builder.layouts[name] for name in names)
        builder.add(matmul.real(a, b, layout, builder.isa), names, str(output.name), layout)
        return
    (one, a), (other, b) = builder.whole(first), builder.whole(second)
    left, right = matmul.matrices(a, b)
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
    kernel = matmul.real(left, right, Layout(shape, "float32", row_major=True), builder.isa)
    builder.add_whole(kernel, [one, other], [a, b], output)


def rows(builder: ProgramBuilder, node: ir.Node, dtype: str) -> Layout:
    """The layout of a product: rows, one after the other."""
    return Layout(builder.shape(node.outputs[0]), dtype, row_major=True)


def vectors(inputs: Layout) -> Window:
    """Rows of a row-major value as the pixels of a plane with its channels last."""
    channels = inputs.shape[-1]
    return Window(channels, (1, inputs.elements // channels))


def _in_pairs(builder: ProgramBuilder, node: ir.Node, inputs: int) -> str | None:
    """A layer's input in bfloat16, if pairs of such numbers are multiplied at once and none is cut by groups."""
    return builder.in_bfloat16(node.inputs[0]) if builder.isa.bfloats and inputs % 2 == 0 else None


def _coded(builder: ProgramBuilder, node: ir.Node) -> dense.CodedWeights | None:
    """The int8 codes of a layer's weight, if that is how it lies in the file."""
    maker = node.inputs[1].producer() if node.inputs[1] is not None else None
    codes = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else None
    form = builder.lowered.formats.get(str(codes.name)) if codes is not None else None
    if maker is None or codes is None or form is None or not form.has_codes or integer(maker, "axis", 1):
        return None
    array, scale = builder.number(codes), builder.number(maker.inputs[1])
    rank = array.ndim - 2
    planes = array.reshape(*array.shape[:2], *(1,) * (2 - rank), *array.shape[2:])
    return dense.CodedWeights(planes, np.broadcast_to(scale, (len(array),)))


def _with_zero_point(weights: np.ndarray, bias: np.ndarray | None, zero_point: int) -> np.ndarray:
    """Bias of Σ x·w that stands for Σ (x − zero_point)·w, in wrapping int32 arithmetic."""
    sums = weights.reshape(len(weights), -1).astype(np.int64).sum(1) * zero_point
    total = -sums if bias is None else bias.astype(np.int64) - sums
    return np.asarray(total.astype(np.int32))


def _is_depthwise(shape: Sequence[int], groups: int) -> bool:
    return groups == shape[0] > 1 == shape[1]
