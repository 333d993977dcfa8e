"""Observe the calibration set once: the range of every site, the second moments of every layer's input.

State is of fixed size per tensor and layer; samples stream through in batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ptqc.calibration.observers import SAMPLED, RangeObserver
from ptqc.calibration.ranges import TRIED, Method, Observer, affine_params, choose_range
from ptqc.calibration.runnable import explaining
from ptqc.calibration.samples import InputSpec, Samples, input_specs
from ptqc.errors import ModelError
from ptqc.execute.compressed import largest
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.formats import UINT8, QuantParams
from ptqc.graph.layers import Layer
from ptqc.graph.nodes import constant
from ptqc.graph.sites import Site
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.phases import Observed, Setting
from ptqc.solvers.moments import TOGETHER, ColumnSample, Moments, positions_per_sample
from ptqc.work.deadline import Pace
from ptqc.work.parallel import in_order

# Bytes of the activations that are observed of one batch.
BATCH_BYTES = 256 * 2**20
LARGEST_BATCH = 8
# How many values of a tensor enter its histogram, over all samples.
OBSERVED = 32 * SAMPLED
# Share of a batch's columns that are at least looked at; where there is no time for these, samples are left out.
LEAST_PART = 0.25
HURRIED: Method = "minmax"  # where there is no time to search for a range
# What one element of an element-wise operator costs, in multiply-accumulates of a layer (memory traffic decides).
ELEMENT_COST = 8
# Losses are sums of (weight · input)², which float32 holds up to 3e38.
LARGEST_WEIGHT, LARGEST_INPUT = 1e6, 1e12


@dataclass(frozen=True)
class Calibrate:
    """Observe activations: their ranges, and the second moments of what each weight multiplies.

    observer: how a range is chosen from what was seen: minmax, percentile, entropy, mse, or auto.
    """

    observer: Observer = "auto"
    name: ClassVar[str] = "calibrate"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Setting) -> Result[Observed]:
        """The ranges of sites, the moments of layers, and their arithmetic.

        Raises ModelError for weights and inputs of layers that are too large to be squared.
        """
        model = given.model
        for layer in given.layers:
            _check_size("weight", layer.weight, constant(model.graph.initializers[layer.weight]), LARGEST_WEIGHT)
        observers = {site.name: RangeObserver() for site in given.sites}
        taps = _taps(given)
        sizes = _Sizes.of(given.tuning, given.held_back)
        work = _Work.of(given)
        columns = _columns(given, sizes, work.values)
        runner, inputs, pace = Runner(model, taps), input_specs(model), Pace(given.deadline, sizes.samples)
        tuning, held = dict[str, Moments](), dict[str, Moments]()
        with given.progress.stage("calibrate", sizes.samples) as stage:
            for split, moments in ((given.tuning, tuning), (given.held_back, held)):
                for start, feeds, values in _batches(runner, split, taps, work.sample_bytes, inputs):
                    part, rows = pace.part(), _rows(split, feeds)
                    if start and part < LEAST_PART:
                        pace.did(len(split) - start, 0.0)
                        break
                    _observe(observers, given, values, sizes.share(feeds, OBSERVED))
                    accumulate(moments, given.layers, _thinned(columns, part), values, start)
                    stage.advance(steps=rows)
                    pace.did(rows, max(part, LEAST_PART))
        notes = [out_of_time("calibration on fewer samples or columns")] if pace.is_short else []
        ranges, others, hurried = self._choose_ranges(given, observers)
        notes += hurried
        for site in given.sites:
            if observers[site.name].low == observers[site.name].high == 0:
                notes.append(Note(self.name, site.name, "is always zero on the calibration set", Level.WARNING))
        found = Observed.after(
            given,
            ranges=ranges,
            other_ranges=others,
            moments=tuning,
            held_moments=held,
            macs=work.macs,
            is_thinned=pace.is_short,
        )
        return Result(found, True, tuple(notes))

    def _choose_ranges(
        self, given: Setting, observers: Mapping[str, RangeObserver]
    ) -> tuple[dict[str, QuantParams], dict[str, tuple[QuantParams, ...]], list[Note]]:
        """The range of each site, others that may lose less, and what there was no time for."""
        pace = Pace(given.deadline, len(given.sites))
        chosen, others = dict[str, QuantParams](), dict[str, tuple[QuantParams, ...]]()

        def ranges(site: Site) -> list[QuantParams]:
            methods: tuple[Method, ...] = TRIED if self.observer == "auto" else (self.observer,)
            if pace.part() < 1:
                methods = (HURRIED,)
            found = [observed_params(observers[site.name], method) for method in methods]
            pace.did(1, float(methods != (HURRIED,)))
            return found

        with given.progress.stage("choose ranges", len(given.sites)) as stage:
            for site, found in zip(given.sites, in_order(ranges, given.sites), strict=True):
                first, *rest = dict.fromkeys(found)
                chosen[site.name], others[site.name] = first, tuple(rest)
                stage.advance(site.name)
        short = [out_of_time("few ranges of activations other than from least to largest")] if pace.is_short else []
        return chosen, others, short


@dataclass(frozen=True)
class _Sizes:
    """How many samples there are, their rows, and the elements of their inputs."""

    samples: int
    rows: int
    elements: int

    @classmethod
    def of(cls, *splits: Samples) -> "_Sizes":
        """The moments of all splits together."""
        return cls(sum(map(len, splits)), sum(split.rows for split in splits), sum(s.elements for s in splits))

    def share(self, feeds: Feeds, whole: int) -> int:
        """The part of a number for all samples that falls to one batch, by its size."""
        elements = sum(array.size for array in feeds.values())
        return elements * self.rows * whole // max(self.samples * self.elements, 1)

    def usual(self, total: int, sample: Samples) -> int:
        """How many positions the mean row has, given that a row of `sample` has `total`."""
        return max(1, total * self.elements * sample.rows // max(self.rows * sample.elements, 1))


def observed_params(observer: RangeObserver, method: Method = TRIED[0]) -> QuantParams:
    """Parameters of 8 bits for what was observed, by a method; by the one that is tried first."""
    low, high = choose_range(observer, method, UINT8.bits)
    scale, zero_point = affine_params(low, high, UINT8.bits)
    return QuantParams(UINT8, float(scale), int(zero_point))


def _taps(given: Setting) -> list[str]:
    names = [source for site in given.sites for source in site.sources]
    names += [layer.input for layer in given.layers]
    return list(dict.fromkeys(names))


def _columns(given: Setting, sizes: _Sizes, largest: Feeds) -> dict[str, ColumnSample]:
    """The columns that are looked at, by layer. largest: the inputs of layers for the largest sample."""
    found, sample = {}, given.tuning.largest
    for number, layer in enumerate(given.layers):
        seed = given.seed * 100_003 + number  # a draw of its own for each layer
        columns = ColumnSample(layer, positions_per_sample(layer, len(given.tuning)), seed)
        total = columns.total(largest[layer.input].shape)
        found[layer.name] = replace(columns, usual=sizes.usual(total, sample))
    return found


def _thinned(columns: Mapping[str, ColumnSample], part: float) -> Mapping[str, ColumnSample]:
    """This part of the columns of every layer."""
    if part == 1:
        return columns
    return {name: replace(each, positions=max(1, int(part * each.positions))) for name, each in columns.items()}


@dataclass(frozen=True)
class _Work:
    """What the largest sample costs: its observed values, their bytes, and multiply-accumulates by kernel."""

    values: Feeds
    sample_bytes: int
    macs: dict[str, int]

    @classmethod
    def of(cls, given: Setting) -> "_Work":
        """Measured on the largest sample."""
        taps, inputs = _taps(given), input_specs(given.model)
        every = list(dict.fromkeys([*taps, *(kernel.node for kernel in given.kernels)]))
        ((_, _, values),) = _batches(Runner(given.model, every), given.tuning.largest, every, 0, inputs)
        layers = {layer.name: layer for layer in given.layers}
        macs = {}
        for kernel in given.kernels:
            layer = layers.get(kernel.node)
            macs[kernel.node] = values[kernel.node].size * (ELEMENT_COST if layer is None else layer.width)
        return cls(values, sum(values[name].nbytes for name in taps), macs)


def _batches(
    runner: Runner, samples: Samples, taps: Sequence[str], sample_bytes: int, inputs: Sequence[InputSpec]
) -> Iterator[tuple[int, Feeds, Feeds]]:
    """Each batch with the number of its first row, and the tapped values."""
    size = int(np.clip(BATCH_BYTES // max(sample_bytes, 1), 1, LARGEST_BATCH))
    start = 0
    for feeds in samples.batches(size):
        with explaining(runner, samples, inputs):
            values = runner.run(feeds, taps) if taps else {}
        yield start, feeds, values
        start += _rows(samples, feeds)


def _rows(samples: Samples, feeds: Feeds) -> int:
    return len(next(iter(feeds.values()))) if samples.batchable else 1


def _observe(observers: dict[str, RangeObserver], given: Setting, values: Feeds, most: int) -> None:
    """Show a batch to the observers, at most so many values of each tensor to its histogram."""

    def update(site: Site) -> None:
        for source in site.sources:
            observers[site.name].update(values[source], min(most, SAMPLED))

    for _ in in_order(update, given.sites):
        pass


def accumulate(
    moments: dict[str, Moments], layers: Sequence[Layer], columns: Mapping[str, ColumnSample], values: Feeds, start: int
) -> None:
    """Add the inputs of layers in a batch to the moments of their weights; columns: by layer. start: its first row.

    Raises ModelError where they are not finite or too large to be squared.
    """
    by_weight: dict[str, list[Layer]] = {}
    for layer in layers:
        by_weight.setdefault(layer.weight, []).append(layer)

    def added(weight: str) -> Moments:
        found = moments.get(weight)
        for layer in by_weight[weight]:
            _check_size("layer input", layer.input, values[layer.input], LARGEST_INPUT)
            drawn = columns[layer.name].inputs(values[layer.input], start)
            found = found or Moments.empty(drawn.shape[0], drawn.shape[1])
            found.add(drawn)
        assert found is not None
        return found

    grown = in_order(added, by_weight, lambda weight: _bytes(columns[by_weight[weight][0].name]))
    moments.update(zip(by_weight, grown, strict=True))


def _check_size(kind: str, name: str, values: np.ndarray | None, most: float) -> None:
    reach = 0.0 if values is None else largest(values)
    if not np.isfinite(reach):
        raise ModelError(
            f"{kind} {name!r} is NaN or infinite in places, and nothing can be fitted to that: check the model, "
            "the samples and their preprocessing"
        )
    if reach > most:
        raise ModelError(f"{kind} {name!r} reaches {reach:.0e}, at most {most:.0e} can be measured: scale the model")


def _bytes(columns: ColumnSample) -> int:
    """Bytes that adding a batch to a layer's moments takes: new columns, columns held back, products; each twice."""
    width, groups = columns.layer.width, columns.layer.groups
    return 8 * groups * (width**2 + (TOGETHER + LARGEST_BATCH * columns.positions) * width)
