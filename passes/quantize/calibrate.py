"""Observe the calibration set once: the range of every site, the second moments of every layer's input.

State is of fixed size per tensor and layer; samples stream through in batches. Of large models, the second moments of
the first block of weights are observed, and the means of all (see `moment_stream.py`). Models beyond memory whose
activations stay in float are observed while their weights are solved (see `moment_stream.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.ranges import (
    SAMPLED,
    TRIED,
    Observer,
    RangeObserver,
    affine_params,
    choose_range,
    power_params,
    symmetric_params,
)
from ptqc.calibration.samples import Samples, input_specs
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Feeds, Runner, reason_of
from ptqc.execution.shapes import observed_shapes
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import Layer, draws, find_inner_layers
from ptqc.ir.nodes import constant, integers
from ptqc.ir.operators import Trait, named
from ptqc.ir.sites import ScaleGroup, read_without_padding, useful_sites
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.moment_stream import LEAST_PART, LaterMoments, MomentStream, blocks_of
from ptqc.passes.quantize.moments import ColumnSample, Moments, positions_per_sample
from ptqc.passes.quantize.observing import (
    LARGEST_WEIGHT,
    accumulate,
    batches,
    check_size,
    rows_left_out,
    rows_of,
    thinned,
)
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.utils.deadline import Pace
from ptqc.utils.parallel import in_order

# How many values of a tensor enter its histogram, over all samples.
OBSERVED = 32 * SAMPLED
HURRIED = "minmax"  # where there is no time to search for a range
# What one element of an element-wise operator costs, in multiply-accumulates of a layer (memory traffic decides).
ELEMENT_COST = 8
FLOAT_BYTES = 4
LEFT_OUT = (
    "that layers read are NaN or infinite in the float model and were left out, as padding that nobody reads is: check "
    "the model and the samples if it is something else"
)
BLANK = "is empty or zero in every calibration sample, so that it stays float: give samples in which it is not"


@dataclass(frozen=True)
class Calibrate:
    """Observe activations: their ranges, and the second moments of what each weight multiplies.

    observer: how a range is chosen from what was seen: minmax, percentile, entropy, mse, or auto.
    """

    observer: Observer = "auto"
    name: ClassVar[str] = "calibrate"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, setting: AnalysisInput) -> Result[CalibrationStats]:
        """The ranges of sites, the moments of layers, and their arithmetic.

        Raises ModelError for weights and inputs of layers that are too large to be squared.
        """
        model = setting.model
        for layer in setting.layers:
            check_size("weight", layer.weight, constant(model.graph.initializers[layer.weight]), LARGEST_WEIGHT)
        observers = {site.name: RangeObserver() for site in setting.sites}
        taps = _taps(setting)
        sizes = _Sizes.of(setting.tuning, setting.held_back)
        work = _Work.of(setting)
        columns = _columns(setting, sizes, work.shapes)
        if is_in_files(model) and not setting.sites:
            return Result(_streamed(setting, columns, work), True)
        runner, inputs, pace = Runner(model, taps), input_specs(model), Pace(setting.deadline, sizes.samples)
        tuning, held = dict[str, Moments](), dict[str, Moments]()
        blocks = blocks_of(setting)
        later = frozenset(name for block in blocks[1:] for name in block)
        with setting.progress.stage("calibrate", sizes.samples) as stage:
            for split, moments in ((setting.tuning, tuning), (setting.held_back, held)):
                for start, feeds, values in batches(runner, split, taps, work.sample_bytes, inputs):
                    part, rows = pace.part(), rows_of(split, feeds)
                    if start and part < LEAST_PART:
                        pace.did(len(split) - start, 0.0)
                        break
                    _observe(observers, setting, values, sizes.share(feeds, OBSERVED))
                    accumulate(moments, setting.fitted_layers, thinned(columns, part), values, start, later)
                    stage.advance(steps=rows)
                    pace.did(rows, max(part, LEAST_PART))
        notes = [out_of_time("calibration on fewer samples or columns")] if pace.is_short else []
        ranges, others, hurried = self._choose_ranges(setting, observers)
        notes += hurried
        seen = [site for site in setting.sites if not observers[site.name].is_blank]
        sites = useful_sites(seen, setting.kernels, {layer.name for layer in setting.layers})
        blank = [site for site in setting.sites if observers[site.name].is_blank]
        notes += [Note(self.name, site.name, BLANK, Level.WARNING) for site in blank]
        for name, (left, rows) in rows_left_out(setting.layers, tuning, held).items():
            notes.append(Note(self.name, name, f"{left:,} of {rows:,} rows {LEFT_OUT}", Level.WARNING))
        result = CalibrationStats.after(
            setting,
            sites=tuple(sites),
            ranges={site.name: ranges[site.name] for site in sites},
            other_ranges=others,
            moments=tuning,
            held_moments=held,
            macs=work.macs,
            is_thinned=pace.is_short,
            later=LaterMoments(setting, blocks, columns, taps, work.sample_bytes) if later else None,
        )
        return Result(result, True, tuple(notes))

    def _choose_ranges(
        self, setting: AnalysisInput, observers: Mapping[str, RangeObserver]
    ) -> tuple[dict[str, QuantParams], dict[str, tuple[QuantParams, ...]], list[Note]]:
        """The range of each site, others that may lose less, and what there was no time for."""
        pace = Pace(setting.deadline, len(setting.sites))
        chosen, others = dict[str, QuantParams](), dict[str, tuple[QuantParams, ...]]()
        hurried = list[str]()
        shifted = read_without_padding(setting.model, setting.layers) if setting.fused else set[str]()

        def ranges(site: ScaleGroup) -> list[QuantParams]:
            methods: tuple[str, ...] = TRIED if self.observer == "auto" else (self.observer,)
            if pace.part() < 1:
                methods = (HURRIED,)
                hurried.append(site.name)
            observer, symmetric = observers[site.name], setting.symmetric and site.name not in shifted
            grid = {"powers": setting.powers, "symmetric": symmetric}
            choose_ranges = [observed_params(observer, method, **grid) for method in methods]
            pace.did(1, float(methods != (HURRIED,)))
            return choose_ranges

        with setting.progress.stage("choose ranges", len(setting.sites)) as stage:
            for site, choose_ranges in zip(setting.sites, in_order(ranges, setting.sites), strict=True):
                first, *rest = dict.fromkeys(choose_ranges)
                chosen[site.name], others[site.name] = first, tuple(rest)
                stage.advance(site.name)
        count = f"{len(hurried)} of {len(setting.sites)}"
        return chosen, others, [out_of_time(f"min/max ranges only, for {count} activations")] if hurried else []


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


def observed_params(
    observer: RangeObserver, method: str = TRIED[0], *, powers: bool = False, symmetric: bool = False
) -> QuantParams:
    """Parameters of 8 bits for what was observed, by a method; by the one that is tried first.

    powers: whether the scale is to be a power of two. symmetric: whether the zero point is the middle code.
    """
    low, high = choose_range(observer, method, UINT8.bits)
    if symmetric:
        scale, zero_point = symmetric_params(observer, low, high, UINT8.bits, method=method, powers=powers)
    elif powers:
        scale, zero_point = power_params(observer, low, high, UINT8.bits)
    else:
        scale, zero_point = affine_params(low, high, UINT8.bits)
    return QuantParams(UINT8, float(scale), int(zero_point))


def _taps(setting: AnalysisInput) -> list[str]:
    names = [source for site in setting.sites for source in site.sources]
    names += [layer.input for layer in setting.layers]
    return list(dict.fromkeys(names))


def _columns(setting: AnalysisInput, sizes: _Sizes, largest: Mapping[str, tuple[int, ...]]) -> dict[str, ColumnSample]:
    """The columns that are looked at, by layer. largest: shapes of the inputs of layers for the largest sample."""
    result, sample, numbers = {}, setting.tuning.largest, draws(setting.layers)
    for layer in setting.layers:
        seed = setting.seed * 100_003 + numbers[layer.name]
        columns = ColumnSample(layer, positions_per_sample(layer, len(setting.tuning)), seed)
        total = columns.total(largest[layer.input])
        result[layer.name] = replace(columns, usual=sizes.usual(total, sample))
    return result


@dataclass(frozen=True)
class _Work:
    """What the largest sample costs: shapes of its observed values, their bytes, and multiply-accumulates by kernel."""

    shapes: Mapping[str, tuple[int, ...]]
    sample_bytes: int
    macs: dict[str, int]

    @classmethod
    def of(cls, setting: AnalysisInput) -> "_Work":
        """Measured on the largest sample."""
        taps = _taps(setting)
        sizes = _tapped(setting, taps)
        layers = {layer.name: layer for layer in setting.layers}
        macs = {}
        for kernel in setting.kernels:
            layer = layers.get(kernel.node)
            macs[kernel.node] = prod(sizes[kernel.node][0]) * (ELEMENT_COST if layer is None else layer.width)
        shapes = {name: shape for name, (shape, _) in sizes.items()}
        return cls(shapes, sum(sizes[name][1] for name in taps), macs)

    def bytes_of(self, layers: Iterable[Layer]) -> int:
        """Bytes of what some layers read of the sample."""
        return sum(FLOAT_BYTES * prod(self.shapes[name]) for name in {layer.input for layer in layers})


def _tapped(setting: AnalysisInput, taps: Sequence[str]) -> Mapping[str, tuple[tuple[int, ...], int]]:
    """Shapes and bytes of taps and kernels; of a model beyond memory not all values are there at a time."""
    if is_in_files(setting.model):
        shapes = observed_shapes(setting.model, setting.tuning.largest[0])
        return {name: (shape, FLOAT_BYTES * prod(shape)) for name, shape in shapes.items()}
    every = list(dict.fromkeys([*taps, *(kernel.node for kernel in setting.kernels)]))
    inputs = input_specs(setting.model)
    _, _, values = next(batches(Runner(setting.model, every), setting.tuning.largest, every, 0, inputs))
    return {name: (array.shape, array.nbytes) for name, array in values.items()}


def _streamed(setting: AnalysisInput, columns: Mapping[str, ColumnSample], work: _Work) -> CalibrationStats:
    """What is known before the first block of weights is observed: nothing of activations, as they stay in float."""
    blocks = blocks_of(setting)
    own = [[layer for layer in setting.fitted_layers if layer.weight in block] for block in blocks]
    stream = MomentStream(setting, blocks, columns, max(map(work.bytes_of, own), default=0))
    return CalibrationStats.after(setting, macs=work.macs, later=stream)


def _observe(observers: dict[str, RangeObserver], setting: AnalysisInput, values: Feeds, most: int) -> None:
    """Show a batch to the observers, at most so many values of each tensor to its histogram."""

    def update(site: ScaleGroup) -> None:
        for source in site.sources:
            observers[site.name].update(values[source], min(most, SAMPLED))

    for _ in in_order(update, setting.sites):
        pass


# What the layers in branches of If and bodies of Loop and Scan read, as values of the main graph.
#
# The nodes hand it on as further outputs: an If what the branch taken reads, and empty tensors for the other; Loop and
# Scan what is read in every iteration, stacked.

BODIES = named(Trait.BODIES)


def with_inner_inputs(model: ir.Model) -> tuple[ir.Model, Mapping[str, str]]:
    """A copy of a model that hands on what layers in subgraphs read; by the name of a layer's input its value."""
    copy = model.clone()
    wanted = {node: layer.input for node, layer in find_inner_layers(copy).items()}
    result = _handed_on(copy.graph, wanted, count())
    return copy, {name: str(value.name) for name, value in result.items()}


