"""How good the delivered file is: agreement with the float model, score where labels are given."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.codegen.onnxruntime import verify
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.evaluation.scoring import Scoring
from ptqc.execution.agreement import Difference
from ptqc.execution.onnxruntime import Feeds, Runner, is_lean, open_packed, session_options, tensors_of
from ptqc.execution.saturation import saturates
from ptqc.execution.speed import Speed, Subject, compare
from ptqc.execution.tensors import outputs_in_files
from ptqc.ir.recorded import release, remembered
from ptqc.ir.runtimes import RULES
from ptqc.losses import Kinds, OutputKind, OutputLoss, Outputs, comparable
from ptqc.losses.base import Figure, Pair
from ptqc.losses.classes import SAME_CLASS, Classes
from ptqc.losses.recognition import states_of
from ptqc.losses.state import State
from ptqc.notes import Level, Note
from ptqc.utils.deadline import NEVER, Deadline
from ptqc.utils.progress import Progress
from ptqc.utils.text import entries, percent

Pairs = Sequence[tuple[Outputs, Outputs]]

JUDGED_SAMPLES = 64
BEST_SQNR = 300.0  # dB, what equal outputs have


@dataclass(frozen=True)
class JudgedOutput:
    """How one output agrees. losses: by group of channels, where there are several; sqnr: in dB, by group."""

    name: str
    kind: OutputKind
    loss: float
    losses: Mapping[str, float]
    sqnr: Mapping[str, float]
    figures: tuple[Figure, ...]

    @property
    def low(self) -> list[Figure]:
        """The figures that the user should be warned of."""
        return [figure for figure in self.figures if figure.is_low]

    @property
    def agreement(self) -> float | None:
        """Share of predictions with the same top class; None for outputs without classes."""
        return next((figure.value for figure in self.figures if figure.name == SAME_CLASS), None)

    @property
    def worst_sqnr(self) -> float:
        """The least signal to noise of the output's groups, in dB."""
        return min(self.sqnr.values())

    def to_json(self) -> dict[str, Any]:
        """The document for the manifest."""
        return {
            "name": self.name,
            **self.kind.to_json(),
            "judged_as": self.kind.describe(),
            "top1_agreement": self.agreement,
            "loss": self.loss,
            "loss_unit": self.kind.unit.name,
            "losses": dict(self.losses),
            "units": {group: unit.name for group, unit in self.kind.units().items()},
            "sqnr_db": self.worst_sqnr,
            "sqnr_db_by_group": dict(self.sqnr),
            "figures": [{"name": f.name, "value": f.value, "text": f.text, "low": f.is_low} for f in self.figures],
        }


@dataclass(frozen=True)
class FedBack:
    """What outputs beside states lose in runs in a row, each of which reads the states that the one before gave.

    single_loss: of the same outputs where each run reads states of the float model. agreement: see `Judged`.
    """

    runs: int
    loss: float
    single_loss: float
    loss_unit: str
    agreement: float | None

    def to_json(self) -> dict[str, Any]:
        """The document for the manifest."""
        return {
            "runs": self.runs,
            "loss": self.loss,
            "single_loss": self.single_loss,
            "loss_unit": self.loss_unit,
            "top1_agreement": self.agreement,
        }


@dataclass(frozen=True)
class Judged:
    """Held-back agreement, and scores if there were labels.

    loss: of all outputs together; by_sample: of each sample. differing: of each sample, whether a top class is another
    one. score_title: what the scores are. fed_back: of models with states alone.
    """

    samples: int
    loss: float
    loss_unit: str
    outputs: tuple[JudgedOutput, ...]
    by_sample: tuple[float, ...]
    differing: tuple[bool, ...]
    float_score: float | None = None
    compiled_score: float | None = None
    score_title: str | None = None
    fed_back: FedBack | None = None

    @property
    def agreement(self) -> float | None:
        """Share of predictions with the same top class: of the output of classes that has the least."""
        return min((each for output in self.outputs if (each := output.agreement) is not None), default=None)

    @property
    def sqnr(self) -> float:
        """Signal to noise, in dB, of the worst output or group of channels; states count only where all are states."""
        answers = [output for output in self.outputs if not isinstance(output.kind, State)] or self.outputs
        return min((output.worst_sqnr for output in answers), default=BEST_SQNR)


