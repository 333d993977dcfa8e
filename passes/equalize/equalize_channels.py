"""Channels scaled and rotated where single ones are far larger than others and 8-bit activations gain by it.

Channels of the model's inputs are standardized where their units differ so much that weights gain by it, too.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ptqc.calibration.ranges import RangeObserver
from ptqc.calibration.samples import Samples
from ptqc.errors import PassError
from ptqc.execution.onnxruntime import Runner
from ptqc.execution.shapes import observed_shapes
from ptqc.execution.walk import Slicer, Values
from ptqc.formats import QuantParams
from ptqc.ir.channels import ChannelTies, Rule, Shapes, find_ties
from ptqc.ir.layers import Layer, find_layers, find_weights
from ptqc.ir.nodes import initial, set_constant
from ptqc.ir.rotation_rules import ROTATIONS
from ptqc.ir.scale_rules import SCALES
from ptqc.ir.sites import source_params
from ptqc.losses import OutputLoss, recognize
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions, Phase
from ptqc.passes.base import Rewrite
from ptqc.passes.equalize.outliers import channel_axis
from ptqc.passes.equalize.rotate import Rotate, rotatable, unit_gains
from ptqc.passes.equalize.scale_channels import MOST_UNEVEN, UNEVEN, ScaleChannels, balance, smoothing, unevenness
from ptqc.passes.equalize.standardize import Standard, Standardize, can_shift, columns_of, readers
from ptqc.passes.quantize.calibrate import observed_params
from ptqc.passes.quantize.measure import key_of
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.passes.quantize.prepare import PROBES, CanonicalModel
from ptqc.passes.reconstruct.quantized_walk import run_quantized
from ptqc.passes.runner import run_rewrites
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import Progress
from ptqc.utils.stopwatch import seconds_of
from ptqc.utils.store import Store

# What 8-bit activations, and coarse weights, lose on held-back samples: to compare two spellings of one function.

# Bits of the coarse weights: few enough that what a rewrite does to weights shows.
COARSE = 4
# A difference of means that is less than so many of its standard errors is none.
SURE = 2.0


@dataclass(frozen=True, eq=False)
class SampleLosses:
    """Losses of each held-back sample (samples,): of activations alone, and of weights alone."""

    activations: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two spellings of one function on the same samples. before, after: their losses. unit: of the losses."""

    before: SampleLosses
    after: SampleLosses
    unit: str

    @property
    def is_better(self) -> bool:
        """Whether activations lose less, by more than chance, and weights no more than by chance."""
        gain, its_error = _mean_and_error(self.before.activations - self.after.activations)
        harm, error = _mean_and_error(self.after.weights - self.before.weights)
        return gain > SURE * its_error and harm <= error

    @property
    def is_better_for_weights(self) -> bool:
        """Whether weights lose less, by more than chance, and activations no more than by chance."""
        gain, its_error = _mean_and_error(self.before.weights - self.after.weights)
        harm, error = _mean_and_error(self.after.activations - self.before.activations)
        return gain > SURE * its_error and harm <= error

    def __str__(self) -> str:
        gain, error = _mean_and_error(self.before.activations - self.after.activations)
        before, after = self.before.activations.mean(), self.after.activations.mean()
        weights = f"{COARSE}-bit weights {self.before.weights.mean():.3g} and {self.after.weights.mean():.3g}"
        message = f"8-bit activations lose {before:.3g} {self.unit} without and {after:.3g} with it"
        return f"{message} (difference {gain:.2g} ± {error:.1g}), {weights}"


def _mean_and_error(differences: np.ndarray) -> tuple[float, float]:
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


