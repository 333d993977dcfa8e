"""Sizes that are known although others of the same tensor are not: what Shape, Gather and Slice take from them.

The batch of an exported model is symbolic, its channels are numbers; Gather(Shape(x), 1) is a constant all the same.
"""

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import fix_value, names_of
from ptqc.ir.nodes import constant, input_of, integer, nodes_of, producer, scalar


def fold_known_sizes(model: ir.Model) -> None:
    """Replace by constants what only takes known sizes from a shape."""
    taken = names_of(model.graph)
    for node in nodes_of(model, "Shape", "Gather", "Slice", "Size"):
        sizes = _sizes_taken(node)
        if sizes is not None and _all_known(sizes):
            fix_value(model, node.outputs[0], np.array(sizes, np.int64), taken)


def _all_known(sizes: np.ndarray) -> bool:
    return all(isinstance(size, int) for size in sizes.ravel().tolist())


def _sizes_taken(node: ir.Node) -> np.ndarray | None:
    """The node's output, with None for each size that is not known; None if it takes no sizes."""
    if node.op_type == "Shape":
        return _shape(node)
    if node.op_type == "Size":
        return _count(node)
    source = producer(node.inputs[0], "Shape")
    sizes = _shape(source) if source is not None else None
    if sizes is None:
        return None
    return _gathered(node, sizes) if node.op_type == "Gather" else _sliced(node, sizes)


def _shape(node: ir.Node) -> np.ndarray | None:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    sizes = [size if isinstance(size, int) else None for size in source.shape]
    return np.array(sizes, object)[integer(node, "start", 0) : integer(node, "end", len(sizes))]


def _count(node: ir.Node) -> np.ndarray | None:
    sizes = _shape(node)
    return None if sizes is None or not _all_known(sizes) else np.array(int(np.prod(sizes)), object)


def _gathered(node: ir.Node, sizes: np.ndarray) -> np.ndarray | None:
    indices = constant(node.inputs[1])
    if indices is None or np.any(indices >= sizes.size) or np.any(indices < -sizes.size):
        return None
    return np.asarray(np.take(sizes, indices), object)


def _sliced(node: ir.Node, sizes: np.ndarray) -> np.ndarray | None:
    start, end = (scalar(input_of(node, index)) for index in (1, 2))
    if start is None or end is None or (input_of(node, 4) is not None and scalar(input_of(node, 4)) != 1):
        return None
    return np.asarray(sizes[int(start) : int(end)], object)