def judge(
    model: ir.Model,
    file: onnx.ModelProto,
    samples: Samples,
    kinds: Kinds,
    scoring: Scoring | None,
    progress: Progress,
) -> Judged:
    """Compare the packed file with the float model on samples, and score it where users say how."""
    real, packed = Runner(model), open_packed(file, model)
    with progress.stage("compare with float", len(samples)) as stage:

        def outputs() -> Iterator[Feeds]:
            for feeds in samples:
                yield tensors_of(real.run(feeds))
                yield tensors_of(packed.run(feeds))
                stage.advance()

        both = outputs_in_files(outputs())
    pairs = _in_pairs(both)
    judged = replace(judge_pairs(kinds, pairs), fed_back=_fed_back(model, (real, packed), samples, kinds, pairs))
    if scoring is None:
        return judged
    if stand_ins := remembered(model):  # whoever scores feeds only what the delivered file takes
        packed = open_packed(release(file, stand_ins)[0], model)
    with progress.stage("score the file", 1) as stage:
        score = scoring.score(packed.run)
        stage.advance(f"{score:.6g}")
    return replace(judged, float_score=scoring.float_score, compiled_score=score, score_title=scoring.title)


def judge_pairs(kinds: Kinds, pairs: Pairs) -> Judged:
    """How outputs agree, sample by sample: of the float model first, of another second."""
    measure = OutputLoss.of(kinds, [real for real, _ in pairs])
    return Judged(
        len(pairs),
        measure.mean(*zip(*pairs, strict=True)),
        measure.unit,
        tuple(_judged(name, measure, pairs) for name in kinds),
        tuple(measure(real, packed) for real, packed in pairs),
        tuple(_differs(kinds, real, packed) for real, packed in pairs),
    )


def _differs(kinds: Kinds, real: Outputs, packed: Outputs) -> bool:
    """Whether a top class is another one."""
    return any(
        not kind.same(*comparable(kind, kind.real(name, real), kind.real(name, packed))).all()
        for name, kind in kinds.items()
        if isinstance(kind, Classes)
    )


def _fed_back(
    model: ir.Model, runners: tuple[Runner, Runner], samples: Samples, kinds: Kinds, single: Pairs
) -> FedBack | None:
    """Measure what samples as runs in a row lose. None where a state does not have its input's shape in all samples."""
    answers = {name: kind for name, kind in kinds.items() if not isinstance(kind, State)}
    states = {name: read for name, read in states_of(model).items() if name in kinds.keys() - answers.keys()}
    if not states or not answers or len(states) + len(answers) < len(kinds):
        return None
    outputs = outputs_in_files(_in_a_row(runners, samples, states))
    if len(outputs) < 2 * len(samples):
        return None
    judged = judge_pairs(answers, _in_pairs(outputs))
    return FedBack(len(samples), judged.loss, judge_pairs(answers, single).loss, judged.loss_unit, judged.agreement)


def _in_pairs(outputs: Sequence[Outputs]) -> Pairs:
    """Outputs of two models that ran in turns, by sample."""
    return list(zip(outputs[::2], outputs[1::2], strict=True))


def _in_a_row(runners: tuple[Runner, Runner], samples: Samples, states: Mapping[str, str]) -> Iterator[Feeds]:
    """Yield the outputs other than states of both models for each sample, up to the first of other shapes.

    states: by output, the input that reads it in the next run.
    """
    last = [dict[str, np.ndarray]() for _ in runners]
    for feeds in samples:
        if any(array.shape != feeds[name].shape for state in last for name, array in state.items()):
            return
        outputs = [tensors_of(run.run({**feeds, **state})) for run, state in zip(runners, last, strict=True)]
        last = [{read: one[name] for name, read in states.items()} for one in outputs]
        yield from ({name: array for name, array in one.items() if name not in states} for one in outputs)


def _judged(name: str, measure: OutputLoss, pairs: Pairs) -> JudgedOutput:
    """One output."""
    kind = measure.kinds[name]
    losses = measure.mean_losses(name, *zip(*pairs, strict=True))
    loss = kind.combine(losses)
    both = (comparable(kind, kind.real(name, real), kind.real(name, packed)) for real, packed in pairs)
    arrays = [pair for pair in both if pair[0].size]
    sqnr = {group: _sqnr([_cut(pair, part) for pair in arrays]) for group, part in kind.parts().items()}
    figures = tuple(kind.figures(arrays, loss, sqnr)) if arrays else ()
    return JudgedOutput(name, kind, loss, losses, sqnr, figures)


def _cut(pair: Pair, part: tuple[int, slice] | None) -> Pair:
    """Some channels of both."""
    if part is None:
        return pair
    first, second = (np.moveaxis(x, part[0], 0)[part[1]] for x in pair)
    return first, second