def _handed_on(graph: ir.Graph, wanted: Mapping[ir.Node, str], numbers: Iterator[int]) -> dict[str, ir.Value]:
    """Values of a graph that layers in it and in its subgraphs read."""
    handed_on = {wanted[node]: value for node in graph if node in wanted and (value := node.inputs[0]) is not None}
    for node in list(graph):
        if node.op_type in BODIES and not node.domain:
            handed_on |= _from_inside(node, wanted, numbers)
    return handed_on


def _from_inside(node: ir.Node, wanted: Mapping[ir.Node, str], numbers: Iterator[int]) -> dict[str, ir.Value]:
    """New outputs of a node for what is read in its graphs."""
    graphs = [each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH]
    inside = [_handed_on(graph, wanted, numbers) for graph in graphs]
    names = [name for values in inside for name in values]
    for graph, values in zip(graphs, inside, strict=True):
        for name in names:
            maker = _maker(values.get(name))
            _name(maker.outputs[0], f"{name} {next(numbers)}")
            graph.append(maker)
            graph.outputs.append(maker.outputs[0])
    old = len(node.outputs)
    node.resize_outputs(old + len(names))
    for name, output in zip(names, node.outputs[old:], strict=True):
        _name(output, f"{name} {next(numbers)}")
    for attribute in ("scan_output_axes", "scan_output_directions"):
        if attribute in node.attributes:
            node.attributes[attribute] = ir.AttrInt64s(attribute, [*integers(node, attribute, []), *(0 for _ in names)])
    return dict(zip(names, node.outputs[old:], strict=True))


