"""Samples of a decoder that go on from a cache, made of texts whose caches are empty.

Texts and drawn tokens come without caches. Of one of every two the model reads the beginning, and its own keys and
values of that are the cache with which it reads the rest: half of the text, or its last token alone. So whatever is
calibrated sees both ways in which a decoder runs, with the keys and values that it has in use. Which one of the two is
drawn: evenly spread samples are of both kinds, whatever their distance.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Self

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import Dim, InputRole, InputSpec, input_specs, roles
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.layers import find_caches

# Of a cache (texts, heads, places, channels) the axis that grows.
PLACES = 2
# Inputs with a number for each token.
OF_TOKENS = (InputRole.TOKENS, InputRole.TYPES, InputRole.PLACES)


@dataclass(frozen=True)
class Continuation:
    """How samples of a decoder are cut in two.

    cut: inputs with a number for each token, of which the rest of a text has its own part; masks: inputs that say which
    of all tokens are seen, those of the beginning too; flags: inputs that say whether a cache is read. caches: by the
    input, the output that continues it.
    """

    cut: tuple[str, ...]
    masks: tuple[str, ...]
    flags: tuple[str, ...]
    caches: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> Self | None:
        """Of a model; None where it has no growing caches, or takes a fixed number of tokens."""
        inputs = input_specs(model)
        result = roles(inputs)
        caches = {cache.name: str(cache.present.name) for cache in find_caches(model)}
        pasts = [spec for spec in inputs if result[spec.name] is InputRole.PAST]
        tokens = [spec for spec in inputs if result[spec.name] is InputRole.TOKENS]
        cut = [spec for spec in inputs if result[spec.name] in OF_TOKENS]
        masks = _masks(inputs, result)
        if not pasts or not tokens or any(not _is_open(spec, -1) for spec in (*cut, *masks)):
            return None
        if any(spec.name not in caches or not _is_open(spec, PLACES) for spec in pasts):
            return None
        flags = (spec.name for spec in inputs if result[spec.name] is InputRole.FLAG)
        return cls(_names(cut), _names(masks), tuple(flags), caches)

    def beginning(self, feeds: Feeds, count: int) -> Feeds:
        """The first so many tokens alone."""
        return {**feeds, **{name: feeds[name][..., :count] for name in (*self.cut, *self.masks)}}

    def remainder(self, feeds: Feeds, count: int, outputs: Feeds) -> Feeds:
        """The tokens behind the beginning, with what the model gave for the beginning as their cache."""
        tokens = {name: feeds[name][..., count:] for name in self.cut}
        flags = {name: np.ones_like(feeds[name]) for name in self.flags}
        return {**feeds, **tokens, **flags, **{past: outputs[present] for past, present in self.caches.items()}}

    def count(self, feeds: Feeds, turn: int) -> int:
        """How many tokens are a beginning; 0 where a sample stays whole: one of two, and those with padding."""
        lengths = {int(feeds[name].shape[-1]) for name in (*self.cut, *self.masks)}
        is_padded = any(not feeds[name].all() for name in self.masks)
        draw, pair, place = Random(turn // 4).getrandbits(3), turn // 2 % 2, turn % 2
        if place != (draw >> pair) & 1 or is_padded or len(lengths) > 1 or min(lengths) == 1:
            return 0
        (length,) = lengths
        return length // 2 if pair == draw >> 2 else length - 1


def _masks(inputs: Sequence[InputSpec], roles: dict[str, InputRole]) -> list[InputSpec]:
    """Those of the decoder's own tokens: what an encoder made has another length."""
    heard: set[Dim] = {spec.shape[1] for spec in inputs if roles[spec.name] is InputRole.HEARD}
    heard |= {spec.shape[PLACES] for spec in inputs if roles[spec.name] is InputRole.HEARD and len(spec.shape) > PLACES}
    return [spec for spec in inputs if roles[spec.name] is InputRole.MASK and spec.shape[-1] not in heard]


def _is_open(spec: InputSpec, axis: int) -> bool:
    return not isinstance(spec.shape[axis], int)


def _names(specs: Iterable[InputSpec]) -> tuple[str, ...]:
    return tuple(spec.name for spec in specs)


def continued(model: ir.Model, samples: Sequence[Feeds]) -> Iterator[Feeds] | None:
    """The samples, of which one of every two goes on from a cache; None where the model does not run so."""
    way = Continuation.of(model)
    first = None if way is None else next((turn for turn, feeds in enumerate(samples) if way.count(feeds, turn)), None)
    if way is None or first is None:
        return None
    with suppress(Exception):  # ONNX Runtime raises a dozen types of its own
        runner = Runner(model)
        runner.run(_continued(way, runner, samples[first], first))
        return (_continued(way, runner, feeds, turn) for turn, feeds in enumerate(samples))
    return None


def _continued(way: Continuation, runner: Runner, feeds: Feeds, turn: int) -> Feeds:
    count = way.count(feeds, turn)
    if not count:
        return feeds
    return way.remainder(feeds, count, runner.run(way.beginning(feeds, count), list(way.caches.values())))
