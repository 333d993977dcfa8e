"""`--kv-cache int8` or `int4`: a decoder keeps the keys and values of earlier tokens as codes.

Each row of a cache, the channels of one head at one place, has a scale of its own: s = max|x| / L with L = 127 or 7,
and codes round(x / s) in −L … L, stored as bytes with L + 1 added; of 4 bits two in a byte, the first half of the
channels low, the second half high. What is unpacked packs to the same codes and scales again (L · s / L = s in float32,
for every s that is such a quotient), so a place keeps its codes from run to run. All of it is done by operators of ONNX
around the model, which stays as it is; they compute in float.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import UsageError
from ptqc.execute.onnxruntime import Feeds, Runner, tensors_of
from ptqc.graph.caches import Cache, find_caches
from ptqc.graph.sites import IN_FLOAT
from ptqc.losses import recognize
from ptqc.losses.total import OutputLoss
from ptqc.notes import Level, Note
from ptqc.options import KvCache
from ptqc.passes.rewrite.tools.graph import add_constant, infer_shapes, unique_name
from ptqc.reading import ModelSource
from ptqc.text import number

STEP = "kv-cache"
SCALE = ".scale"  # behind the name of a cache: its scales
FLOAT, OLDEST = "float", 11  # Round came with this opset
LEVELS = {"int8": 127, "int4": 7}
HALF = 16.0  # a byte has two codes of 4 bits
TINY = np.float32(1e-30)  # in place of a scale of 0
JUDGED = 16


@dataclass(frozen=True)
class Packing:
    """How the rows of one cache are stored."""

    levels: int

    @property
    def pairs(self) -> bool:
        """Whether a byte holds two codes."""
        return self.levels < HALF / 2

    def pack(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes (…, channels) or (…, channels / 2) in uint8, and scales (…, 1) in float32."""
        scale = np.abs(x).max(-1, keepdims=True, initial=0) / np.float32(self.levels)
        codes = np.round(x / np.maximum(scale, TINY)) + np.float32(self.levels + 1)
        if self.pairs:
            low, high = np.split(codes, 2, axis=-1)
            codes = low + high * np.float32(HALF)
        return codes.astype(np.uint8), scale.astype(np.float32)

    def unpack(self, codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The values that the model reads."""
        real = codes.astype(np.float32)
        if self.pairs:
            high = np.floor(real / np.float32(HALF))
            real = np.concatenate([real - high * np.float32(HALF), high], -1)
        return np.asarray((real - np.float32(self.levels + 1)) * scale)

    def bytes(self, channels: int) -> int:
        """Of a row, its scale among them."""
        return (channels // 2 if self.pairs else channels) + 4


@dataclass(frozen=True)
class PackedCaches:
    """A model that keeps its caches packed, with samples that it takes."""

    source: ModelSource
    samples: Samples
    judging: Samples | None


def with_packed_caches(
    source: ModelSource, samples: Samples, judging: Samples | None, asked: KvCache, folder: Path
) -> PackedCaches:
    """The model with its caches packed as asked for, its samples, and notes on what that loses; else all as it was.

    folder: for the samples. Raises UsageError where the model has no such caches.
    """
    packings = _packings(source.model, asked)
    if not packings:
        return PackedCaches(source, samples, judging)
    packed = source.model.clone()
    pack_caches(packed, packings)
    found, apart = (
        None if given is None else _converted(packed, given, packings, folder / name)
        for name, given in (("packed", samples), ("judging", judging))
    )
    assert found is not None
    notes = (*source.notes, *_notes(source.model, packed, samples, found, packings))
    return PackedCaches(replace(source, model=packed, notes=notes), found, apart)


def _packings(model: ir.Model, asked: KvCache) -> dict[str, Packing]:
    """How each cache is packed, by the name of the input. Raises UsageError."""
    caches = {cache.name: cache for cache in find_caches(model)}
    by_name = dict.fromkeys(caches, asked) if isinstance(asked, str) else dict(asked)
    if asked != FLOAT and not caches:
        raise UsageError(
            "kv_cache: the model has no cache of keys and values: inputs of 4 axes such as past_key_values.0.key, with "
            "outputs such as present.0.key"
        )
    if unknown := by_name.keys() - caches.keys():
        raise UsageError(f"kv_cache: {sorted(unknown)[0]!r} is no cache of the model; it has {', '.join(caches)}")
    chosen = {name: Packing(LEVELS[kind]) for name, kind in by_name.items() if kind != FLOAT}
    for name, packing in chosen.items():
        _check(model, caches[name], packing)
    return chosen


def _check(model: ir.Model, cache: Cache, packing: Packing) -> None:
    channels = None if cache.past.shape is None else cache.past.shape[-1]
    if cache.past.dtype != ir.DataType.FLOAT:
        raise UsageError(f"kv_cache: {cache.name!r} is of {cache.past.dtype}; only float32 can be packed")
    if not isinstance(channels, int) or (packing.pairs and channels % 2):
        raise UsageError(f"kv_cache: {cache.name!r} has {channels} channels; give a model with a fixed, even number")
    if model.graph.opset_imports.get("", 0) < OLDEST:
        raise UsageError(f"kv_cache: needs opset {OLDEST} or newer; convert the model")


def pack_caches(model: ir.Model, packings: Mapping[str, Packing]) -> None:
    """Put what unpacks behind these inputs, and what packs in front of the outputs that continue them."""
    for cache in find_caches(model):
        if cache.name in packings:
            channels = cache.past.shape[-1] if cache.past.shape is not None else None
            assert isinstance(channels, int)
            _unpacked_input(model, cache.past, packings[cache.name])
            _packed_output(model, cache.present, channels, packings[cache.name])
    infer_shapes(model)


class _Nodes:
    """Nodes in the making, in their order."""

    def __init__(self, model: ir.Model, hint: str) -> None:
        self.model, self.hint, self.made = model, hint, list[ir.Node]()

    def op(self, op_type: str, *inputs: ir.Value, name: str = "", **attributes: Any) -> ir.Value:
        """The output of a new node."""
        node = ir.node(op_type, inputs, attributes=attributes, metadata_props={IN_FLOAT: "caches"})
        node.outputs[0].name = name or unique_name(self.model.graph, f"{self.hint}_{op_type.lower()}_{len(self.made)}")
        self.made.append(node)
        return node.outputs[0]

    def real(self, value: float) -> ir.Value:
        """A constant."""
        return add_constant(self.model, np.array(value, np.float32), f"{self.hint}_number")

    def whole(self, *values: int) -> ir.Value:
        """A constant list."""
        return add_constant(self.model, np.array(values, np.int64), f"{self.hint}_whole")


def _unpacked_input(model: ir.Model, past: ir.Value, packing: Packing) -> None:
    graph, uses, nodes = model.graph, list(past.uses()), _Nodes(model, str(past.name))
    scale = _beside(past)
    graph.inputs.insert(graph.inputs.index(past) + 1, scale)
    _store(past, packing)
    real = nodes.op("Cast", past, to=int(ir.DataType.FLOAT))
    if packing.pairs:
        high = nodes.op("Floor", nodes.op("Div", real, nodes.real(HALF)))
        low = nodes.op("Sub", real, nodes.op("Mul", high, nodes.real(HALF)))
        real = nodes.op("Concat", low, high, axis=-1)
    found = nodes.op("Mul", nodes.op("Sub", real, nodes.real(packing.levels + 1)), scale)
    graph.insert_before(graph[0], nodes.made)
    for node, place in uses:
        node.replace_input_with(place, found)


def _packed_output(model: ir.Model, present: ir.Value, channels: int, packing: Packing) -> None:
    """channels: of what it continues; its own need not be declared."""
    graph, name, nodes = model.graph, str(present.name), _Nodes(model, str(present.name))
    assert present.shape is not None
    place, present.shape = graph.outputs.index(present), ir.Shape([*present.shape[:-1], channels])
    codes, scales = ir.Value(name=name, shape=present.shape, type=present.type), _beside(present)
    present.name = unique_name(graph, f"{name}_real")
    largest = _largest(model, nodes, nodes.op("Abs", present))
    scale = nodes.op("Div", largest, nodes.real(packing.levels), name=str(scales.name))
    whole = nodes.op("Round", nodes.op("Div", present, nodes.op("Max", scale, nodes.real(float(TINY)))))
    code = nodes.op("Add", whole, nodes.real(packing.levels + 1))
    if packing.pairs:
        half, last, axis = nodes.whole(channels // 2), nodes.whole(channels), nodes.whole(-1)
        low, high = nodes.op("Slice", code, nodes.whole(0), half, axis), nodes.op("Slice", code, half, last, axis)
        code = nodes.op("Add", low, nodes.op("Mul", high, nodes.real(HALF)))
    stored = nodes.op("Cast", code, name=name, to=int(ir.DataType.UINT8))
    stored.shape, scale.shape, scale.type = codes.shape, scales.shape, scales.type
    _store(stored, packing)
    graph.extend(nodes.made)
    graph.outputs[place] = stored
    graph.outputs.insert(place + 1, scale)


def _largest(model: ir.Model, nodes: _Nodes, sizes: ir.Value) -> ir.Value:
    """Of each row; the axes of ReduceMax are an input since opset 18."""
    if model.graph.opset_imports[""] >= 18:
        return nodes.op("ReduceMax", sizes, nodes.whole(-1), keepdims=1)
    return nodes.op("ReduceMax", sizes, axes=[-1], keepdims=1)


def _store(value: ir.Value, packing: Packing) -> None:
    """Declare that a cache is of codes."""
    assert value.shape is not None
    *others, channels = value.shape
    assert isinstance(channels, int)
    value.shape = ir.Shape([*others, channels // 2 if packing.pairs else channels])
    value.type = ir.TensorType(ir.DataType.UINT8)


def _beside(value: ir.Value) -> ir.Value:
    """The scales of a cache."""
    assert value.shape is not None
    shape = ir.Shape([*value.shape[:-1], 1])
    return ir.Value(name=f"{value.name}{SCALE}", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))


def _converted(model: ir.Model, samples: Samples, packings: Mapping[str, Packing], folder: Path) -> Samples:
    """The same samples as the packed model takes them."""
    feeds = (packed_feeds(feeds, packings) for feeds in samples)
    return replace(collect(feeds, input_specs(model), folder, len(samples)), notes=samples.notes)


def packed_feeds(feeds: Feeds, packings: Mapping[str, Packing]) -> Feeds:
    """Feeds of the model as it was, as its packed form takes them."""
    found: Feeds = {}
    for name, array in feeds.items():
        if name in packings:
            found[name], found[name + SCALE] = packings[name].pack(array)
        else:
            found[name] = array
    return found


def _notes(
    model: ir.Model, packed: ir.Model, samples: Samples, found: Sequence[Feeds], packings: Mapping[str, Packing]
) -> list[Note]:
    """How many bytes a token takes, and what that loses, as samples show."""
    caches = [cache for cache in find_caches(model) if cache.name in packings]
    before, after = _bytes(caches, samples, packings)
    notes = [Note(STEP, "", f"{len(caches)} caches are packed: a token takes {after:,} bytes in them, not {before:,}")]
    chosen = [place for place, feeds in enumerate(samples) if any(feeds[cache.name].size for cache in caches)][:JUDGED]
    if not chosen:
        told = "in no sample anything is cached, so nothing shows what packed caches lose: record feeds of a later step"
        return [*notes, Note(STEP, "", told, Level.WARNING)]
    real, stored = Runner(model), Runner(packed)
    references = [tensors_of(real.run(samples[place])) for place in chosen]
    left_out = {str(cache.present.name) for cache in caches}
    kinds = recognize(model, samples[chosen[0]], references)
    answers = {name: kind for name, kind in kinds.items() if name not in left_out}
    measure = OutputLoss.of(answers, references)
    loss = measure.mean(references, [tensors_of(stored.run(found[place])) for place in chosen])
    told = f"that loses {number(loss)} {measure.unit} in one step, on {len(chosen)} samples with something cached"
    return [*notes, Note(STEP, "", f"{told}; all else is compared with the model whose caches are packed")]


def _bytes(caches: Sequence[Cache], samples: Samples, packings: Mapping[str, Packing]) -> tuple[int, int]:
    """Of a token in all caches: as floats, and packed."""
    shapes = [(samples[0][cache.name].shape, packings[cache.name]) for cache in caches]
    before = sum(4 * shape[1] * shape[3] for shape, _ in shapes)
    return before, sum(shape[1] * packing.bytes(shape[3]) for shape, packing in shapes)