def _maker(value: ir.Value | None) -> ir.Node:
    """A node that gives a value, or an empty tensor in its stead."""
    if value is not None:
        return ir.node("Identity", [value])
    return ir.node("Constant", [], attributes={"value": ir.tensor(np.empty(0, np.float32))})


def _name(value: ir.Value, name: str) -> None:
    value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)


# Observe the inputs of layers in branches of If and bodies of Loop and Scan: the second moments of their weights.


@dataclass(frozen=True)
class CalibrateInner:
    """Observe what layers inside branches and loops read; where that cannot be done, they are rounded without it."""

    name: ClassVar[str] = "calibrate-inner"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, stats: CalibrationStats) -> Result[CalibrationStats]:
        """What was observed, with the moments of inner layers that some sample reaches."""
        layers = [layer for weight in stats.weights for layer in weight.inner]
        every = list(find_inner_layers(stats.model).values())
        if not every:
            return Result(stats, False)
        result: tuple[dict[str, Moments], dict[str, Moments]] = ({}, {})
        try:
            observer = _Observer.of(stats.model, layers, every, stats)
            is_whole = observer.observe(stats.tuning, result[0]) and observer.observe(stats.held_back, result[1])
        except ModelError as error:
            message = f"layers in branches and loops are solved without data, as what they read cannot be seen: {error}"
            return Result(stats, False, (Note(self.name, every[0].weight, message, Level.SKIPPED),))
        observed = replace(
            stats,
            moments=stats.moments | result[0],
            held_moments=stats.held_moments | result[1],
            is_thinned=stats.is_thinned or not is_whole,
        )
        if not is_whole:
            notes: tuple[Note, ...] = (out_of_time("few samples of what layers in branches and loops read"),)
        else:
            notes = tuple(self._unseen(layer) for layer in every if layer.input not in observer.reached)
        return Result(observed, True, notes)

    def _unseen(self, layer: Layer) -> Note:
        message = (
            f"no calibration sample enters the branch or loop of this {layer.op_type}: its weight {layer.weight} is "
            "rounded without data, and its loss is unknown; give samples that enter it"
        )
        return Note(self.name, layer.name.partition(" in graph ")[0], message, Level.WARNING)


