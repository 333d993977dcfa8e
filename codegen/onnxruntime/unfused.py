"""Sums behind integer products are written as Sum, so that ONNX Runtime leaves the products on integer kernels.

ONNX Runtime turns MatMul + Add into one Gemm, with a Reshape on each side where the product has more than two axes of
known sizes. The Reshape then separates the product from its codes, and the Gemm computes in float. Sizes become known
where whoever runs the file sets them, too. A Sum of two operands is the same arithmetic, and takes the same time.
"""

from collections.abc import Iterable, Iterator

import onnx

from ptqc.ir.lowered import Lowered

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
