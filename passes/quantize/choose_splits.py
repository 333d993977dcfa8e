"""What is done about layers' inputs that 8 bits do not hold: wide channels split off, a scale for each row, or both.

Looked at are tensors whose widest channel or row (token) reaches WIDE times as far as the median one. Each is rounded,
and again as layers read it after each remedy: without its k widest channels, with a scale for each row, or with both;
and the outputs are compared. As when activations are chosen, a loss of the whole limit has to buy WORTH of the
arithmetic. A tensor that is worth its loss whole is left as it is; else the remedy of the best balance is
taken, if any is worth its loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.ranges import RangeObserver
from ptqc.execution.onnxruntime import Runner
from ptqc.execution.tensors import Held, outputs_in_files
from ptqc.execution.walk import Slicer, Suffix, Suffixes, Values, Walk
from ptqc.ir.integer_arithmetic import fake_quantize
from ptqc.ir.layers import Layer
from ptqc.ir.nodes import insert_before, unique_name
from ptqc.losses import AUTO, OutputLoss, recognize
from ptqc.notes import Note, out_of_time
from ptqc.options import Loss
from ptqc.passes.allocate.choose_activations import WORTH, limit_of
from ptqc.passes.base import Effect, Result
from ptqc.passes.equalize.outliers import SMALLEST, Remedy, channel_axis, channels_of, have_rows, splittable
from ptqc.passes.quantize.calibrate import ELEMENT_COST, observed_params
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.utils.lazy import Lazy

WIDE = 4.0
# Numbers of channels that are tried, beside an eighth of all.
COUNTS = (8, 16, 32, 64)
OBSERVED, MEASURED, FEWEST = 32, 8, 2
# Multiply-accumulates that all measurements may cost, where half of the network is run three times for each tensor.
COMPUTE, RUNS = 1e12, 1.5
# The largest of each row and the division by it take as long as so many products with a mask.
ROWS_COST = 5
# Multiply-accumulates that save on integers about the time that running one more operator takes.
STARTED = 100_000
STEP = "choose-splits"


@dataclass(frozen=True)
class ChooseSplits:
    """Choose the layers' inputs whose wide channels are split off, or whose rows get scales.

    loss: a kind for all outputs, or for some by name. limit: loss that activations may cost; 0 takes the default.
    """

    loss: Loss = AUTO
    limit: float = 0.0
    name: ClassVar[str] = STEP
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, setting: AnalysisInput) -> Result[tuple[Remedy, ...]]:
        """The remedies in the order of the graph, and what each buys; changed: whether there are any."""
        readers = splittable(setting.model, setting.layers)
        reaches = _reaches(setting, readers) if readers else {}
        if reaches is None:
            return Result((), False, (out_of_time("no search for outlier channels"),))
        uneven = {name: reach for name, reach in reaches.items() if reach.is_uneven}
        if not uneven:
            return Result((), False)
        work = _Work.of(setting, {name: readers[name] for name in uneven})
        gaining = {
            name: readers[name]
            for name, reach in uneven.items()
            if any(work.gain(name, remedy) > 0 for remedy in _single(readers[name], reach))
        }
        if not gaining:
            return Result((), False)
        remedies, notes = list[Remedy](), list[Note]()
        for name, losses in self._losses(setting, replace(work, readers=gaining), uneven):
            if losses is None:
                notes.append(out_of_time("measuring some of the tensors with outlier channels or rows"))
                break
            best = min(losses, key=lambda remedy: WORTH * losses[remedy] - work.gain(name, remedy))
            if best != WHOLE and WORTH * losses[best] < work.gain(name, best):
                channels = tuple(sorted(map(int, uneven[name].order[: best.count])))
                remedies.append(Remedy(name, channels, best.by_row))
                notes.append(_bought(work, name, best, losses))
        return Result(tuple(remedies), bool(remedies), tuple(notes))

    def _losses(
        self, setting: AnalysisInput, work: "_Work", reaches: Mapping[str, "_Reach"]
    ) -> Iterator[tuple[str, Mapping["_Way", float] | None]]:
        """Shares of the limit by what is done, as far as they can decide; None: out of time."""
        model, tapped = _with_taps(setting.model, work.readers)
        most = int(np.clip(COMPUTE / (RUNS * work.total * len(tapped)), FEWEST, MEASURED))
        walk, left = Walk(Slicer(model), setting.held_back.some(most)), len(tapped)
        suffixes = Suffixes(walk)
        reference = outputs_in_files(suffixes.behind(-1).run({}))
        loss = OutputLoss.of(recognize(model, setting.held_back[0], reference, self.loss), reference)
        limit = limit_of(loss.unit, self.limit)
        with setting.progress.stage("choose splits", len(walk)) as stage:
            while left:
                results = walk.compute()
                for read in filter(tapped.__contains__, results):
                    name = tapped[read]
                    if not setting.deadline.leaves(0):
                        yield name, None
                        return
                    place = _Place(results[read], channel_axis(work.readers[name][0]), reaches[name].order)
                    measured = _Measured(name, read, place, suffixes.behind(walk.position), reference, loss, limit)
                    yield name, _deciding(work, name, measured, reaches[name])
                    left -= 1
                walk.advance(results)
                stage.advance(next(iter(results)))


@dataclass(frozen=True)
class _Way:
    """What may be done: so many of the widest channels are split off, and the rest gets a scale for each row."""

    count: int = 0
    by_row: bool = False


WHOLE = _Way()


@dataclass
class _Reach:
    """How far each channel of a tensor reaches (channels,), and each row of all samples; of windows there are none."""

    channels: np.ndarray
    rows: list[np.ndarray] = field(default_factory=list)

    @property
    def order(self) -> np.ndarray:
        """Channels from the widest on."""
        return np.argsort(-self.channels, kind="stable")

    @property
    def has_wide_channels(self) -> bool:
        """Whether one reaches WIDE times as far as the median one."""
        return _is_uneven(self.channels)

    @property
    def has_wide_rows(self) -> bool:
        """The same of rows."""
        return bool(self.rows) and _is_uneven(np.concatenate(self.rows))

    @property
    def is_uneven(self) -> bool:
        """Whether there is anything to do."""
        return self.has_wide_channels or self.has_wide_rows


def _is_uneven(reach: np.ndarray) -> bool:
    return bool(reach.size and reach.max() >= WIDE * np.median(reach) > 0)


@dataclass(frozen=True)
class _Work:
    """What layers that read the tensors cost. readers, elements: by tensor. output_elements: by layer."""

    readers: Mapping[str, Sequence[Layer]]
    elements: Mapping[str, int]
    output_elements: Mapping[str, int]
    total: int

    @classmethod
    def of(cls, setting: AnalysisInput, readers: Mapping[str, Sequence[Layer]]) -> "_Work":
        """Measured on the largest sample."""
        taps = list(dict.fromkeys([*readers, *(layer.name for layer in setting.layers)]))
        (feeds,) = setting.tuning.largest.batches(1)
        values = Runner(setting.model, taps).run(feeds, taps)
        result = {layer.name: values[layer.name].size for layer in setting.layers}
        total = sum(layer.width * result[layer.name] for layer in setting.layers)
        return cls(readers, {name: values[name].size for name in readers}, result, max(total, 1))

    def gain(self, name: str, way: _Way) -> float:
        """The share of all arithmetic that goes on integers, less what a remedy adds."""
        layers = self.readers[name]
        products, read = sum(layer.width * self.output_elements[layer.name] for layer in layers), self.elements[name]
        result = sum(self.output_elements[layer.name] for layer in layers)
        elements = operators = 0
        if way.count:
            elements, operators = read + result, 2 + 2 * len(layers)
        if way.by_row:
            biased = sum(layer.bias is not None for layer in layers)
            elements, operators = elements + ROWS_COST * read + result, operators + 4 + len(layers) + biased
        left = products * (1 - way.count / channels_of(layers[0]))
        return (left - ELEMENT_COST * elements - STARTED * operators) / self.total


@dataclass(frozen=True)
class _Place:
    """A tensor on all samples, the axis of its channels, and these from the widest on."""

    values: Sequence[Held]
    axis: int
    order: np.ndarray

    def rounded(self, way: _Way) -> Lazy[np.ndarray]:
        """In 8 bits but for channels that are split off, with the range that has the least squared error."""
        rest, observer = np.sort(self.order[way.count :]), RangeObserver()
        for sample in range(len(self.values)):
            _, part, scale = self._parts(sample, rest, way)
            observer.update(part / scale)
        params = observed_params(observer)

        def rounded(sample: int) -> np.ndarray:
            array, part, scale = self._parts(sample, rest, way)
            copy = array.copy()
            copy[rest] = fake_quantize(part / scale, params) * scale
            return np.ascontiguousarray(np.moveaxis(copy, 0, self.axis))

        return Lazy(rounded, len(self.values))

    def _parts(self, sample: int, rest: np.ndarray, way: _Way) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tensor with its channels in front, the channels that are rounded, and what they are divided by."""
        array = np.moveaxis(np.asarray(self.values[sample], np.float32), self.axis, 0)
        part = array[rest]
        if not way.by_row:
            return array, part, np.asarray(1, np.float32)
        return array, part, np.maximum(np.abs(part).max(0, initial=0.0), np.float32(SMALLEST))


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

    def share(self, way: _Way) -> float:
        """Of the limit, in one way."""
        rounded = self.place.rounded(way)
        outputs = self.suffix.run({self.read: rounded} if way != WHOLE else {self.read: rounded, self.name: rounded})
        return max(self.loss.mean(self.reference, outputs), 0.0) / self.limit


