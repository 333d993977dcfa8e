"""Names of values: each defined once, defined at all, and not in terms of itself."""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from ptqc.errors import ModelError
from ptqc.ir.proto_walk import every_graph, label
from ptqc.ir.protos import reads, subgraphs

Names = set[str]


def check_values(model: onnx.ModelProto) -> None:
    """Refuse values that are defined twice or not at all, outputs that no node makes, and sparse initializers."""
    _check_graph(model.graph, [])
    _check_made(model.graph)
    for function in model.functions:
        defined: Names = set()
        for name in function.input:
            _define(name, "input", defined)
        _check_nodes(function.node, defined, [])
        _check_outputs(function.output, [defined])


def check_no_cycles(model: onnx.ModelProto) -> None:
    """Refuse graphs in which a value depends on itself."""
    bodies = [graph.node for graph in every_graph(model)] + [function.node for function in model.functions]
    for nodes in bodies:
        try:
            TopologicalSorter(_dependencies(nodes)).prepare()
        except CycleError as error:
            first = nodes[error.args[1][0]]
            raise ModelError(f"the {label(first)} depends on its own result; ONNX graphs have no cycles") from error


def is_sorted(graph: onnx.GraphProto) -> bool:
    """Whether every node of the graph comes after the nodes that it depends on."""
    return all(user > source for user, sources in _dependencies(graph.node).items() for source in sources)


def _dependencies(nodes: Sequence[onnx.NodeProto]) -> dict[int, set[int]]:
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    return {index: {producer[name] for name in reads(node) if name in producer} for index, node in enumerate(nodes)}


def _check_graph(graph: onnx.GraphProto, outer: list[Names]) -> None:
    if graph.sparse_initializer:
        raise ModelError("has sparse initializers; expected dense ones: export the model again without sparsity")
    defined: Names = set()
    for value in graph.input:
        _define(value.name, "input", defined)
    constants: Names = set()
    for tensor in graph.initializer:
        _define(tensor.name, "initializer", constants)
    defined |= constants  # an initializer may be an input's default
    _check_nodes(graph.node, defined, outer)
    _check_outputs([value.name for value in graph.output], [*outer, defined])


def _check_nodes(nodes: Sequence[onnx.NodeProto], defined: Names, outer: list[Names]) -> None:
    for node in nodes:
        for name in node.output:
            if name:
                _define(name, "output of a node", defined)
    scopes = [*outer, defined]
    for node in nodes:
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                raise ModelError(f"the {label(node)} reads {name!r}, which nothing defines")
        for graph in subgraphs(node):
            _check_graph(graph, scopes)


def _check_outputs(names: Iterable[str], scopes: list[Names]) -> None:
    listed: Names = set()
    for name in names:
        if not any(name in scope for scope in scopes):
            raise ModelError(f"output {name!r} is computed by no node")
        if name in listed:
            raise ModelError(f"output {name!r} is listed twice; give each output a name of its own")
        listed.add(name)


def _check_made(graph: onnx.GraphProto) -> None:
    made = {name for node in graph.node for name in node.output}
    for value in graph.output:
        if value.name not in made:
            raise ModelError(
                f"output {value.name!r} is an input or a constant: leave it out, or put an Identity before it"
            )


def _define(name: str, kind: str, defined: Names) -> None:
    if not name:
        raise ModelError(f"has an {kind} without a name; export the model again")
    if name in defined:
        raise ModelError(f"{name!r} is defined twice (the second time as {kind}); each value has one definition")
    defined.add(name)
