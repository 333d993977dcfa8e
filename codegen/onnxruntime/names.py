"""Short names for everything that is not the model's interface: names are most of a small file's text."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, takewhile

import onnx

FIRST = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LATER = FIRST + "0123456789_"
# ONNX Runtime 1.18 makes those that read one value a Split called after one of them, and refuses two of one name.
FUSED_BY_NAME = ("Gather", "Slice")


def short_names(length: int, taken: frozenset[str]) -> Iterator[str]:
    """Names of `length` characters in a fixed order, longer ones when those run out."""
    for number in count():
        name, remainder = FIRST[number % len(FIRST)], number // len(FIRST)
        while remainder or len(name) < length:
            name += LATER[remainder % len(LATER)]
            remainder //= len(LATER)
        if name not in taken:
            yield name


def name_length(values: int) -> int:
    """Characters that so many names need."""
    length, room = 1, len(FIRST)
    while room < values:
        length, room = length + 1, room * len(LATER)
    return length


def shorten(
    graph: onnx.GraphProto, length: int, taken: Iterable[str] = (), varying: Collection[str] = frozenset()
) -> None:
    """Rename subgraphs, and every value but the inputs and outputs; drop inner shapes, and node names but a few.

    Names of fewer characters than `length` go to what stands in the file most often. taken: names that no value may
    get. varying: values that other plans of the model do not have, whose names have the length at least, so that what
    they add to the file is known before it is written.
    """
    interface = frozenset(value.name for value in (*graph.input, *graph.output))
    reserved = interface.union(taken)
    uses = Counter(name for name in _occurrences(graph) if name not in interface and name not in varying)
    shorter = takewhile(lambda name: len(name) < length, short_names(1, reserved))
    fresh = short_names(length, reserved)
    renamed: dict[str, str] = {name: name for name in interface}
    renamed |= zip((name for name, _ in uses.most_common()), shorter, strict=False)

    def new(name: str) -> str:
        if name and name not in renamed:
            renamed[name] = next(fresh)
        return renamed.get(name, "")

    _rename(graph, new, is_main=True)
    _name_nodes(graph, short_names(1, frozenset()))


def _occurrences(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of values, as often as they stand in a graph and in what is inside it."""
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (name for name in (*node.input, *node.output) if name)
        for inner in _subgraphs(node):
            yield from _occurrences(inner)


def _rename(graph: onnx.GraphProto, new: Callable[[str], str], *, is_main: bool) -> None:
    for tensor in graph.initializer:
        tensor.name = new(tensor.name)
    del graph.value_info[:]
    for node in graph.node:
        node.name = ""
        node.doc_string = ""
        node.ClearField("metadata_props")
        node.input[:] = [new(name) for name in node.input]
        for inner in _subgraphs(node):
            _rename(inner, new, is_main=False)
        node.output[:] = [new(name) for name in node.output]
    if not is_main:
        graph.name = "g"
        for value in (*graph.input, *graph.output):
            value.name = new(value.name)


def _name_nodes(graph: onnx.GraphProto, fresh: Iterator[str]) -> None:
    """Names for the nodes that ONNX Runtime may fuse by name, where there may be two such fusions in a graph."""
    readers = Counter(node.input[0] for node in graph.node if node.op_type in FUSED_BY_NAME)
    shared = {name for name, uses in readers.items() if uses > 1}
    for node in graph.node:
        if node.op_type in FUSED_BY_NAME and node.input[0] in shared and len(shared) > 1:
            node.name = next(fresh)
        for inner in _subgraphs(node):
            _name_nodes(inner, fresh)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
