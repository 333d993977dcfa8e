"""How many rows the tables have that an input of integers indexes, as tokens index an embedding."""

from collections.abc import Iterator

import onnx_ir as ir

from ptqc.ir.nodes import constant, integer, required
from ptqc.ir.operators import Trait, named

# Operators that change nothing about which rows are meant.
MOVES = named(Trait.RESHAPES, Trait.COPIES)


def rows_of_tables(value: ir.Value) -> int | None:
    """Rows of the smallest constant table that the value indexes, directly or moved; None if it indexes none."""
    return min(_rows(value, value.graph), default=None)


def _rows(value: ir.Value, graph: ir.Graph | ir.Function | None) -> Iterator[int]:
    """Of tables that nodes of this graph read, and both branches of each If in it."""
    for node in value.consumers():
        if node.domain or node.graph is not graph:
            continue
        if node.op_type in MOVES and node.inputs[0] is value:
            yield from _rows(required(node.outputs[0]), graph)
        elif node.op_type == "Gather" and node.inputs[1] is value:
            table = constant(node.inputs[0])
            if table is not None:
                yield table.shape[integer(node, "axis", 0)]
    if graph is not None and any(node.graph is not graph for node in value.consumers()):
        yield from _rows_of_branches(value, graph)


def _rows_of_branches(value: ir.Value, graph: ir.Graph | ir.Function) -> Iterator[int]:
    """Of the tables that both branches index, as in a decoder of two files in one, with a cache and without."""
    for node in graph:
        if node.op_type == "If" and not node.domain:
            branches = (attribute.as_graph() for attribute in node.attributes.values())
            found = [min(_rows(value, branch), default=None) for branch in branches]
            rows = [each for each in found if each is not None]
            if len(rows) == len(found):  # one branch alone need not be taken
                yield max(rows)
