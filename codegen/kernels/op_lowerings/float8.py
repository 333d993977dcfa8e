"""Layers that multiply FP8, where a target has kernels for them; all others compute with the real values of codes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.drafts import Float8Layer
from ptqc.codegen.kernels.emission import Emission
from ptqc.codegen.kernels.families.real_stages import RealStage
from ptqc.codegen.kernels.float8 import Float8Kernels, Float8Numbers
from ptqc.codegen.kernels.op_lowerings.layers import MATRIX, bias_of_rows, rows, vectors
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Built
from ptqc.ir.nodes import input_of, integer, number

TYPE = ir.DataType.FLOAT8E4M3FN
PLANE = 2  # axes


@dataclass(frozen=True, eq=False)
class _Weight:
    """codes: uint8, outputs first. scale: float32 (outputs)."""

    codes: np.ndarray
    scale: np.ndarray


def layer(emission: Emission, node: ir.Node) -> bool:
    """Add the kernel of a layer, where the target has one of its own for it."""
    own = emission.isa.float8
    if own is None or node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return False
    weight = _weight(emission, node)
    if weight is None or weight.codes.shape[1] % own.channels or not _is_plain(node):
        return False
    found = emission.in_float8(node.inputs[0])
    if found is None:
        return False
    name, scale = found
    if node.op_type == "Conv":
        _convolution(emission, node, own, weight, name, scale)
    else:
        _product(emission, node, own, weight, name, scale)
    return True


def _is_plain(node: ir.Node) -> bool:
    """Whether a layer has one group and reads rows as they lie."""
    return integer(node, "group", 1) == 1 and not integer(node, "transA", 0)


def _weight(emission: Emission, node: ir.Node) -> _Weight | None:
    """The codes of a layer's weight, if it is FP8 with a scale for each output or one for all."""
    maker = node.inputs[1].producer() if node.inputs[1] is not None else None
    stored = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else None
    if maker is None or stored is None or stored.dtype != TYPE or not emission.is_constant(stored):
        return None
    codes, scale = emission.number(stored).view(np.uint8), emission.number(maker.inputs[1])
    is_transposed = node.op_type == "MatMul" or (node.op_type == "Gemm" and not integer(node, "transB", 0))
    if node.op_type != "Conv" and codes.ndim != MATRIX:
        return None
    if scale.size > 1 and integer(maker, "axis", 1) % codes.ndim != int(is_transposed):
        return None
    codes = codes.T if is_transposed else codes
    return _Weight(codes, np.broadcast_to(scale.reshape(-1), (len(codes),)))


def _convolution(
    emission: Emission, node: ir.Node, own: Float8Kernels, weight: _Weight, name: str, scale: np.float32
) -> None:
    codes = weight.codes
    source, window = slide(emission, node, name, codes.shape[2:], 0.0)
    planes = codes.reshape(*codes.shape[:2], *(1,) * (PLANE + 2 - codes.ndim), *codes.shape[2:])
    given = input_of(node, 2)
    bias = np.zeros(len(codes), np.float32) if given is None else emission.number(given)
    layout = Layout(emission.shape(node.outputs[0]), "float32")
    _add(emission, own, Float8Numbers(window, planes, scale * weight.scale, bias), source, node.outputs[0], layout)


def _product(
    emission: Emission, node: ir.Node, own: Float8Kernels, weight: _Weight, name: str, scale: np.float32
) -> None:
    codes, source = weight.codes, emission.plain(name)
    factor = scale * weight.scale * np.float32(number(node, "alpha", 1.0))
    made = Float8Numbers(
        vectors(emission.layouts[source]),
        codes.reshape(*codes.shape, 1, 1),
        factor,
        bias_of_rows(emission, node, len(codes)),
    )
    _add(emission, own, made, source, node.outputs[0], rows(emission, node, "float32"))


def _add(
    emission: Emission, own: Float8Kernels, made: Float8Numbers, source: str, output: ir.Value, layout: Layout
) -> None:
    def write(x: Layout, y: Layout, stages: Sequence[RealStage]) -> Built:
        return own.write(x, y, made, stages)

    draft = Float8Layer(made.window.kernel, write, is_dense=True, channels=own.channels)
    emission.add(draft, [source], str(output.name), layout)