@dataclass(frozen=True, eq=False)
class RoundedLosses:
    """Compares models of one function. tuning: ranges are seen on these; held_back: losses are measured on these."""

    model: ir.Model
    tuning: Samples
    held_back: Samples
    loss: str | Mapping[str, str]

    def of(self, model: ir.Model) -> SampleLosses:
        """The losses of a model with all activations in 8 bits, and of one with coarse weights."""
        setting = AnalysisInput.of(model, self.tuning, self.held_back)
        constants = {layer.weight: coarse(layer, initial(model, layer.weight)) for layer in setting.layers}
        params = source_params(setting.sites, ranges(setting))
        return SampleLosses(self.rounded(model, params, {}), self.rounded(model, {}, constants))

    @cached_property
    def unit(self) -> str:
        """Of the losses."""
        return self._judge.unit

    @cached_property
    def _reference(self) -> list[Values]:
        return run_quantized(Slicer(self.model), self.held_back, {})

    @cached_property
    def _judge(self) -> OutputLoss:
        kinds = recognize(self.model, self.held_back[0], self._reference, self.loss)
        return OutputLoss.of(kinds, self._reference)

    def rounded(
        self, model: ir.Model, params: Mapping[str, QuantParams], constants: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Losses of each sample with these tensors rounded, and other values for these constants."""
        result = run_quantized(Slicer(model), self.held_back, params, constants)
        pairs = zip(self._reference, result, strict=True)
        return np.array([self._judge(expected, outputs) for expected, outputs in pairs])


def ranges(setting: AnalysisInput) -> dict[str, QuantParams]:
    """Parameters of 8 bits by site, by the method that calibration tries first."""
    observers = {site.name: RangeObserver() for site in setting.sites}
    taps = list(dict.fromkeys(source for site in setting.sites for source in site.sources))
    runner = Runner(setting.model, taps)
    for feeds in setting.tuning:
        values = runner.run(feeds, taps)
        for site in setting.sites:
            for source in site.sources:
                observers[site.name].update(values[source])
    return {name: observed_params(observer) for name, observer in observers.items()}


def coarse(layer: Layer, weight: np.ndarray, bits: int = COARSE) -> np.ndarray:
    """A weight rounded to a grid of its own for each output, from its largest magnitude."""
    matrix = layer.matrix(weight)
    most = 2 ** (bits - 1) - 1
    step = np.maximum(np.abs(matrix).max(-1, keepdims=True) / most, np.finfo(np.float32).tiny)
    return layer.tensor((np.rint(matrix / step) * step).astype(weight.dtype))


# Samples that show whether channels are uneven, and those that ranges are seen on.
LOOKED_AT, OBSERVED = 8, 64
# The fewest held-back samples on which anything is accepted, and the most.
FEWEST, MOST = 16, 32
PARTS = ("shift", "factor")
SEPARATOR = "|"  # between the names of a part and of the tensor that is standardized
# Blocks that are tried one by one where all of them together are refused.
BLOCKS = 8
# Share of the time that is left that all of this may take; runs of a sample that one trial takes, of node by node.
SHARE, RUNS = 0.1, 8.0
STEP = "even-channels"


def equalized(
    prepared: CanonicalModel, options: CompileOptions, store: Store, deadline: Deadline, progress: Progress
) -> CanonicalModel:
    """The model with channels scaled and rotated as far as it pays; notes say what was done, or why it was undone.

    What an earlier compile accepted is taken from the store.
    """
    tuning, held_back = prepared.tuning.some(OBSERVED), prepared.held_back.some(MOST)
    if len(held_back) < FEWEST or not (options.has_codes or uneven_inputs(prepared.model, tuning.some(LOOKED_AT))):
        return prepared
    key = key_of(STEP, prepared, options.until(Phase.MEASURE))
    entry = store.get(key)
    if entry is not None:
        notes = [Note(step, subject, text, Level(level)) for step, subject, text, level in entry.document["notes"]]
        return _with_constants(prepared, entry.arrays, entry.document.get("standardized", ()), notes)
    if not _is_affordable(prepared, deadline):
        return prepared
    offers = Offers(prepared, RoundedLosses(prepared.model, tuning, held_back, options.loss), options.seed)
    standards = uneven_inputs(prepared.model, tuning)
    if standards or (options.has_codes and offers.offered()):
        with progress.stage("even out channels"):
            offers.standardize(standards)
            if options.has_codes and offers.offered():
                offers.scale()
                offers.rotate()
    result = offers.prepared
    own = [[note.step, note.subject, note.message, note.level] for note in result.notes[len(prepared.notes) :]]
    standardized = sorted(standards) if offers.is_standardized else []
    parts = [(part, name) for name in standardized for part in PARTS]
    arrays = {f"{part}{SEPARATOR}{name}": getattr(standards[name], part) for part, name in parts}
    document = {"notes": own, "standardized": standardized}
    store.put(key, document, {**arrays, **_changed(prepared.model, result.model)})
    return result


def _with_constants(
    prepared: CanonicalModel, arrays: Mapping[str, np.ndarray], standardized: Sequence[str], notes: Sequence[Note]
) -> CanonicalModel:
    """The model with other values of some constants, and what is told of them. standardized: tensors."""
    prepared = replace(prepared, notes=(*prepared.notes, *notes))
    if not arrays:
        return prepared
    model = prepared.model.clone()
    if standardized:
        parts = {name: [np.array(arrays[f"{part}{SEPARATOR}{name}"]) for part in PARTS] for name in standardized}
        run_rewrites(model, [Standardize({name: Standard(*several) for name, several in parts.items()})], [])
    for name, array in arrays.items():
        if SEPARATOR not in name:
            set_constant(model, name, np.array(array))
    return replace(prepared, model=model, equalized=constants_digest(model))


def _changed(before: ir.Model, after: ir.Model) -> dict[str, np.ndarray]:
    """The constants that are new, or have other values than they had, by name."""
    if after is before:
        return {}
    known = before.graph.initializers
    several = {name: initial(after, name) for name in after.graph.initializers}
    return {
        name: array
        for name, array in several.items()
        if name not in known or initial(before, name).tobytes() != array.tobytes()
    }


def _is_affordable(prepared: CanonicalModel, deadline: Deadline) -> bool:
    if not deadline.is_limited:
        return True
    runner, feeds = Runner(prepared.model), prepared.samples.largest[0]
    each = RUNS * seconds_of(lambda: runner.run(feeds)) * (MOST + OBSERVED)
    return deadline.share(SHARE).affords(each, 1 + BLOCKS, 0) > BLOCKS


class Offers:
    """Offers one rewrite after the other, and keeps those that pay. prepared: what there is so far."""

    def __init__(self, prepared: CanonicalModel, losses: RoundedLosses, seed: int) -> None:
        self.prepared = prepared
        self._losses, self._seed = losses, seed
        self._ties = _Ties(observed_shapes(prepared.model, prepared.samples[0]))
        self._folded: tuple[ir.Model, ir.Model, tuple[Rewrite, ...]] | None = None
        self._known: SampleLosses | None = None
        self.is_standardized = False

    def offered(self) -> bool:
        """Whether any channels that can be scaled or rotated are uneven."""
        model, few = self.prepared.model, self._losses.tuning.some(LOOKED_AT)
        scales, rotations = self._ties.of(model, SCALES), self._ties.of(model, ROTATIONS)
        reach = reach_of(model, scales, few)
        if any(unevenness(reach[group]) >= UNEVEN for group in scales.groups()):
            return True
        reach = reach_of(model, rotations, few)
        return any(unevenness(reach[rotations.classes == number]) >= UNEVEN for number in rotatable(rotations))

    def standardize(self, standards: Mapping[str, Standard]) -> None:
        """Inputs of the model whose channels differ much, all of them together."""
        if standards:
            refusal = self._try((Standardize(standards),), anywhere=True)
            if refusal is None:
                self.is_standardized = True
                self._ties = _Ties(observed_shapes(self.prepared.model, self.prepared.samples[0]))
            else:
                self._note(refusal)

    def rotate(self) -> None:
        """The residual stream and heads of values, all of them or else the uneven ones one by one.

        Gains of norms are folded into what reads them first, which alone is no rewrite that pays.
        """
        model, folds = self._fold()
        ties = self._ties.of(model, ROTATIONS)
        reach = reach_of(model, ties, self._losses.tuning)
        uneven = [x for x in rotatable(ties) if unevenness(reach[ties.classes == x]) >= UNEVEN]
        if not uneven:
            return
        all_blocks = (*folds, Rotate(ties, rotatable(ties), self._seed))
        self._try_all(all_blocks, (self._rotation(x) for x in uneven[:BLOCKS] if len(rotatable(ties)) > 1))

    def scale(self) -> None:
        """Groups of channels that are uneven, all of them or else one by one."""
        steps = list(self._scalings())
        if not steps:
            return
        all_groups = ScaleChannels(steps[0].ties, np.prod([x.factors for x in steps], 0))
        self._try_all((all_groups,), ((step,) for step in steps[:BLOCKS] if len(steps) > 1))

    def _fold(self) -> tuple[ir.Model, tuple[Rewrite, ...]]:
        """The model with the gains of norms folded, and the rewrites that do so."""
        result = self.prepared.model
        if self._folded is None or self._folded[0] is not result:
            ties = self._ties.of(result, SCALES)
            factors = unit_gains(result, ties)
            folds = () if (factors == 1).all() else (ScaleChannels(ties, factors),)
            model = result.clone() if folds else result
            run_rewrites(model, folds, [])
            self._folded = result, model, folds
        return self._folded[1:]

    def _scalings(self) -> Iterator[ScaleChannels]:
        """One for each uneven group, the most uneven first."""
        model = self.prepared.model
        ties = self._ties.of(model, SCALES)
        reach, weights = reach_of(model, ties, self._losses.tuning), weights_of(model, ties)
        groups = [group for group in ties.groups() if unevenness(reach[group]) >= UNEVEN]
        for group in sorted(groups, key=lambda group: -unevenness(reach[group])):
            factors = np.ones(len(ties.classes))
            factors[group] = smoothing(reach[group], weights[group])
            yield ScaleChannels(ties, factors)

    def _rotation(self, number: int) -> tuple[Rewrite, ...]:
        """Folds the gains of norms and rotates one block."""
        model, folds = self._fold()
        return (*folds, Rotate(self._ties.of(model, ROTATIONS), (number,), self._seed))

    def _try_all(self, together: Sequence[Rewrite], several: Iterable[Sequence[Rewrite]]) -> None:
        """All blocks together, or else each for itself; of the latter, those that do not pay are told in one note."""
        refusal = self._try(together)
        if refusal is None:
            return
        self._note(refusal)
        refused = [steps for steps in several if self._try(steps) is not None]
        if refused:
            message = f"undone one by one: {len(refused)} blocks gain nothing beyond chance"
            self._note(Note(refusal.step, "", message, Level.SKIPPED))

    def _try(self, steps: Sequence[Rewrite], *, anywhere: bool = False) -> Note | None:
        """Do rewrites where they pay; else why they are not done. anywhere: a gain of weights alone counts, too."""
        name, model = steps[-1].name, self.prepared.model.clone()
        try:
            notes = run_rewrites(model, steps, [self.prepared.samples[i] for i in range(PROBES)])
        except PassError as error:  # numbers that float32 does not bear
            return Note(name, "", f"undone: {error}", Level.SKIPPED)
        if _tied(model) < _tied(self.prepared.model):
            return Note(name, "", "undone: it would break the tied embedding", Level.SKIPPED)
        before = self._known or self._losses.of(self.prepared.model)
        compared = Comparison(before, self._losses.of(model), self._losses.unit)
        if not (compared.is_better or (anywhere and compared.is_better_for_weights)):
            self._known = before
            return Note(name, "", f"undone, {len(notes)} changes: {compared}", Level.SKIPPED)
        self._known = compared.after
        self.prepared = replace(self.prepared, model=model, equalized=constants_digest(model))
        self._note(*notes, Note(name, "", str(compared)))
        return None

    def _note(self, *notes: Note) -> None:
        self.prepared = replace(self.prepared, notes=(*self.prepared.notes, *notes))


class _Ties:
    """Ties of models by rules, which are found once. shapes: of all activations, for one sample."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._cache = list[tuple[ir.Model, Mapping[str, Rule], ChannelTies]]()

    def of(self, model: ir.Model, rules: Mapping[str, Rule]) -> ChannelTies:
        """The sets of channels of a model."""
        for known, its_rules, ties in self._cache:
            if known is model and its_rules is rules:
                return ties
        ties = find_ties(model, self._shapes, rules)
        self._cache.append((model, rules, ties))
        return ties


def _tied(model: ir.Model) -> int:
    """How many tables have the numbers of a layer's weight."""
    return sum(weight.table is not None for weight in find_weights(model, find_layers(model)))


def constants_digest(model: ir.Model) -> str:
    """Of all constants of a model."""
    result = hashlib.sha256()
    for name in sorted(model.graph.initializers):
        result.update(name.encode() + np.ascontiguousarray(initial(model, name)).tobytes())
    return result.hexdigest()


def reach_of(model: ir.Model, ties: ChannelTies, samples: Samples) -> np.ndarray:
    """The largest magnitude that each set of channels has where a layer reads it (sets,)."""
    reach = np.zeros(len(ties.classes))
    for sets, values, axes in channels_read(model, ties, samples):
        np.maximum.at(reach, sets, np.abs(values).max(axes, keepdims=True, initial=0.0))
    return reach


def mean_squares(model: ir.Model, ties: ChannelTies, samples: Samples) -> np.ndarray:
    """The mean square of each set of channels where a layer reads it (sets,)."""
    sums, counts = np.zeros(len(ties.classes)), np.zeros(len(ties.classes))
    for sets, values, axes in channels_read(model, ties, samples):
        np.add.at(sums, sets, np.square(values, dtype=np.float64).mean(axes, keepdims=True))
        np.add.at(counts, sets, 1)
    return np.asarray(sums / np.maximum(counts, 1))


def channels_read(
    model: ir.Model, ties: ChannelTies, samples: Samples
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[int, ...]]]:
    """What layers read, sample by sample: the sets of its channels, its values, and the axes that hold no channels."""
    read = dict.fromkeys(layer.input for layer in find_layers(model))
    taps = [name for name in read if name in ties.tensors]
    if not taps:
        return
    runner = Runner(model, taps)
    for feeds in samples:
        for name, values in runner.run(feeds, taps).items():
            sets = ties.tensors[name]
            yield sets, values, tuple(axis for axis, size in enumerate(sets.shape) if size == 1)


