"""Layers in float whose input and output are rounded read it through Max of one tensor.

Between a DequantizeLinear and a QuantizeLinear ONNX Runtime rounds the constant weight of a Conv, ConvTranspose or Gemm
to 8 bits, with one scale for all channels (its WeightBiasQuantization), though the plan wants it as it is. Max of one
tensor is that tensor, and stands between: nothing moves a DequantizeLinear through it.
"""

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx import helper

from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import constant
from ptqc.ir.operators import Trait, clip_bounds, data_inputs, keeps_codes, named

ROUNDED = named(Trait.ROUNDED_WEIGHT)


def inside(output: str) -> str:
    """The name of what a layer reads, before the layer that gives `output`."""
    return f"{output}/read"


def with_float_layers(lowered: Lowered, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes of a lowered graph, with a Max in front of layers whose weights would be rounded again."""
    on_codes = {step.node for step in reference.steps(lowered)}
    remaining = {
        str(node.outputs[0].name)
        for node in lowered.model.graph
        if node.op_type in ROUNDED and not node.domain and node not in on_codes and _stands_between_codes(node)
    }
    for node in nodes:
        if node.output[0] in remaining and node.op_type in ROUNDED:
            read = inside(node.output[0])
            yield helper.make_node("Max", [node.input[0]], [read])
            node.input[0] = read
        yield node


def _stands_between_codes(node: ir.Node) -> bool:
    return _is_constant(node.inputs[1]) and comes_from_codes(node.inputs[0]) and becomes_codes(node.outputs[0])


def _is_constant(weight: ir.Value | None) -> bool:
    """Whether a weight is stored in float, widened by a Cast or not; what is dequantized is not rounded again."""
    node = weight.producer() if weight is not None else None
    return constant(node.inputs[0] if node is not None and node.op_type == "Cast" else weight) is not None


def comes_from_codes(value: ir.Value | None) -> bool:
    """Whether a value is codes in float, or what only moves them: ONNX Runtime moves the conversion behind that."""
    node = value.producer() if value is not None else None
    while node is not None and keeps_codes(node):
        node = data_inputs(node)[0].producer()
    return node is not None and node.op_type == "DequantizeLinear"


def becomes_codes(value: ir.Value) -> bool:
    """Whether a value is rounded, at once or behind what a rounding can move in front of."""
    readers = value.consumers()
    behind = [node.outputs[0] for node in readers if clip_bounds(node) is not None or keeps_codes(node)]
    return any(node.op_type == "QuantizeLinear" for node in readers) or any(map(becomes_codes, behind))


# Sums behind integer products are written as Sum, so that ONNX Runtime leaves the products on integer kernels.
#
# ONNX Runtime turns MatMul + Add into one Gemm, with a Reshape on each side where the product has more than two axes of
# known sizes. The Reshape then separates the product from its codes, and the Gemm computes in float. Sizes become known
# where whoever runs the file sets them, too. A Sum of two operands is the same arithmetic, and takes the same time.

# With as many axes as the product itself, an operand is not a bias in the eyes of ONNX Runtime.
LEAST_PRODUCT_AXES = 3


def with_products_apart(lowered: Lowered, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes of a lowered graph, with Sum in place of each Add of a bias to an integer product in float."""
    products = {name for name, operator in lowered.integer.items() if operator == "MatMul"}
    ranks = {
        str(value.name): len(value.shape)
        for value in (*lowered.model.graph.initializers.values(), *(v for n in lowered.model.graph for v in n.outputs))
        if value.shape is not None
    }
    for node in nodes:
        if node.op_type == "Add" and not node.domain and _adds_bias(node, products, ranks):
            summed = onnx.NodeProto()
            summed.CopyFrom(node)
            summed.op_type = "Sum"
            yield summed
        else:
            yield node


def _adds_bias(node: onnx.NodeProto, products: set[str], ranks: dict[str, int]) -> bool:
    """Whether one operand is an integer product, and the other has fewer axes than ONNX Runtime leaves alone."""
    pairs = (tuple(node.input), tuple(node.input)[::-1])
    return any(one in products and ranks.get(other, 0) < LEAST_PRODUCT_AXES for one, other in pairs)