@dataclass(frozen=True)
class _Observer:
    """Runs a model that hands on what inner layers read.

    taps: by the name of a layer's input the value that is it. layers: those whose moments are observed. every: all
    layers in branches and loops. reached: names of inputs that some sample has computed.
    """

    runner: Runner
    taps: Mapping[str, str]
    layers: Sequence[Layer]
    every: Sequence[Layer]
    setting: AnalysisInput
    reached: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, model: ir.Model, layers: Sequence[Layer], every: Sequence[Layer], setting: AnalysisInput
    ) -> "_Observer":
        """Raises ModelError where ONNX Runtime does not take the model."""
        showing, taps = with_inner_inputs(model)
        return cls(Runner(showing, list(taps.values())), taps, layers, every, setting)

    def observe(self, samples: Samples, moments: dict[str, Moments]) -> bool:
        """Add what samples show to the moments; whether there was time for all of them.

        Raises ModelError where ONNX Runtime cannot show it, or it is not finite or too large to be squared.
        """
        numbers = draws(self.layers)
        for start, feeds in enumerate(samples.batches(1)):
            if start and not self.setting.deadline.leaves(0):
                return False
            values = self._read(feeds)
            self.reached.update(values)
            reached = [layer for layer in self.layers if layer.input in values]
            columns = {layer.name: self._columns(layer, numbers, values[layer.input]) for layer in reached}
            accumulate(moments, self.layers, columns, values, start)
        return True

    def _read(self, feeds: Feeds) -> Feeds:
        """What the layers that a sample reaches read, by the names of their inputs. Raises ModelError."""
        try:
            values = self.runner.run(feeds, list(self.taps.values()))
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            raise ModelError(reason_of(error)) from error
        read = {layer.input: layer for layer in self.every if layer.input in self.taps}
        shown = {name: _as_batch(layer, values[self.taps[name]]) for name, layer in read.items()}
        return {name: array for name, array in shown.items() if array.size}

    def _columns(self, layer: Layer, numbers: Mapping[str, int], array: np.ndarray) -> ColumnSample:
        """As many columns of a sample as other layers have, whether it has one iteration or many. numbers: of draws."""
        each = positions_per_sample(layer, len(self.setting.tuning))
        seed = self.setting.seed * 100_003 + numbers[layer.name]
        return ColumnSample(layer, -(-each // len(array)), seed)


def _as_batch(layer: Layer, array: np.ndarray) -> np.ndarray:
    """Iterations and samples of a convolution's input on one axis; a product's of one axis as a row."""
    if layer.is_convolution and array.size:
        return array.reshape(-1, *array.shape[-1 - len(layer.kernel) :])
    return np.atleast_2d(array)
