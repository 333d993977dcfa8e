"""How many rows the tables have that an input of integers indexes, as tokens index an embedding."""

from collections.abc import Iterator

import onnx_ir as ir

from ptqc.graph.nodes import constant, integer
from ptqc.operators import Trait, named

# Operators that change nothing about which rows are meant.
MOVES = named(Trait.RESHAPES, Trait.COPIES)


def rows_of_tables(value: ir.Value) -> int | None:
    """Rows of the smallest constant table that the value indexes, directly or moved; None if it indexes none."""
    return min(_rows(value), default=None)


def _rows(value: ir.Value) -> Iterator[int]:
    for node in value.consumers():
        if node.domain or node.graph is not value.graph:  # a branch need not be taken
            continue
        if node.op_type in MOVES and node.inputs[0] is value:
            yield from _rows(node.outputs[0])
        elif node.op_type == "Gather" and node.inputs[1] is value:
            table = constant(node.inputs[0])
            if table is not None:
                yield table.shape[integer(node, "axis", 0)]
