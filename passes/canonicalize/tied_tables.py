"""An embedding that is also the matrix of a product: each has a constant of its own, of the same numbers.

Models of language often look words up in the table that gives their last scores (Press and Wolf 2017, Using the output
embedding to improve language models). A product with the table, or with its transpose, is then a layer like others;
`find_weights` sees that both constants have the same numbers, and the file stores them once.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import picks_rows
from ptqc.ir.nodes import add_constant, constant, integer, integers, producer, remove_dead
from ptqc.ir.operators import Trait, named
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

LAYERS = named(Trait.LAYER)
MATRIX = 2  # axes
SWAPPED = [1, 0]


@dataclass(frozen=True)
class TiedTables:
    """Give products a copy of the table that rows are picked of, turned if they read its transpose."""

    name: ClassVar[str] = "tied-tables"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each table."""
        notes = []
        for name, table in list(probed.model.graph.initializers.items()):
            if _separate(probed.model, table):
                notes.append(Note(self.name, name, "is both an embedding and the weight of a matmul: stored once"))
        return probed.rewritten(notes)


def _separate(model: ir.Model, table: ir.Value) -> bool:
    """Give all that multiplies with a table another constant; False where nothing does, or something else reads it."""
    array, readers = constant(table), list(table.uses())
    if array is None or array.ndim != MATRIX or array.dtype != np.float32:
        return False
    others = [(node, place) for node, place in readers if not picks_rows(node, table)]
    products = [node for node, place in others if place == 1 and _multiplies_turned(node)]
    turned = [node for node, _ in others if _is_turned(node)]
    if len(others) == len(readers) or not others or len(products) + len(turned) < len(others):
        return False
    if products:
        own = add_constant(model, array, f"{table.name}_matrix")
        for node in products:
            node.replace_input_with(1, own)
    if turned:
        own = add_constant(model, np.ascontiguousarray(array.T), f"{table.name}_turned")
        for node in turned:
            ir.convenience.replace_all_uses_with(node.outputs[0], own)
    remove_dead(model)
    return True


def _multiplies_turned(node: ir.Node) -> bool:
    return node.op_type in LAYERS and not node.domain and bool(integer(node, "transB", 0))


def _is_turned(node: ir.Node) -> bool:
    """Whether it exchanges the axes of a matrix, which products alone then read."""
    output = node.outputs[0]
    readers = list(output.uses())
    return (
        producer(output, "Transpose") is node
        and integers(node, "perm", SWAPPED) == SWAPPED
        and not output.is_graph_output()
        and bool(readers)
        and all(reader.op_type in LAYERS and place == 1 for reader, place in readers)
    )
