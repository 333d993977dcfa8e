"""Calibration samples without data: which range pixels have, pictures in it, matched to batch normalization."""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.synthetic import COMMON, FREE_SIDE, RAW, PixelRange, Sizes, draw, is_image, stated_range
from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.nodes import constant, input_of, is_batchable, nodes_of, static
from ptqc.ir.recorded import DRAWING
from ptqc.notes import Level, Note
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import in_float32, run_rewrites
from ptqc.utils.progress import Progress

# Drawn samples matched to what a model's batch normalizations stored of its training data.

SAMPLES = 64
STEPS = 40
WORK = 1e12  # multiplications of all forward runs: about a minute on 2 cores
MEMORY = 1 << 30  # bytes of convolution outputs that one batch may keep for its gradient


@dataclass(frozen=True)
class _Cost:
    """What one sample costs: multiplications, and bytes of the outputs of convolutions."""

    multiplications: float
    bytes: float


def why_not_matched(model: ir.Model) -> str | None:
    """Why samples cannot be matched to the model's batch normalizations; None if they can, or if it has none."""
    if not has_statistics(model):
        return None
    specs = input_specs(model)
    if len(specs) != 1 or specs[0].dtype != np.float32:
        return "the model has other inputs than one of float32"
    if not is_batchable(model):
        return "the model does not take batches"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (`pip install 'ptqc[torch]'`)"
    return None


def has_statistics(model: ir.Model) -> bool:
    """Whether the model has batch normalizations with constant statistics."""
    return any(constant(node.inputs[4]) is not None for node in nodes_of(model, "BatchNormalization"))


def match(model: ir.Model, feeds: Sequence[Feeds], progress: Progress) -> tuple[Sequence[Feeds], str]:
    """The samples improved, none where the model does not let them, and a remark on it.

    model: in normal form but for its batch normalizations, in which `why_not_matched` finds nothing.
    """
    cost = _cost(model, feeds[0])
    steps = int(min(STEPS, WORK / (len(feeds) * cost.multiplications)))
    if steps == 0:
        return (), "not matched to batch normalization: the model is too large for that"
    size = int(np.clip(MEMORY / cost.bytes, 1, len(feeds)))
    groups = [feeds[start : start + size] for start in range(0, len(feeds), size)]
    try:
        with progress.stage("match batch normalization", steps * len(groups)) as stage:
            result = [_matched(model, group, steps, stage.advance) for group in groups]
    except Unsupported as error:
        return (), f"not matched to batch normalization: {error}"
    before, after = (np.mean([errors[i] for _, errors in result]) for i in (0, 1))
    improved = [sample for group, _ in result for sample in group]
    return improved, (
        f"{len(feeds)} samples matched to the batch normalizations in {steps} steps: "
        f"squared error of their statistics, in variances, {before:.2g} -> {after:.2g}"
    )


def _matched(
    model: ir.Model, group: Sequence[Feeds], steps: int, done: Callable[[], None]
) -> tuple[list[Feeds], tuple[float, float]]:
    from ptqc.execution.torch.distill import distill

    name = next(iter(group[0]))
    result = distill(model, np.concatenate([feeds[name] for feeds in group]), steps, done)
    return [{name: part} for part in np.split(result.batch, len(group))], (result.before, result.after)


def _cost(model: ir.Model, feeds: Feeds) -> _Cost:
    weights = {str(node.outputs[0].name): static(input_of(node, 1)) for node in nodes_of(model, "Conv")}
    taps = {name: float(np.prod(shape[1:])) for name, shape in weights.items() if shape is not None}
    outputs = Runner(model, list(taps)).run(feeds, list(taps)) if taps else {}
    multiplications = sum(outputs[name].size * taps[name] for name in taps)
    return _Cost(max(multiplications, 1.0), float(max(sum(x.nbytes for x in outputs.values()), 1)))


STEP = "synthesize"
PROBES = 8
# How far the first convolution's outputs vary over samples, in units of its biases: 0.5 to 1.8 in most networks on
# their own data, since both come from one normalization. Of two ranges the wider is the safer one: real inputs beyond
# the range are clipped.
BALANCE = 1.3
UNBALANCED = 4.0  # further off than this factor, biases say nothing
WARNING = (
    "calibrated without data, on synthetic samples: accuracy suffers, and agreement and loss hold for synthetic "
    "samples only; score the result on real data, or better, give a few hundred unlabelled samples"
)


@dataclass(frozen=True)
class Synthetic:
    """Drawn samples and what there is to say about them."""

    feeds: Iterable[Feeds]
    notes: tuple[Note, ...]


