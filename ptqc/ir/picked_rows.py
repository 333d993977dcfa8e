"""Tables of which only rows are read: embeddings, that a Gather picks rows of at places that vary."""

import onnx_ir as ir

from ptqc.formats import Format
from ptqc.formats.planes import MULTIPLE, planes_of
from ptqc.ir.nodes import constant, integer, rank

# Tables of fewer numbers are unpacked when the file is loaded: they take less memory than the operators are worth.
LARGE = 2**18


def pickers(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that pick rows of a table, where nothing else reads it; none where something does."""
    nodes = tuple(value.consumers())
    is_picked = not value.is_graph_output() and all(picks_rows(node, value) for node in nodes)
    return nodes if is_picked else ()


def picks_rows(node: ir.Node, table: ir.Value) -> bool:
    """Whether a node picks rows of the table at places that vary, in the graph that has the table."""
    if node.op_type != "Gather" or node.domain or node.inputs[0] is not table or integer(node, "axis", 0) != 0:
        return False
    places = node.inputs[1]
    return constant(places) is None and bool(rank(places)) and node.graph is table.graph


def is_by_row(form: Format, shape: tuple[int, ...]) -> bool:
    """Whether each row of a table in this format takes whole bytes of each plane, and can be picked as it is stored."""
    if len(shape) != 2 or not (form.is_scaled and form.is_regular):
        return False
    width = shape[1]
    return width % form.group == 0 and (not planes_of(form.bits) or width // form.group % MULTIPLE == 0)


def stays_packed(form: Format, shape: tuple[int, ...]) -> bool:
    """Whether a table that only rows are picked of stays as it is stored when the file is loaded."""
    return is_by_row(form, shape) and shape[0] * shape[1] >= LARGE
