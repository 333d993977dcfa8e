"""Calibration samples without data: which range pixels have, pictures in it, matched to batch normalization."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.pixel_range import COMMON, RAW, PixelRange, stated_range
from ptqc.calibration.synthetic import FREE_SIDE, Sizes, draw, is_image
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.nodes import constant, input_of, nodes_of
from ptqc.ir.recorded import DRAWING
from ptqc.notes import Level, Note
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from ptqc.passes.pipeline import default_rewrites
from ptqc.passes.quantize import match_batch_norm
from ptqc.passes.runner import in_float32, run_rewrites
from ptqc.utils.progress import Progress

STEP = "synthesize"
PROBES = 8
# How far the first convolution's outputs vary over samples, in units of its biases: 0.5 to 1.8 in most networks on
# their own data, since both come from one normalization. Of two ranges the wider is the safer one: real inputs beyond
# the range are clipped.
BALANCE = 1.3
UNBALANCED = 4.0  # further off than this factor, biases say nothing
WARNING = (
    "calibrated without data, on samples drawn by ptqc: accuracy suffers, and what is said of agreement and loss holds "
    "for drawn samples; score the result on real data, better give a few hundred unlabelled samples"
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
    if not match_batch_norm.has_statistics(model):
        return Synthetic(draw(model, limit, seed, pixels, side, short), tuple(notes))
    if (problem := match_batch_norm.problem(model)) is not None:
        notes.append(Note(STEP, "", f"not matched to batch normalization: {problem}", Level.SKIPPED))
        return Synthetic(draw(model, limit, seed, pixels, side, short), tuple(notes))
    drawn = list(draw(model, min(limit, match_batch_norm.SAMPLES), seed, pixels, side))
    matched, remark = match_batch_norm.match(_rewritten(model, drawn, fold=False), drawn, progress)
    return Synthetic(matched or draw(model, limit, seed, pixels, side, short), (*notes, Note(STEP, "", remark)))


def _pixel_ranges(model: ir.Model, seed: int, side: int) -> tuple[dict[str, PixelRange], dict[str, str]]:
    """The range of each image input, and how it was found."""
    images = {spec.name: spec.dtype for spec in input_specs(model) if is_image(spec)}
    values = {str(value.name): value for value in model.graph.inputs}
    stated = {name: RAW if dtype == np.uint8 else stated_range(values[name]) for name, dtype in images.items()}
    pixels = {name: found for name, found in stated.items() if found is not None}
    remarks = {name: f"drawn as {found.description}" for name, found in pixels.items()}
    unknown = [name for name in images if name not in pixels]
    if unknown:
        guess, reason = _guess(model, unknown, pixels, seed, side)
        pixels |= dict.fromkeys(unknown, guess)
        remarks |= dict.fromkeys(unknown, f"drawn as {guess.description}, {reason}")
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
    return COMMON[int(distances.argmin())], "of the common ranges the one that suits the first convolution's biases"


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