def _deciding(work: _Work, name: str, measured: _Measured, reach: _Reach) -> Mapping[_Way, float]:
    """Losses by what is done, from nothing on: until a remedy costs more than it can save."""
    losses = {WHOLE: measured.share(WHOLE)}
    if WORTH * losses[WHOLE] <= work.gain(name, WHOLE):
        return losses
    best, balances = 0.0, dict[_Way, float]()
    for way in _single(work.readers[name], reach):
        if work.gain(name, way) > best:
            losses[way] = measured.share(way)
            balances[way] = work.gain(name, way) - WORTH * losses[way]
            best = max(best, balances[way])
    splits = [way for way in balances if way.count and reach.rows]
    if splits:
        both = replace(max(splits, key=balances.__getitem__), by_row=True)
        if work.gain(name, both) > best:
            losses[both] = measured.share(both)
    return losses


def _single(layers: Sequence[Layer], reach: _Reach) -> list[_Way]:
    """What can be done about a tensor that these layers read, without what takes two remedies."""
    channels = channels_of(layers[0])
    counts = [count for count in sorted({*COUNTS, channels // 8}) if 0 < count <= channels // 4]
    by_row = [_Way(by_row=True)] if reach.has_wide_rows else []
    return [*by_row, *(_Way(count) for count in counts if reach.has_wide_channels)]


def _reaches(setting: AnalysisInput, readers: Mapping[str, Sequence[Layer]]) -> Mapping[str, _Reach] | None:
    """How far channels and rows of the tensors reach; None: there was no time to look."""
    runner, names = Runner(setting.model, list(readers)), list(readers)
    step = -(-len(setting.tuning) // OBSERVED)
    reaches = dict[str, _Reach]()
    for feeds in setting.tuning.select(range(0, len(setting.tuning), step)).batches(1):
        if not setting.deadline.leaves(0):
            return None
        for name, values in runner.run(feeds, names).items():
            sizes = np.abs(np.moveaxis(values, channel_axis(readers[name][0]), 0))
            sizes = sizes.reshape(len(sizes), -1)
            reach = reaches.setdefault(name, _Reach(np.zeros(len(sizes), np.float32)))
            reach.channels = np.maximum(reach.channels, sizes.max(1, initial=0.0))
            if have_rows(readers[name]):
                reach.rows.append(sizes.max(0, initial=0.0))
    return reaches


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


def _bought(work: _Work, name: str, way: _Way, losses: Mapping[_Way, float]) -> Note:
    layers = work.readers[name]
    several = f"{len(layers)} layers" if len(layers) > 1 else "a layer"
    remedies = [f"without {way.count} of the {channels_of(layers[0])} channels"] if way.count else []
    if way.by_row:
        remedies.append("with a scale for each row")
    message = (
        f"{'split' if way.count else 'scaled by rows'} for {several} with {work.gain(name, WHOLE):.1%} of the "
        f"arithmetic: 8 bits cost {losses[WHOLE]:.1%} of what activations may lose, and {losses[way]:.1%} "
        f"{' and '.join(remedies)}"
    )
    return Note(STEP, name, message)
