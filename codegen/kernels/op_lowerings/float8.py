"""Layers that multiply FP8, where a target has kernels for them; all others compute with the real values of codes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.backend import Float8Kernels, Float8LayerSpec
from ptqc.codegen.kernels.families.real_stages import RealStage
from ptqc.codegen.kernels.op_lowerings.layers import MATRIX, bias_of_rows, rows, vectors
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.kernels.pending import Float8Layer
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout
from ptqc.ir.nodes import input_of, integer, number

TYPE = ir.DataType.FLOAT8E4M3FN
PLANE = 2  # axes


@dataclass(frozen=True, eq=False)
class _Weight:
    """codes: uint8, outputs first. scale: float32 (outputs)."""

    codes: np.ndarray
    scale: np.ndarray


def layer(builder: ProgramBuilder, node: ir.Node) -> bool:
    """Add the kernel of a layer, where the target has one of its own for it."""
    kernels = builder.backend.float8
    if kernels is None or node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return False
    weight = _weight(builder, node)
    if weight is None or weight.codes.shape[1] % kernels.channels or not _is_plain(node):
        return False
    result = builder.in_float8(node.inputs[0])
    if result is None:
        return False
    name, scale = result
    if node.op_type == "Conv":
        _convolution(builder, node, kernels, weight, name, scale)
    else:
        _product(builder, node, kernels, weight, name, scale)
    return True


def _is_plain(node: ir.Node) -> bool:
    """Whether a layer has one group and reads rows as they lie."""
    return integer(node, "group", 1) == 1 and not integer(node, "transA", 0)


def _weight(builder: ProgramBuilder, node: ir.Node) -> _Weight | None:
    """The codes of a layer's weight, if it is FP8 with a scale for each output or one for all."""
    maker = node.inputs[1].producer() if node.inputs[1] is not None else None
    stored = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else None
    if maker is None or stored is None or stored.dtype != TYPE or not builder.is_constant(stored):
        return None
    codes, scale = builder.number(stored).view(np.uint8), builder.number(maker.inputs[1])
    is_transposed = node.op_type == "MatMul" or (node.op_type == "Gemm" and not integer(node, "transB", 0))
    if node.op_type != "Conv" and codes.ndim != MATRIX:
        return None
    if scale.size > 1 and integer(maker, "axis", 1) % codes.ndim != int(is_transposed):
        return None
    codes = codes.T if is_transposed else codes
    return _Weight(codes, np.broadcast_to(scale.reshape(-1), (len(codes),)))


def _convolution(
    builder: ProgramBuilder, node: ir.Node, kernels: Float8Kernels, weight: _Weight, name: str, scale: np.float32
) -> None:
    codes = weight.codes
    source, window = slide(builder, node, name, codes.shape[2:], 0.0)
    planes = codes.reshape(*codes.shape[:2], *(1,) * (PLANE + 2 - codes.ndim), *codes.shape[2:])
    bias = builder.number(node.inputs[2]) if input_of(node, 2) is not None else np.zeros(len(codes), np.float32)
    y = Layout(builder.shape(node.outputs[0]), "float32")
    spec = Float8LayerSpec(builder.layouts[source], y, window, planes, scale * weight.scale, bias)
    _add(builder, kernels, spec, source, node.outputs[0])


def _product(
    builder: ProgramBuilder, node: ir.Node, kernels: Float8Kernels, weight: _Weight, name: str, scale: np.float32
) -> None:
    codes, source = weight.codes, builder.row_major(name)
    x, factor = builder.layouts[source], scale * weight.scale * np.float32(number(node, "alpha", 1.0))
    planes, bias = codes.reshape(*codes.shape, 1, 1), bias_of_rows(builder, node, len(codes))
    spec = Float8LayerSpec(x, rows(builder, node, "float32"), vectors(x), planes, factor, bias)
    _add(builder, kernels, spec, source, node.outputs[0])


def _add(builder: ProgramBuilder, kernels: Float8Kernels, spec: Float8LayerSpec, source: str, output: ir.Value) -> None:
    def write(x: Layout, y: Layout, stages: Sequence[RealStage]) -> KernelSource:
        return kernels.layer(replace(spec, x=x, y=y, stages=stages))

    pending = Float8Layer(spec.window.kernel, write, is_dense=True, channels=kernels.channels)
    builder.add(pending, [source], str(output.name), spec.y)