def _sqnr(pairs: Sequence[Pair]) -> float:
    """10 log10 of signal power over error power."""
    signal = sum(float(np.square(real, dtype=np.float64).sum()) for real, _ in pairs)
    error = sum(float(np.square(real.astype(np.float64) - packed).sum()) for real, packed in pairs)
    if not math.isfinite(error):
        return -math.inf
    return min(BEST_SQNR, 10 * float(np.log10(max(signal, 1e-30) / error))) if error else BEST_SQNR


def to_json(judged: Judged) -> dict[str, Any]:
    """The document for the manifest."""
    return {
        "held_back_samples": judged.samples,
        "loss": judged.loss,
        "loss_unit": judged.loss_unit,
        "top1_agreement": judged.agreement,
        "sqnr_db": judged.sqnr,
        "outputs": [output.to_json() for output in judged.outputs],
        "float_score": judged.float_score,
        "compiled_score": judged.compiled_score,
        "score_title": judged.score_title,
        "fed_back": None if judged.fed_back is None else judged.fed_back.to_json(),
    }


# What a user should know where the delivered file has 8-bit weights and this machine's ONNX Runtime saturates.


def saturation_notes(exported: Exported, samples: Sequence[Feeds], runtime: str) -> tuple[Note, ...]:
    """A warning with what saturation does to the outputs on samples; none where it cannot happen.

    A note where the plan is for another runtime, which does not saturate.
    """
    needed = verify.settings(exported)
    if not (needed and saturates()):
        return ()
    off = percent(_distance(exported, samples))
    message = (
        "8-bit weights of model.onnx saturate in ONNX Runtime on this processor, unless a session sets "
        f"{entries(needed)}: without, outputs are off by {off} of their size here. artifact.session() sets it, and "
        "what is reported does not saturate; processors with VNNI need nothing"
    )
    return (Note("saturation", "", message, Level.WARNING if RULES[runtime].saturates else Level.INFO),)


def _distance(exported: Exported, samples: Sequence[Feeds]) -> float:
    """The largest relative difference that saturation makes to a float output."""
    runners = [Runner(exported.proto, options=session_options(exact_sums=choice)) for choice in (True, False)]
    differences = defaultdict[str, Difference](Difference)
    for feeds in samples:
        wanted, result = (tensors_of(runner.run(feeds)) for runner in runners)
        for name in (name for name, array in wanted.items() if array.dtype.kind == "f"):
            differences[name].add(wanted[name], result[name])
    return max((difference.relative for difference in differences.values()), default=0.0)


# How fast the delivered file is beside the float model, for one sample.

# Why speeds are not compared.
NO_TIME = "there was no time left"
NO_MEMORY = "both models, with their weights unpacked to float, may not fit into memory"


@dataclass(frozen=True)
class Measured:
    """speed: None where it was not measured; missing: why. rows: samples in a run.

    They are more than one where the model takes no single one.
    """

    speed: Speed | None
    rows: int
    missing: str = NO_TIME

    def to_json(self) -> dict[str, Any]:
        """The document for `run.json`."""
        speed = self.speed
        if speed is None:
            return {"latency": None, "latency_missing": self.missing}
        return {
            "latency": {
                "float_ms": speed.float_ms,
                "compiled_ms": speed.compiled_ms,
                "speedup": speed.ratio,
                "low": speed.low,
                "high": speed.high,
                "rounds": speed.rounds,
                "batch": self.rows,
            }
        }


def measure_speed(
    model: ir.Model, file: onnx.ModelProto, samples: Samples, progress: Progress, deadline: Deadline = NEVER
) -> Measured:
    """Run the packed file and the float model in turns on one sample."""
    if is_lean(file, model):  # both in memory at the same time, each with all of its weights in float
        return Measured(None, 1, NO_MEMORY)
    with progress.stage("compare speeds"):
        feeds, rows = one_sample(model, samples)
        return Measured(compare(Subject(model, feeds), Subject(file, feeds), deadline), rows)


def one_sample(model: ir.Model, samples: Samples) -> tuple[Feeds, int]:
    """Feeds of a single sample, and how many the model takes it for: what a reader gives may be a batch."""
    result = samples[0]
    rows = {len(array) if array.ndim else 0 for array in result.values()}
    if len(rows) != 1 or max(rows) < 2:
        return result, 1
    if samples.batchable:
        return {name: array[:1] for name, array in result.items()}, 1
    firsts = {value.shape[0] if value.shape else None for value in (*model.graph.inputs, *model.graph.outputs)}
    return result, max(rows) if firsts == rows else 1
