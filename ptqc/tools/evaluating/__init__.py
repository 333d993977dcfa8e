"""`ptqc eval`: the score of models on the user's data, side by side, each with its standard error."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.inputs import input_specs, roles
from ptqc.calibration.texts import Texts, read_tokenizer, tokenizer_calls
from ptqc.errors import Missed, ModelError, UsageError
from ptqc.evaluation.detection.detector import AnyDetector, Detector
from ptqc.evaluation.scoring import no_better_than_guessing
from ptqc.frontend.in_memory import Model
from ptqc.tools.comparing.contenders import (
    Contender,
    Run,
    contenders,
    images_as_compiled,
    of_one_interface,
    running,
    texts_as_compiled,
)
from ptqc.tools.evaluating.data import Judges, LabelledCase, read_judges, read_pictures
from ptqc.tools.evaluating.metric import Case, Estimate, Metric, Outputs, difference, estimate
from ptqc.tools.evaluating.metrics.mean_ap import MeanAP
from ptqc.tools.evaluating.own import metric_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress
from ptqc.utils.text import number, shorten, table

NAME = 48


@dataclass(frozen=True)
class EvaluatedModel:
    """The score of one model."""

    #: Its path, or that of its artifact.
    model: str
    #: What ran it, with its version.
    runtime: str
    #: Of the model file.
    bytes: int
    #: In the metric's unit, with its standard error.
    score: Estimate
    #: Further figures of the metric, by name.
    details: Mapping[str, float]
    #: Its score less that of the first model, on the same cases; None for the first model.
    difference: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "model": self.model,
            "runtime": self.runtime,
            "bytes": self.bytes,
            "score": _document(self.score),
            "details": {name: _finite(value) for name, value in self.details.items()},
            "difference": None if self.difference is None else _document(self.difference),
        }


def _document(estimate: Estimate) -> dict[str, Any]:
    return {"value": _finite(estimate.value), "standard_error": _finite(estimate.standard_error)}


def _finite(value: float) -> float | None:
    """A number that JSON has."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Evaluation:
    """The scores of all models on the same cases."""

    #: Name of the metric, such as "top-1".
    metric: str
    #: What the score is, with its unit.
    title: str
    #: Whether a larger score is better.
    higher_is_better: bool
    #: Samples, or tokens, that were scored.
    cases: int
    #: A row for each model, in the order in which they were passed.
    models: tuple[EvaluatedModel, ...]
    #: By name, why a model has no score.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: What to look at, such as images that are not prepared as for the compile.
    notes: tuple[str, ...] = ()
    #: The tokenizer that texts were read with; None if the data are no texts.
    tokenizer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "metric": self.metric,
            "title": self.title,
            "higher_is_better": self.higher_is_better,
            "cases": self.cases,
            "models": [model.to_json() for model in self.models],
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "tokenizer": self.tokenizer,
        }

    def check_drop(self, most: float) -> None:
        """Check that no score is worse than the first one by more than `most`, in the metric's unit.

        Raises Missed with the model and its difference; also where the difference is not a number.
        """
        if self.left_out:
            name, reason = next(iter(self.left_out.items()))
            raise Missed(f"{name} has no score, so that its drop is not known: {reason}")
        if len(self.models) < 2:
            raise UsageError("there is no score to compare with the first: give a second model")
        sign = -1 if self.higher_is_better else 1
        for row in self.models[1:]:
            assert row.difference is not None
            drop = sign * row.difference.value
            if not drop <= most:
                message = (
                    f"{row.model} ({row.runtime}): the score is worse than that of {self.models[0].model} by "
                    f"{drop:.3g} (± {row.difference.standard_error:.2g}), more than {most:g} ({self.title})"
                )
                raise Missed(message, f"{most:g}drop", most, _finite(drop), self.title)

    def __str__(self) -> str:
        names = list(self.models[0].details)
        heading = ("model", "runs in", "bytes", "score", "± error", *names, "vs. first", "± error")
        rows = [
            (
                shorten(row.model, NAME),
                row.runtime,
                f"{row.bytes:,}",
                f"{row.score.value:.5g}",
                number(row.score.standard_error),
                *(f"{row.details[name]:.5g}" for name in names),
                *(("", "") if row.difference is None else _signed(row.difference)),
            )
            for row in self.models
        ]
        better = "more" if self.higher_is_better else "less"
        read_with = "" if self.tokenizer is None else f"; texts are read with {self.tokenizer}"
        result = [f"{self.title} ({better} is better), with its standard error, on {self.cases:,} cases{read_with}", ""]
        left = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        warnings = [f"WARNING: {note}" for note in self.notes]
        return "\n".join([*result, table(heading, rows), *([""] if left or warnings else []), *left, *warnings])


