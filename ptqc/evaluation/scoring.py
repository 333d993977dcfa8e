"""The score of a model in the report and in budgets of points: the user's own, or that of labelled samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ptqc.errors import UsageError
from ptqc.evaluation.labels import Labelled, Runs
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.recorded import released
from ptqc.notes import Level, Note
from ptqc.utils.arguments import shown
from ptqc.utils.progress import Progress

Evaluate = Callable[[Runs], float]
PERCENT = 100.0
STAGE = "score the float model"
STEP = "score"  # of notes
FEWEST = 30  # samples whose score tells anything


@dataclass(frozen=True)
class OwnScore:
    """A user's own function. perfect: what it gives a perfect model; None: not stated, so its numbers stay as they are.

    With it stated, scores are percent of that.
    """

    evaluate: Evaluate
    perfect: float | None = None

    def __call__(self, run: Runs) -> float:
        """The score of a model that runs so. Raises UsageError for what is no finite number."""
        result = self.evaluate(run)
        try:
            value = float(result)
        except (TypeError, ValueError) as error:
            raise UsageError(f"evaluate returned {shown(result)}; let it return one number") from error
        if not math.isfinite(value):
            raise UsageError(f"evaluate returned {value}; let it return a finite number, the higher the better")
        return value if self.perfect is None else PERCENT * value / self.perfect

    def check_percent(self, score: float, budget: str) -> None:
        """Raises UsageError where the score of the float model does not look like percent, and no scale is stated."""
        if self.perfect is None and not 1 < score <= PERCENT:
            raise UsageError(
                f"the budget {budget} counts points of a score in percent, and evaluate gives the float model "
                f"{score:.6g}: return percent, such as 100 * accuracy, or state what a perfect model scores with "
                "perfect_score=1 (100 if these are percent)"
            )


@dataclass(frozen=True)
class Scoring:
    """How models are scored, and what the float model scores.

    labelled: the samples, where labels score. notes: of the score, for the user.
    """

    title: str
    score: Callable[[Runs], float]
    float_score: float
    labelled: Labelled | None = None
    notes: tuple[Note, ...] = ()


def no_better_than_guessing(score: float, guessing: float | None, samples: int, model: str) -> str:
    """A warning where a model scores no more than guessing does; "" where it scores more, or too few samples tell.

    score, guessing: in percent; None where it is unknown.
    """
    if guessing is None or samples < FEWEST or score > guessing:
        return ""
    return (
        f"{model} scores {score:.3g} % on the labels, where guessing scores {guessing:.3g} %: check the labels, the "
        "order of the classes, and the tokenizer or preprocessing"
    )


def scoring_of(
    model: ir.Model, own: OwnScore | None, labelled: Labelled | None, counts_points: str, progress: Progress
) -> Scoring | None:
    """Score the float model; None where nothing says how.

    counts_points: the budget, as it is written, that counts points of the score; "": none. Raises UsageError for a
    score that it cannot count.
    """
    if own is None and labelled is None:
        return None
    with progress.stage(STAGE, 1) as stage:
        run = Runner(released(model)).run  # whoever scores feeds only what the model takes
        if own is None:
            assert labelled is not None
            guessing, score = labelled.guessing(run), labelled.score(run)
            message = no_better_than_guessing(score, guessing, len(labelled.samples), "the float model")
            notes = (Note(STEP, "", message, Level.WARNING),) if message else ()
            scoring = Scoring(labelled.title, labelled.score, score, labelled, notes)
        else:
            scoring = Scoring("score" if own.perfect is None else "score, %", own, own(run))
            if counts_points:
                own.check_percent(scoring.float_score, counts_points)
        stage.advance(f"{scoring.float_score:.6g}")
    return scoring
