"""Model-local functions: small files can expand into graphs that hang or crash every library."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter

import onnx

from ptqc.errors import ModelError
from ptqc.ir.proto_walk import all_nodes

MAX_EXPANDED_NODES = 1_000_000
MAX_CALL_DEPTH = 100

Key = tuple[str, str, str]


def key_of(function: onnx.FunctionProto) -> Key:
    """What a node's domain, operator and overload must be to call the function."""
    return (function.domain, function.name, function.overload)


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that are defined twice, call themselves, nest too deep or expand too far."""
    keys = [key_of(function) for function in model.functions]
    for key, count in Counter(keys).items():
        if count > 1:
            raise ModelError(f"function {_show(key)} is defined {count} times; expected once")
    known = set(keys)
    calls = {key_of(function): _calls(function.node, known) for function in model.functions}
    sizes, depths = _expand(calls, {key_of(function): _count(function.node) for function in model.functions})
    roots = _calls(model.graph.node, known)
    total = _count(model.graph.node) + sum(sizes[key] * count for key, count in roots.items())
    if total > MAX_EXPANDED_NODES:
        raise ModelError(f"its functions expand to {total:.3g} nodes; at most {MAX_EXPANDED_NODES:,} are accepted")
    deepest = max(roots, key=depths.__getitem__, default=None)
    if deepest is not None and depths[deepest] > MAX_CALL_DEPTH:
        raise ModelError(f"function {_show(deepest)} nests {depths[deepest]} calls; at most {MAX_CALL_DEPTH} work")


def _expand(calls: dict[Key, Counter[Key]], own: dict[Key, int]) -> tuple[dict[Key, int], dict[Key, int]]:
    """Nodes after inlining and depth of calls, for each function."""
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        raise ModelError(f"function {_show(error.args[1][0])} calls itself; ONNX allows no recursion") from error
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for key in order:
        sizes[key] = own[key] + sum(sizes[callee] * count for callee, count in calls[key].items())
        depths[key] = 1 + max((depths[callee] for callee in calls[key]), default=0)
    return sizes, depths


def _calls(nodes: "list[onnx.NodeProto]", keys: set[Key]) -> Counter[Key]:
    called = ((node.domain, node.op_type, node.overload) for node in all_nodes(nodes))
    return Counter(key for key in called if key in keys)


def _count(nodes: "list[onnx.NodeProto]") -> int:
    return sum(1 for _ in all_nodes(nodes))


def _show(key: Key) -> str:
    return repr(":".join(part for part in key if part))
