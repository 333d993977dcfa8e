"""Which layers' inputs are split into a few wide channels and the others, so that 8 bits hold the others.

Looked at are tensors whose widest channel reaches WIDE times as far as the median one. Each is rounded, and again where
layers read it without its k widest channels, and the outputs are compared. As when activations are chosen, a loss of
the whole limit has to buy WORTH of the arithmetic. A tensor that is worth its loss whole is left as it is; one that is
so only without k channels is split, with the k of the best balance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.observers import RangeObserver
from ptqc.execute.compressed import Held
from ptqc.execute.onnxruntime import Runner
from ptqc.execute.suffix import Suffix, Suffixes
from ptqc.execute.walk import Slicer, Values, Walk
from ptqc.graph.layers import Layer
from ptqc.integer import fake_quantize
from ptqc.losses import AUTO, OutputLoss, recognize
from ptqc.notes import Note, out_of_time
from ptqc.options import Loss
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.calibrate import ELEMENT_COST, observed_params
from ptqc.passes.decide.choose_activations import WORTH, limit_of
from ptqc.passes.decide.phases import Setting
from ptqc.passes.rewrite.split_outliers import Split, channel_axis, channels_of, splittable
from ptqc.passes.rewrite.tools.graph import insert_before, unique_name

WIDE = 4.0
# Numbers of channels that are tried, beside an eighth of all.
COUNTS = (8, 16, 32, 64)
OBSERVED, MEASURED, FEWEST = 32, 8, 2
# Multiply-accumulates that all measurements may cost, where half of the network is run three times for each tensor.
COMPUTE, RUNS = 1e12, 1.5
# Multiply-accumulates that save on integers about the time that running one more operator takes.
STARTED = 100_000
STEP = "choose-splits"


@dataclass(frozen=True)
class ChooseSplits:
    """Choose the layers' inputs whose wide channels are split off.

    loss: a kind for all outputs, or for some by name. limit: loss that activations may cost; 0 takes the default.
    """

    loss: Loss = AUTO
    limit: float = 0.0
    name: ClassVar[str] = STEP
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Setting) -> Result[tuple[Split, ...]]:
        """The splits in the order of the graph, and what each buys; changed: whether there are any."""
        readers = splittable(given.model, given.layers)
        orders = _orders(given, readers) if readers else {}
        if orders is None:
            return Result((), False, (out_of_time("no look at wide channels"),))
        if not orders:
            return Result((), False)
        work = _Work.of(given, {name: readers[name] for name in orders})
        gaining = {
            name: readers[name] for name in orders if any(work.gain(name, k) > 0 for k in _counts(readers[name]))
        }
        if not gaining:
            return Result((), False)
        splits, notes = list[Split](), list[Note]()
        for name, losses in self._losses(given, replace(work, readers=gaining), orders):
            if losses is None:
                notes.append(out_of_time("measuring some of the tensors with wide channels"))
                break
            best = min(losses, key=lambda count: WORTH * losses[count] - work.gain(name, count))
            if best and WORTH * losses[best] < work.gain(name, best):
                splits.append(Split(name, tuple(sorted(map(int, orders[name][:best])))))
                notes.append(_bought(work, name, best, losses))
        return Result(tuple(splits), bool(splits), tuple(notes))

    def _losses(
        self, given: Setting, work: "_Work", orders: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, Mapping[int, float] | None]]:
        """Shares of the limit by the number of channels left out, as far as they can decide; None: out of time."""
        model, tapped = _with_taps(given.model, work.readers)
        most = int(np.clip(COMPUTE / (RUNS * work.total * len(tapped)), FEWEST, MEASURED))
        walk, left = Walk(Slicer(model), list(given.held_back[:most].batches(1))), len(tapped)
        suffixes = Suffixes(walk)
        reference = suffixes.behind(-1).run({})
        loss = OutputLoss.of(recognize(model, given.held_back[0], reference, self.loss), reference)
        limit = limit_of(loss.unit, self.limit)
        with given.progress.stage("choose splits", len(walk)) as stage:
            while left:
                results = walk.compute()
                for read in filter(tapped.__contains__, results):
                    name = tapped[read]
                    if not given.deadline.leaves(0):
                        yield name, None
                        return
                    place = _Place(results[read], channel_axis(work.readers[name][0]), orders[name])
                    measured = _Measured(name, read, place, suffixes.behind(walk.position), reference, loss, limit)
                    yield name, _deciding(work, name, measured)
                    left -= 1
                walk.advance(results)
                stage.advance(next(iter(results)))


@dataclass(frozen=True)
class _Work:
    """What layers that read the tensors cost. readers, elements: by tensor. made: elements of what a layer gives."""

    readers: Mapping[str, Sequence[Layer]]
    elements: Mapping[str, int]
    made: Mapping[str, int]
    total: int

    @classmethod
    def of(cls, given: Setting, readers: Mapping[str, Sequence[Layer]]) -> "_Work":
        """Measured on the largest sample."""
        taps = list(dict.fromkeys([*readers, *(layer.name for layer in given.layers)]))
        (feeds,) = given.tuning.largest.batches(1)
        values = Runner(given.model, taps).run(feeds, taps)
        made = {layer.name: values[layer.name].size for layer in given.layers}
        total = sum(layer.width * made[layer.name] for layer in given.layers)
        return cls(readers, {name: values[name].size for name in readers}, made, max(total, 1))

    def gain(self, name: str, count: int) -> float:
        """The share of all arithmetic that goes on integers, less what splitting off so many channels adds."""
        layers = self.readers[name]
        products = sum(layer.width * self.made[layer.name] for layer in layers)
        if not count:
            return products / self.total
        elements = self.elements[name] + sum(self.made[layer.name] for layer in layers)
        operators = 2 + 2 * len(layers)
        added = ELEMENT_COST * elements + STARTED * operators
        return (products * (1 - count / channels_of(layers[0])) - added) / self.total


@dataclass(frozen=True)
class _Place:
    """A tensor on all samples, the axis of its channels, and these from the widest on."""

    values: Sequence[Held]
    axis: int
    order: np.ndarray

    def rounded(self, count: int) -> list[np.ndarray]:
        """In 8 bits but for the widest channels, with the range that has the least squared error."""
        arrays = [np.moveaxis(np.asarray(value, np.float32), self.axis, 0) for value in self.values]
        rest, observer = np.sort(self.order[count:]), RangeObserver()
        for array in arrays:
            observer.update(array[rest])
        params, found = observed_params(observer), []
        for array in arrays:
            copy = array.copy()
            copy[rest] = fake_quantize(array[rest], params)
            found.append(np.ascontiguousarray(np.moveaxis(copy, 0, self.axis)))
        return found


@dataclass(frozen=True)
class _Measured:
    """Compares the outputs where a tensor is rounded with those where nothing is.

    name: of the tensor; read: its name for the layers. Whole, it is rounded for whatever reads it.
    """

    name: str
    read: str
    place: _Place
    suffix: Suffix
    reference: Sequence[Values]
    loss: OutputLoss
    limit: float

    def share(self, count: int) -> float:
        """Of the limit, with so many channels left out."""
        rounded = self.place.rounded(count)
        outputs = self.suffix.run({self.read: rounded} if count else {self.read: rounded, self.name: rounded})
        return max(self.loss.mean(list(self.reference), outputs), 0.0) / self.limit


def _deciding(work: _Work, name: str, measured: _Measured) -> Mapping[int, float]:
    """Losses by number of channels, from none on: until more channels cost more than they can save."""
    losses = {0: measured.share(0)}
    if WORTH * losses[0] <= work.gain(name, 0):
        return losses
    best = 0.0
    for count in _counts(work.readers[name]):
        if work.gain(name, count) <= best:
            break
        losses[count] = measured.share(count)
        best = max(best, work.gain(name, count) - WORTH * losses[count])
    return losses


def _counts(layers: Sequence[Layer]) -> list[int]:
    """The numbers of channels that can be split off what these layers read."""
    channels = channels_of(layers[0])
    return [count for count in sorted({*COUNTS, channels // 8}) if 0 < count <= channels // 4]


def _orders(given: Setting, readers: Mapping[str, Sequence[Layer]]) -> Mapping[str, np.ndarray] | None:
    """Channels from the widest on, of the tensors that have wide ones; None: there was no time to look."""
    runner, names = Runner(given.model, list(readers)), list(readers)
    step = -(-len(given.tuning) // OBSERVED)
    reaches = dict[str, np.ndarray]()
    for feeds in given.tuning.select(range(0, len(given.tuning), step)).batches(1):
        if not given.deadline.leaves(0):
            return None
        for name, values in runner.run(feeds, names).items():
            channels = np.moveaxis(values, channel_axis(readers[name][0]), 0)
            reach = np.abs(channels.reshape(len(channels), -1)).max(1, initial=0.0)
            reaches[name] = np.maximum(reaches.get(name, 0.0), reach)
    wide = {name: reach for name, reach in reaches.items() if reach.max() >= WIDE * np.median(reach) > 0}
    return {name: np.argsort(-reach, kind="stable") for name, reach in wide.items()}


def _with_taps(model: ir.Model, readers: Mapping[str, Sequence[Layer]]) -> tuple[ir.Model, dict[str, str]]:
    """A copy in which layers read the tensors under names of their own; by these names, the tensors."""
    copy, tapped = model.clone(), dict[str, str]()
    nodes = {str(node.outputs[0].name): node for node in copy.graph}
    for name, layers in readers.items():
        first = nodes[layers[0].name]
        read = insert_before(first, "Identity", [first.inputs[0]], name=unique_name(copy.graph, f"{name}_read"))
        for layer in layers:
            nodes[layer.name].replace_input_with(0, read)
        tapped[str(read.name)] = name
    return copy, tapped


def _bought(work: _Work, name: str, count: int, losses: Mapping[int, float]) -> Note:
    layers = work.readers[name]
    several = f"{len(layers)} layers" if len(layers) > 1 else "a layer"
    message = (
        f"split for {several} with {work.gain(name, 0):.1%} of the arithmetic: 8 bits cost {losses[0]:.1%} of what "
        f"activations may lose, and {losses[count]:.1%} without {count} of the {channels_of(layers[0])} channels"
    )
    return Note(STEP, name, message)