def _signed(estimate: Estimate) -> tuple[str, str]:
    return (f"{estimate.value:+.3g}", number(estimate.standard_error))


@quiet_libraries()
def evaluate(
    *models: Model,
    metric: str | Metric | Callable[[Any, Any], float],
    data: object,
    labels: object = None,
    score_output: str | None = None,
    samples: int | None = None,
    threads: int = 0,
    tokenizer: str | PathLike[str] | None = None,
    preprocessing: AnyPreprocessing | None = None,
    detector: AnyDetector | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Score models on labelled data, and compare with the first.

    Args:
        *models: ONNX files, models in memory, and artifacts: of these the
            file and, if one runs here, the native library.
        metric: "top-1", "top-5", "map" or "map-50" (detectors, with images
            and their boxes), "mean-iou" (masks), "cross-entropy",
            "perplexity", "similarity", "cosine", "word-errors", "psnr",
            "module:function", a `ptqc.Metric`, or a function of outputs and
            label that returns a number, the higher the better. It is called
            once for each sample: outputs are a dict from names to arrays,
            each with its batch axis of 1; the label is the one of the sample.
        data: Samples as `calibration` of `ptqc.compile`, with labels beside
            them (see `ptqc eval --help`) or in `labels`.
        labels: Labels, if they are not in `data`: a path, a sequence in the
            order of the samples, or for a folder a dict from file names to
            labels.
        score_output: The output to score; default: the first.
        samples: The most labels to use.
        threads: Threads of a run; 0: one for each core.
        tokenizer: Used to decode predictions, if different from the one of
            the data.
        preprocessing: How image files become inputs, or the name of a preset;
            default: as for the first artifact.
        detector: How the models write boxes, or the name of a preset, for
            "map"; default: as for the first artifact.
        progress: Shows progress, such as `ptqc.Lines()`.

    Returns:
        The score of each model in the metric's unit (`models`), and its
        difference from the first with a standard error; `print` it.

    Raises:
        CalibrationError: Data, labels and metric do not go together.

    Example:
        >>> print(ptqc.evaluate("model.onnx", "out", metric="top-1",
        ...                     data="labelled.npz"))
    """
    requested = metric_of(metric)
    if samples is not None and samples < 1:
        raise UsageError(f"samples = {samples}; expected a positive number")
    result = [contender for model in models for contender in contenders(model, threads)]
    if not result:
        raise UsageError("there is nothing to evaluate: give ONNX files, or folders of `ptqc compile`")
    result = of_one_interface(result)
    inputs = input_specs(result[0].model)
    judged = _judged_output(result[0], score_output)
    prepared, notes = images_as_compiled(preprocessing, result, data)
    data, more = texts_as_compiled(data, result)
    notes = (*notes, *more)
    decode, input_roles = _decoder(data, tokenizer), roles(inputs)
    chosen = _of_detector(requested, Detector.of(detector), result)
    if isinstance(chosen, MeanAP):
        judges = read_pictures(data, labels, chosen.detector.classes, inputs, samples, prepared or Preprocessing())
    else:
        judges = read_judges(data, labels, chosen, result[0].model, samples, prepared)

    def case(sample: LabelledCase, outputs: Sequence[Outputs], firsts: Sequence[Outputs]) -> Case:
        return Case(sample.name, sample.feeds, outputs, firsts, sample.label, judged, input_roles, decode)

    notes = (*notes, *judges.notes)
    measured, left_out, guessing = _measure(result, judges, chosen, case, progress)
    rows = [_row(result[place], chosen, measured, place) for place in measured]
    if not rows:
        raise ModelError("; ".join(f"{name}: {reason}" for name, reason in left_out.items()))
    count = len(next(iter(measured.values())))
    warning = no_better_than_guessing(rows[0].score.value, guessing, count, rows[0].model)
    notes = (*notes, warning) if warning else notes
    used = str(data.tokenizer) if isinstance(data, Texts) else None
    return Evaluation(chosen.called, chosen.title, chosen.higher_is_better, count, tuple(rows), left_out, notes, used)


def _of_detector(metric: Metric, stated: Detector | None, contenders: Sequence[Contender]) -> Metric:
    """A metric of detectors with how these write what they find: as stated, else as the first artifact keeps it."""
    if not isinstance(metric, MeanAP):
        if stated is not None:
            raise UsageError(f"the metric {metric.called} is not one for detectors: leave out their options")
        return metric
    detectors = (one.artifact.detector for one in contenders if one.artifact is not None)
    detector = stated or next(filter(None, detectors), None)
    return metric if detector is None else replace(metric, detector=detector)


def _judged_output(first: Contender, requested: str | None) -> str:
    names = [str(value.name) for value in first.model.graph.outputs]
    if requested is not None and requested not in names:
        raise UsageError(f"{first.name} has no output {requested!r}; it has {', '.join(names)}")
    return names[0] if requested is None else requested


def _decoder(data: object, tokenizer: str | PathLike[str] | None) -> Callable[[Sequence[int]], str] | None:
    path = data.tokenizer if tokenizer is None and isinstance(data, Texts) else tokenizer
    if path is None:
        return None
    read = read_tokenizer(Path(path))

    def decode(tokens: Sequence[int]) -> str:
        with tokenizer_calls(f"tokenizer {path} fails"):
            return str(read.decode(list(tokens)))

    return decode


def _measure(
    contenders: Sequence[Contender], judges: Judges, metric: Metric, case: Callable[..., Case], progress: Progress
) -> tuple[dict[int, np.ndarray], dict[str, str], float | None]:
    """What each model's cases add to its score, by its place; why a model has none; and what guessing scores.

    A library is built for one size of samples, so it is left out where it does not take these.
    """
    runs: dict[int, Run] = {place: one.start() for place, one in enumerate(contenders)}
    numbers: dict[int, list[tuple[Any, ...]]] = {place: [] for place in runs}
    left_out: dict[str, str] = {}
    guessing: float | None = None
    with progress.stage("evaluate", judges.count) as stage:
        for result in judges.cases:
            firsts: list[Outputs] = []
            for place in list(runs):
                try:
                    with running(contenders[place]):
                        outputs: list[Outputs] = [runs[place](sample) for sample in result.feeds]
                except UsageError as error:
                    del runs[place]
                    left_out[f"{contenders[place].name} ({contenders[place].runtime})"] = str(error)
                    continue
                firsts = firsts or outputs
                scored = case(result, outputs, firsts)
                guessing = metric.guessing(scored) if guessing is None else guessing
                numbers[place].append(metric.measure(scored))
            stage.advance()
    return {place: metric.gathered(numbers[place]) for place in runs}, left_out, guessing


def _row(one: Contender, metric: Metric, measured: Mapping[int, np.ndarray], place: int) -> EvaluatedModel:
    first, own = next(iter(measured.values())), measured[place]
    apart = None if own is first else difference(metric.score, first, own)
    score, details = estimate(metric.score, own), metric.details(own)
    return EvaluatedModel(one.name, one.runtime, one.bytes, score, details, apart)
