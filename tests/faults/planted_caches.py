"""Faults of packed caches: operators that pack or unpack otherwise than the forms say, or forms than the operators."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from planting import Changed, Fault, given

from ptqc.kv_cache import nibbles
from ptqc.kv_cache.block_float import BlockFloat
from ptqc.kv_cache.form import NodeDraft
from ptqc.kv_cache.scaled import ScaledRows
from ptqc.passes.kv_cache import wrap

# What the check of packed caches says.
KEPT, PACKED, READ, BITS = "does not hand on", "with an error of", "do not unpack", "to other bits"
HEADS, PLACES = 1, 2
Parts = Sequence[ir.Value]


def turned(nodes: NodeDraft, x: ir.Value, axis: int) -> ir.Value:
    """The first along an axis comes last."""
    one, many, along = nodes.whole(1), nodes.whole(1 << 30), nodes.whole(axis)
    parts = (nodes.op("Slice", x, start, end, along) for start, end in ((one, many), (nodes.whole(0), one)))
    return nodes.op("Concat", *parts, axis=axis)


def unpacked_from(change: Callable[[NodeDraft, Parts], Parts]) -> Changed:
    """Unpacking reads other parts."""
    return lambda right: lambda self, nodes, parts: right(self, nodes, change(nodes, parts))


def packed_to(change: Callable[[NodeDraft, Parts], Parts]) -> Changed:
    """Packing gives other parts."""
    return lambda right: lambda self, nodes, x: change(nodes, right(self, nodes, x))


def other_scales(nodes: NodeDraft, parts: Parts) -> Parts:
    return parts[0], turned(nodes, parts[1], HEADS)


def other_places(nodes: NodeDraft, parts: Parts) -> Parts:
    return turned(nodes, parts[0], PLACES), parts[1]


def with_other(op_type: str, instead: str) -> Changed:
    """Nodes of one operator become those of another."""
    return lambda right: (
        lambda self, name, *inputs, **more: right(self, instead if name == op_type else name, *inputs, **more)
    )


def halves_swapped(right: Any) -> Any:
    """The upper halves of bytes first."""

    def parting(nodes: NodeDraft, pairs: ir.Value) -> ir.Value:
        joined = right(nodes, pairs).producer()
        return nodes.op("Concat", *joined.inputs[::-1], axis=-1)

    return parting


def in_front(right: Any) -> Any:
    """What is new comes before the past."""

    def pack_output(model: ir.Model, *rest: Any) -> None:
        right(model, *rest)
        for node in model.graph:
            if node.op_type == "Concat" and node.inputs[0] in rest[-1].stored:
                past, new = node.inputs
                node.replace_input_with(0, new)
                node.replace_input_with(1, past)

    return pack_output


def unsorted(_self: BlockFloat, _nodes: NodeDraft, x: ir.Value, _channels: int, _order: Sequence[int]) -> ir.Value:
    return x


def inverse(self: BlockFloat, nodes: NodeDraft, x: ir.Value, channels: int, order: Sequence[int]) -> ir.Value:
    """The order that undoes the right one."""
    return RIGHT(self, nodes, x, channels, np.argsort(order).tolist())


RIGHT = BlockFloat._moving
FAULTS: dict[str, Fault] = {
    "scales of another head": Fault(ScaledRows, "packing", packed_to(other_scales), "int8", PACKED),
    "scales of another head read": Fault(ScaledRows, "unpacking", unpacked_from(other_scales), "int8", READ),
    "exponents of another head read": Fault(BlockFloat, "unpacking", unpacked_from(other_scales), "bfp4", READ),
    "the next place read": Fault(ScaledRows, "unpacking", unpacked_from(other_places), "int4", READ),
    "what is new before the past": Fault(wrap, "_pack_output", in_front, "int8", KEPT),
    "halves of bytes swapped": Fault(nibbles, "parting", halves_swapped, "int4", READ),
    "halves of bytes swapped in NumPy": Fault(nibbles, "joined", given(lambda x: x % 16 * 16 + x // 16), "int4", BITS),
    "sign lost": Fault(NodeDraft, "op", with_other("Sub", "Add"), "int8", READ),
    "rounded down": Fault(NodeDraft, "op", with_other("Round", "Floor"), "int8", PACKED),
    "channels not sorted": Fault(BlockFloat, "_moving", lambda _right: unsorted, "bfp4-sorted", f"{READ}|{PACKED}"),
    "channels sorted the wrong way": Fault(BlockFloat, "_moving", lambda _: inverse, "bfp4-sorted", f"{READ}|{PACKED}"),
    "a digit of halves lost": Fault(NodeDraft, "cast", lambda _right: coarse, "float16", PACKED),
}


def coarse(nodes: NodeDraft, x: ir.Value, kind: ir.DataType) -> ir.Value:
    """Through bfloat16 to float16."""
    if kind == ir.DataType.FLOAT16:
        x = nodes.op("Cast", nodes.op("Cast", x, to=int(ir.DataType.BFLOAT16)), to=int(ir.DataType.FLOAT))
    return nodes.op("Cast", x, to=int(kind))
