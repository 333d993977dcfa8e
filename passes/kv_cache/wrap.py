"""Caches of a model packed: operators that unpack behind its inputs, and pack in front of the outputs.

The model stays as it is, whatever it does with its caches, and sees real values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.errors import UsageError
from ptqc.ir.layers import AXES, Cache, find_caches
from ptqc.ir.nodes import infer_shapes, integer, producer, unique_name
from ptqc.kv_cache.block_float import BlockFloat
from ptqc.kv_cache.form import CacheForm, CachePart, NodeDraft
from ptqc.kv_cache.known import FIXED, SORTED, forms_of_documents, mark
from ptqc.passes.kv_cache.key_order import order_of_all

PLACES = 2  # the axis that grows
OLDEST = 12  # Clip of integers came with this opset


def check_packable(model: ir.Model, cache: Cache, form: CacheForm) -> None:
    """Raises UsageError where a cache cannot have a form."""
    if (reason := refusal(model, cache, form)) is not None:
        raise UsageError(f"kv_cache: {cache.name!r} cannot be {form.name}: {reason}")


def refusal(model: ir.Model, cache: Cache, form: CacheForm) -> str | None:
    """Why a cache cannot have a form, if it cannot."""
    channels = cache.channels
    if cache.past.dtype != ir.DataType.FLOAT:
        return f"it is of {cache.past.dtype}; only float32 can be packed"
    if channels is None:
        return "its number of channels is open; give a model that states it"
    if (opset := model.graph.opset_imports.get("", 0)) < OLDEST:
        return f"the model has opset {opset}, and packing needs {OLDEST} or newer; convert it"
    return form.refusal(channels)


def pack_caches(model: ir.Model, forms: Mapping[str, CacheForm]) -> None:
    """Change a model in place. forms: by the name of the input, for caches that `refusal` says nothing of."""
    for cache in find_caches(model):
        if cache.name in forms:
            channels = cache.channels
            assert channels is not None
            past = _unpack_input(model, cache.past, channels, forms[cache.name])
            _pack_output(model, cache.present, channels, forms[cache.name], past)
    infer_shapes(model)


@dataclass(frozen=True)
class _Past:
    """A cache that comes in. stored: its parts. real: what the model reads."""

    stored: Sequence[ir.Value]
    real: ir.Value


def _unpack_input(model: ir.Model, past: ir.Value, channels: int, form: CacheForm) -> _Past:
    graph, uses, nodes = model.graph, list(past.uses()), NodeDraft(model, str(past.name))
    sizes, parts = _sizes(past), form.parts(channels)
    stored = [past, *(ir.Value(name=f"{past.name}{part.suffix}") for part in parts[1:])]
    _declare(stored, parts, sizes)
    start = graph.inputs.index(past) + 1
    graph.inputs[start:start] = stored[1:]
    result = form.unpacking(nodes, stored)
    graph.insert_before(graph[0], nodes.added)
    for node, place in uses:
        node.replace_input_with(place, result)
    return _Past(stored, result)


def _pack_output(model: ir.Model, present: ir.Value, channels: int, form: CacheForm, past: _Past) -> None:
    """channels: of what it continues; its own need not be declared. past: that."""
    graph, name, nodes = model.graph, str(present.name), NodeDraft(model, str(present.name))
    place, sizes, parts = graph.outputs.index(present), _sizes(present), form.parts(channels)
    present.name = unique_name(graph, f"{name}_real")
    present.shape = ir.Shape([*sizes, channels])
    new = _added(present, past.real)
    if new is None:
        stored = form.packing(nodes, present)
    else:  # what was packed before would come out with the same bits
        new.shape = ir.Shape([*(new.shape or [None] * PLACES)[:PLACES], None, channels])
        added = form.packing(nodes, new)
        stored = [nodes.op("Concat", *both, axis=PLACES) for both in zip(past.stored, added, strict=True)]
    for part, value in zip(parts, stored, strict=True):
        value.name = f"{name}{part.suffix}"
    mark(stored[0], form)
    _declare(stored, parts, sizes)
    graph.extend(nodes.added)
    graph.outputs[place] = stored[0]
    graph.outputs[place + 1 : place + 1] = stored[1:]


def _added(present: ir.Value, past: ir.Value) -> ir.Value | None:
    """What comes behind all of the past, where that is how a cache goes on."""
    node = producer(present, "Concat")
    if node is None or len(node.inputs) != 2 or integer(node, "axis", 0) not in (PLACES, PLACES - AXES):
        return None
    return node.inputs[1] if node.inputs[0] is past else None


def _sizes(value: ir.Value) -> Sequence[int | ir.SymbolicDim]:
    """Texts, heads and places."""
    assert value.shape is not None
    return value.shape[:-1]


def _declare(values: Sequence[ir.Value], parts: Sequence[CachePart], sizes: Sequence[int | ir.SymbolicDim]) -> None:
    for part, value in zip(parts, values, strict=True):
        value.shape, value.type = ir.Shape([*sizes, part.size]), ir.TensorType(part.dtype)


# Forms by name with what they take from samples, and models whose caches have the forms that documents tell.


def form_named(name: str, caches: Sequence[np.ndarray]) -> CacheForm:
    """A form. caches: (texts, heads, places, channels) of samples, by whose energies channels are sorted."""
    return BlockFloat(tuple(order_of_all(caches).tolist())) if name == SORTED else FIXED[name]


def with_caches(model: ir.Model, documents: Sequence[Mapping[str, Any]]) -> ir.Model:
    """A copy of a model with its caches packed as documents say: what `to_json` made, with the `name` of the input."""
    packed = model.clone()
    pack_caches(packed, forms_of_documents(documents))
    return packed
