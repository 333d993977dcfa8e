"""Branches of If and bodies of Loop and Scan: their constants, and the branch that a constant condition takes."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import insert_before, take_over, unique_name
from ptqc.ir.nodes import constant, nodes_of

Known = Callable[[ir.Value | None], np.ndarray | None]


def inline_known_branches(model: ir.Model, known: Known = constant) -> bool:
    """Move the nodes of the branch taken in front of each If of known condition, and remove the If; True if any was.

    known: gives the condition, or None.
    """
    has_changed = False
    for node in nodes_of(model, "If"):
        condition = known(node.inputs[0])
        if condition is None:
            continue
        has_changed = True
        branch = node.attributes["then_branch" if condition.any() else "else_branch"].as_graph()
        results = list(branch.outputs)
        branch.outputs.clear()
        for value in list(branch.initializers.values()):
            _move_constant(model, branch, value)
        _move_nodes(model, branch, node)
        for output, result in zip(node.outputs, results, strict=True):
            _give(node, output, result)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return has_changed


def lift_constants(model: ir.Model) -> None:
    """Make constants of subgraphs constants of the main graph, which subgraphs may read, equal ones once.

    Only those of the main graph are packed. A constant that is the output of a subgraph stays in it, and so do strings.
    """
    lifted: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
    for graph in list(model.graph.subgraphs()):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or value.is_graph_input() or value.is_graph_output():
                continue
            if tensor.dtype == ir.DataType.STRING:  # which has no bytes to compare
                continue
            key = tensor.dtype, tuple(tensor.shape.numpy()), sha256(tensor.tobytes()).digest()
            if key in lifted:
                value.replace_all_uses_with(lifted[key])
                del graph.initializers[value.name or ""]
            else:
                _move_constant(model, graph, value)
                lifted[key] = value


def _move_constant(model: ir.Model, graph: ir.Graph, value: ir.Value) -> None:
    del graph.initializers[value.name or ""]
    value.name = unique_name(model.graph, value.name or "constant")
    model.graph.register_initializer(value)


def _move_nodes(model: ir.Model, branch: ir.Graph, target: ir.Node) -> None:
    """Branches of one If may use a name twice, so every value takes one that is free in the whole model."""
    assert target.graph is not None
    for node in list(branch):
        branch.remove(node)
        node.name = None
        for output in node.outputs:
            if output.name:
                output.name = unique_name(model.graph, output.name)
        target.graph.insert_before(target, node)


def _give(node: ir.Node, output: ir.Value, result: ir.Value) -> None:
    """Let the branch's result stand for the If's output, through an Identity where it cannot bear its name."""
    if not take_over(output, result):
        kept = insert_before(node, "Identity", [result])
        take_over(output, kept)