def synthesize(
    model: ir.Model,
    limit: int,
    seed: int,
    progress: Progress,
    cast_double: bool = False,
    side: int = FREE_SIDE,
    short: Sequence[Sizes] = (),
) -> Synthetic:
    """At most `limit` samples for a model, the same for the same seed.

    cast_double: compute a float64 model in float32. side: of images whose sizes the model leaves open. short: what
    short samples are like.
    Raises CalibrationError for an input that nothing can be drawn for.
    """
    if cast_double:
        model = in_float32(model)
    notes = [Note(STEP, "", WARNING, Level.WARNING)]
    if any(node.op_type in DRAWING for node in model.graph):  # rewrites could not be checked, as every run differs
        pixels = {spec.name: COMMON[0] for spec in input_specs(model) if is_image(spec)}
        return Synthetic(draw(model, limit, seed, pixels, side, short), tuple(notes))
    pixels, remarks = _pixel_ranges(model, seed, side)
    notes += [Note(STEP, name, remark) for name, remark in remarks.items()]
    if not has_statistics(model):
        return Synthetic(draw(model, limit, seed, pixels, side, short), tuple(notes))
    if (problem := why_not_matched(model)) is not None:
        notes.append(Note(STEP, "", f"not matched to batch normalization: {problem}", Level.SKIPPED))
        return Synthetic(draw(model, limit, seed, pixels, side, short), tuple(notes))
    drawn = list(draw(model, min(limit, SAMPLES), seed, pixels, side))
    matched, remark = match(_rewritten(model, drawn, fold=False), drawn, progress)
    return Synthetic(matched or draw(model, limit, seed, pixels, side, short), (*notes, Note(STEP, "", remark)))


def _pixel_ranges(model: ir.Model, seed: int, side: int) -> tuple[dict[str, PixelRange], dict[str, str]]:
    """The range of each image input, and how it was found."""
    images = {spec.name: spec.dtype for spec in input_specs(model) if is_image(spec)}
    values = {str(value.name): value for value in model.graph.inputs}
    stated = {name: RAW if dtype == np.uint8 else stated_range(values[name]) for name, dtype in images.items()}
    pixels = {name: pixel for name, pixel in stated.items() if pixel is not None}
    remarks = {name: f"generated as {pixel.description}" for name, pixel in pixels.items()}
    unknown = [name for name in images if name not in pixels]
    if unknown:
        guess, reason = _guess(model, unknown, pixels, seed, side)
        pixels |= dict.fromkeys(unknown, guess)
        remarks |= dict.fromkeys(unknown, f"generated as {guess.description}, {reason}")
    return pixels, remarks


def _guess(
    model: ir.Model, unknown: Sequence[str], known: dict[str, PixelRange], seed: int, side: int
) -> tuple[PixelRange, str]:
    """The common range that suits the first convolution's biases best, and how it was found."""
    trials = [list(draw(model, PROBES, seed, {**known, **dict.fromkeys(unknown, one)}, side)) for one in COMMON]
    balances = _balances(_rewritten(model, trials[0], fold=True), trials)
    distances = np.abs(np.log(np.maximum(balances, np.finfo(float).tiny) / BALANCE))
    if distances.min() > np.log(UNBALANCED):
        return COMMON[0], "a guess: nothing in the model says what it takes"
    return COMMON[int(distances.argmin())], "the common range that suits the biases of the first convolution best"


def _balances(model: ir.Model, trials: Sequence[Sequence[Feeds]]) -> list[float]:
    """For each trial how far the first convolution's outputs vary, in units of its biases; 0 without any."""
    biases = ((str(node.outputs[0].name), constant(input_of(node, 2))) for node in nodes_of(model, "Conv"))
    tap, bias = next(((name, bias) for name, bias in biases if bias is not None and bias.any()), ("", None))
    if bias is None:
        return [0.0] * len(trials)
    runner = Runner(model, [tap])
    spreads = [np.stack([runner.run(feeds, [tap])[tap] for feeds in trial]).var(0, ddof=1).mean() for trial in trials]
    return [float(np.sqrt(spread / np.mean(np.square(bias)))) for spread in spreads]


def _rewritten(model: ir.Model, probes: Sequence[Feeds], *, fold: bool) -> ir.Model:
    """The model in normal form, or just before batch normalization is folded."""
    copy = model.clone()
    passes = default_rewrites()
    if not fold:
        passes = tuple(takewhile(lambda step: not isinstance(step, FoldBatchNorm), passes))
    run_rewrites(copy, passes, probes[:2])
    return copy
