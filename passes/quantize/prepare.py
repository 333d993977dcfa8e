"""From what the user gave to a model in normal form and two splits of checked samples."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.continuing import continued
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputRole, conform, input_specs, roles
from ptqc.calibration.joining import takes_batches
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.plausibility import outlier_warning, preprocessing_warning
from ptqc.calibration.ranges import RangeObserver
from ptqc.calibration.recording import with_recorded
from ptqc.calibration.runnable import check_runs, runnable_short_sizes, runnable_side
from ptqc.calibration.samples import Samples, collect
from ptqc.calibration.synthetic import draw
from ptqc.calibration.texts import Texts
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.walk import Piece, Slicer
from ptqc.frontend import FILE, ModelSource
from ptqc.frontend.first_run import try_once
from ptqc.ir.external import is_in_files
from ptqc.ir.nodes import constant
from ptqc.ir.recorded import released
from ptqc.losses import check_finite
from ptqc.notes import Level, Note, out_of_time, unfit
from ptqc.passes.base import Rewrite
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.equalize.outliers import Remedy
from ptqc.passes.quantize.synthesize import synthesize
from ptqc.passes.quantize.unseen import leave_unseen_in_float
from ptqc.passes.runner import run_rewrites
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import Progress
from ptqc.utils.stopwatch import seconds_of

SYNTHETIC = "synthetic"
CONTINUED = "half of the texts go on from a cache: the keys and values that the float model gives for their beginnings"
# One sample in HELD_BACK is kept for accepting decisions, and not used for making them.
HELD_BACK = 4
FEWEST_DIFFERENT = 32
PROBES = 2
PLAUSIBLE_SAMPLES = 16
LOOKED_AT = 16  # samples in which an input may be the same
PADDED = 0.25  # share of padding that is told


@dataclass(frozen=True)
class CanonicalModel:
    """A model in normal form with its samples; `origin` describes the file it came from.

    holds_back_first: whether the first sample in HELD_BACK is held back each time, as earlier compiles did; else
    another one each time, so that kinds of samples that take turns are in both splits.
    judging: other samples, which choose nothing: a budget of loss is judged on them.
    remedies: what is split off in `model`, and which rows have scales; whole: the model without that, where there is.
    equalized: digest of the constants where channels were scaled or rotated, as held-back samples decided; else empty.
    caches: how those of a decoder are kept, for the manifest; None where nothing was asked of them.
    """

    model: ir.Model
    samples: Samples
    origin: "Origin"
    notes: tuple[Note, ...]
    holds_back_first: bool = False
    judging: Samples | None = None
    remedies: tuple[Remedy, ...] = ()
    whole: ir.Model | None = None
    equalized: str = ""
    caches: Mapping[str, Any] | None = None

    @property
    def unsplit(self) -> ir.Model:
        """The model in normal form, before anything was split off."""
        return self.model if self.whole is None else self.whole

    @property
    def tuning(self) -> Samples:
        """Samples that decisions are fitted on."""
        return self.samples.select(self._splits()[0])

    @property
    def held_back(self) -> Samples:
        """Samples that decisions are accepted on."""
        return self.samples.select(self._splits()[1])

    def _splits(self) -> tuple[list[int], list[int]]:
        count = len(self.samples)
        turns = [0 if self.holds_back_first else _turn(block) for block in range(-(-count // HELD_BACK))]
        held = {min(HELD_BACK * block + turn, count - 1) for block, turn in enumerate(turns)}
        # Copies follow the first of them, and none is held back besides it: a frequent one would be most of that split.
        originals = self.samples.originals
        if (
            self.holds_back_first or len(set(originals)) < FEWEST_DIFFERENT
        ):  # very few different ones are needed in both
            return [i for i in range(count) if i not in held], sorted(held)
        return [i for i in range(count) if originals[i] not in held], sorted(held.intersection(originals))


def _turn(number: int) -> int:
    """The sum of its digits to the base HELD_BACK, without carry: a sequence with no period (Thue and Morse's)."""
    total = 0
    while number:
        number, digit = divmod(number, HELD_BACK)
        total += digit
    return total % HELD_BACK


@dataclass(frozen=True)
class Origin:
    """The model file: name, bytes (with external data), SHA-256, and elements of all float constants.

    given: "file", or the type of a model in memory, whose serialized bytes count.
    """

    name: str
    size: int
    digest: str
    weights: int
    given: str = FILE


def gather(
    source: ModelSource,
    calibration: object,
    folder: Path,
    limit: int,
    preprocessing: Preprocessing | None,
    progress: Progress,
    seed: int = 0,
) -> Samples:
    """Check and spool the calibration samples, or draw them where `calibration` is SYNTHETIC.

    seed: of the drawn ones. Raises CalibrationError.
    """
    inputs, whole = input_specs(source.model), source.model
    source = dataclasses.replace(source, model=released(whole))
    notes: tuple[Note, ...] = ()
    is_drawn = isinstance(calibration, str) and calibration == SYNTHETIC
    if is_drawn:
        try_once(source, next(draw(source.model, 1, seed, {})))
        side = runnable_side(source.model, seed)
        short = runnable_short_sizes(source.model, seed, side)
        synthetic = synthesize(source.model, limit, seed, progress, source.cast_double, side, short)
        calibration, notes = synthetic.feeds, synthetic.notes
    batches = None if is_drawn else OpenBatches(source.model, partial(try_once, source))
    with progress.stage("read calibration data", None) as stage:
        samples = collect(
            calibration, inputs, folder, limit, preprocessing, lambda _done, _total: stage.advance(), batches
        )
    samples = dataclasses.replace(samples, notes=(*notes, *samples.notes))
    if len(samples) < 2:
        raise CalibrationError("one calibration sample was given; give at least 2, and preferably 100 or more")
    if not is_drawn:
        samples = dataclasses.replace(samples, notes=(*samples.notes, *_constant_inputs(samples)))
    if batches is not None and not batches.has_run:
        try_once(source, samples[0])
    if is_drawn or isinstance(calibration, Texts):
        samples = with_caches(source.model, samples, folder)
    return with_recorded(whole, samples, folder / "recorded", seed)


def _constant_inputs(samples: Samples) -> Iterator[Note]:
    """A warning of each input of several real numbers that is the same in all samples, of which a few are looked at."""
    first, *others = samples.some(LOOKED_AT)
    for name, array in first.items():
        if array.dtype.kind == "f" and array.size > 1 and all(np.array_equal(each[name], array) for each in others):
            message = (
                f"the same values in all of {len(others) + 1} samples that were looked at: ranges and losses hold for "
                "these alone; if it is a state, record states of real runs"
            )
            yield Note("calibrate", name, message, Level.WARNING)


def with_caches(model: ir.Model, samples: Samples, folder: Path) -> Samples:
    """The samples, of which one of every two goes on from a cache where the model is a decoder that takes one."""
    feeds = continued(model, samples)
    if feeds is None:
        return samples
    inputs = input_specs(model)
    result = samples.rewritten(folder / "continued", (conform(one, inputs, place) for place, one in enumerate(feeds)))
    return dataclasses.replace(result, notes=(*samples.notes, Note("calibration", "", CONTINUED)))


def prepare(
    source: ModelSource,
    samples: Samples,
    progress: Progress,
    dump: Dump = NO_DUMP,
    added: Sequence[Rewrite] = (),
) -> CanonicalModel:
    """Rewrite the model to normal form, checked on the first samples after every pass.

    added: rewrites of other packages, by `CompileOptions.rewrites`.
    Raises CalibrationError for samples that the model does not run on.
    """
    check_runs(source.model, samples)
    model = source.model.clone()
    passes, probes = default_rewrites(source.cast_double, added), [samples[i] for i in range(PROBES)]
    with progress.stage("normal form", len(passes)) as stage:
        notes = run_rewrites(model, passes, probes, stage.advance, dump)
    runner = Runner(model)
    check_finite(model, [runner.run(feeds) for feeds in probes])
    samples_ = dataclasses.replace(samples, batchable=takes_batches(model, runner, samples))
    unseen = [] if is_in_files(model) else leave_unseen_in_float(model, samples_)
    origin = Origin(source.path.name, source.size, source.digest, _float_elements(source.model), source.type_name)
    warnings = (
        *source.notes,
        *samples.notes,
        *_plausible(source.model, samples),
        *_outliers(source.model, samples),
        *_padding(source.model, samples, runner),
    )
    return CanonicalModel(model, samples_, origin, (*warnings, *notes, *unseen))


def _float_elements(model: ir.Model) -> int:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    return sum(tensor.size for tensor in tensors if tensor is not None and tensor.dtype in floats)


def _plausible(model: ir.Model, samples: Samples) -> Sequence[Note]:
    """A warning where image inputs look as if their preprocessing were wrong."""
    probes = list(samples.some(PLAUSIBLE_SAMPLES))
    notes = []
    for spec in input_specs(model):
        if len(spec.shape) != 4 or not {1, 3}.intersection(spec.shape[1:]) or spec.dtype.kind != "f":
            continue
        observer = RangeObserver()
        for feeds in probes:
            observer.update(feeds[spec.name])
        statistics = _first_statistics(model, spec.name, probes)
        if (message := preprocessing_warning(observer, *statistics)) is not None:
            # Without trained statistics to compare with, whole numbers up to 255 may well be what the model takes.
            level = Level.WARNING if statistics else Level.INFO
            notes.append(Note("calibration", spec.name, message, level))
    return notes


def _outliers(model: ir.Model, samples: Samples) -> Sequence[Note]:
    """A warning for each input of real numbers of which few samples are far larger than most."""
    names = [spec.name for spec in input_specs(model) if spec.dtype.kind == "f"]
    largest: dict[str, list[float]] = {name: [] for name in names}
    for feeds in samples if names else ():
        for name in names:
            magnitudes = np.abs(feeds[name])
            largest[name].append(float(magnitudes.max(initial=0, where=np.isfinite(magnitudes))))
    messages = {name: outlier_warning(values, samples.names) for name, values in largest.items()}
    return [Note("calibration", name, message, Level.WARNING) for name, message in messages.items() if message]


def _padding(model: ir.Model, samples: Samples, runner: Runner) -> Iterator[Note]:
    """A warning where much of the samples is padding, and an output has an answer at each place of it."""
    masks = [name for name, role in roles(input_specs(model)).items() if role is InputRole.MASK]
    for name in masks:
        shape = samples[0][name].shape
        seen = [feeds[name] for feeds in samples.some(LOOKED_AT)]
        share = float(np.mean([np.mean(mask == 0) for mask in seen]))
        # Of truth values 1 may mean padding; where nothing is 1, it does.
        is_clear = seen[0].dtype != bool and share < 1 and all(np.isin(mask, (0, 1)).all() for mask in seen)
        if len(shape) != 2 or share < PADDED or not is_clear:
            continue
        outputs = runner.run(samples[0])
        answers = [output for output, array in outputs.items() if array.ndim > 2 and array.shape[:2] == shape]
        if answers:
            message = (
                f"{share:.0%} of the places are padding, and losses of {', '.join(answers)} count what is there: give "
                "samples without padding (texts: padding 'none'), or score on labels"
            )
            yield Note("calibration", name, message, Level.WARNING)


def _first_statistics(model: ir.Model, name: str, probes: Sequence[Feeds]) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation per channel in front of the first batch normalization: trained, then observed.

    Empty unless that normalization stands behind the convolution that reads the input.
    """
    for node in model.graph:
        conv = node.inputs[0].producer() if node.op_type == "BatchNormalization" and node.inputs[0] else None
        if conv is None or conv.op_type != "Conv" or conv.inputs[0] is None or conv.inputs[0].name != name:
            continue
        mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
        if mean is None or variance is None:
            return ()
        tap = str(conv.outputs[0].name)
        slicer = Slicer(model)
        piece = Piece(slicer, slicer.needed(0, [tap]), [tap], {})  # the whole model may take long
        seen = np.concatenate([_by_channel(piece.run(feeds)[tap]) for feeds in probes], axis=1)
        return mean, np.sqrt(variance), seen.mean(1), seen.std(1)
    return ()


def _by_channel(x: np.ndarray) -> np.ndarray:
    """(N, C, *spatial) as (C, everything else)."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


# Fewer calibration samples where a time limit does not leave time for all.

# How often a sample is run in all, from calibration to the comparison with float.
RUNS = 20
# Of so many runs the usual time: on a busy machine, one of them may wait for a processor.
TIMED_RUNS = 3
# Share of the time that is left that these runs may take.
SHARE = 0.5
FEWEST = 8
# With fewer, ranges and losses are guesses, of which a quarter is held back.
ENOUGH = 16


def affordable(prepared: CanonicalModel, deadline: Deadline) -> CanonicalModel:
    """As many samples as there is time for: all, or an evenly spread half, a quarter, and so on.

    Halves, so that a second compile with the same limit finds what the first one stored.
    """
    samples = prepared.samples
    if not deadline.is_limited or len(samples) <= FEWEST:
        return prepared
    runner, feeds = Runner(prepared.model), samples.largest[0]
    runner.run(feeds)
    each, count = median(seconds_of(lambda: runner.run(feeds)) for _ in range(TIMED_RUNS)), len(samples)
    most = deadline.share(SHARE).affords(RUNS * each, len(samples), FEWEST)
    while count > most:
        count = max(FEWEST, count // 2)
    if count == len(samples):
        return prepared
    selected = samples.select([i * len(samples) // count for i in range(count)])
    notes = [out_of_time(f"{count} of {len(samples)} calibration samples")]
    if count < ENOUGH:
        notes.append(unfit(f"there was time for {count} of {len(samples)} calibration samples"))
    return dataclasses.replace(prepared, samples=selected, notes=(*prepared.notes, *notes))
