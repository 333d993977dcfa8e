"""Short names for everything that is not the model's interface: names are most of a small file's text."""

from collections.abc import Callable, Iterator
from itertools import count

import onnx

FIRST = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LATER = FIRST + "0123456789_"


def short_names(length: int, taken: frozenset[str]) -> Iterator[str]:
    """Names of `length` characters in a fixed order, longer ones when those run out."""
    for number in count():
        name, rest = FIRST[number % len(FIRST)], number // len(FIRST)
        while rest or len(name) < length:
            name += LATER[rest % len(LATER)]
            rest //= len(LATER)
        if name not in taken:
            yield name


def name_length(values: int) -> int:
    """Characters that so many names need."""
    length, room = 1, len(FIRST)
    while room < values:
        length, room = length + 1, room * len(LATER)
    return length


def shorten(graph: onnx.GraphProto, length: int) -> None:
    """Rename every value but the inputs and outputs, in subgraphs too; drop node names and inner shapes."""
    interface = frozenset(value.name for value in (*graph.input, *graph.output))
    fresh = short_names(length, interface)
    renamed: dict[str, str] = {name: name for name in interface}

    def new(name: str) -> str:
        if name and name not in renamed:
            renamed[name] = next(fresh)
        return renamed.get(name, "")

    _rename(graph, new, is_main=True)


def _rename(graph: onnx.GraphProto, new: Callable[[str], str], *, is_main: bool) -> None:
    for tensor in graph.initializer:
        tensor.name = new(tensor.name)
    del graph.value_info[:]
    for node in graph.node:
        node.name = ""
        node.doc_string = ""
        node.input[:] = [new(name) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new, is_main=False)
            for inner in attribute.graphs:
                _rename(inner, new, is_main=False)
        node.output[:] = [new(name) for name in node.output]
    if not is_main:
        for value in (*graph.input, *graph.output):
            value.name = new(value.name)