def weights_of(model: ir.Model, ties: ChannelTies) -> np.ndarray:
    """The largest magnitude of the weights that read each set of channels (sets,)."""
    weights = np.zeros(len(ties.classes))
    for layer in find_layers(model):
        role = ties.constants.get(layer.weight)
        for factor in () if role is None else role.factors:
            if role is not None and factor.power < 0:
                view = np.abs(initial(model, layer.weight)).reshape(role.view)
                rest = tuple(axis for axis in range(view.ndim) if axis not in factor.axes)
                np.maximum.at(weights, factor.numbers, view.max(rest).ravel())
    return weights


def uneven_inputs(model: ir.Model, samples: Samples) -> dict[str, Standard]:
    """What brings channels of the model's inputs to one size, where they differ by MOST_UNEVEN and more."""
    several, inputs = readers(model), {str(value.name) for value in model.graph.inputs}
    seen = {name: list[np.ndarray]() for name in several}
    runner = Runner(model, taps := [name for name in several if name not in inputs])
    for feeds in samples if seen else ():
        values = {**feeds, **(runner.run(feeds, taps) if taps else {})}
        for name, layers in several.items():
            moved = np.moveaxis(values[name], channel_axis(layers[0]), -1)
            seen[name].append(moved.reshape(-1, moved.shape[-1]))
    result = {name: standard(model, several[name], np.concatenate(rows)) for name, rows in seen.items() if rows}
    return {name: each for name, each in result.items() if np.ptp(np.log(each.factor)) >= np.log(MOST_UNEVEN)}


def standard(model: ir.Model, layers: Sequence[Layer], rows: np.ndarray) -> Standard:
    """Shift and factor of each channel of what layers read. rows: of it (rows, channels)."""
    rows = rows[np.isfinite(rows).all(-1)].astype(np.float64)
    shift = rows.mean(0) if len(rows) and can_shift(model, layers) else np.zeros(rows.shape[-1])
    reach = np.abs(rows - shift).max(0, initial=0.0)
    columns = [np.abs(columns_of(layer, initial(model, layer.weight))).max(-1) for layer in layers]
    return Standard(shift, balance(reach, np.max(columns, 0).astype(np.float64)))
