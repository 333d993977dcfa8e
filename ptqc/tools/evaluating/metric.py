"""What a metric is, and what it sees of a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptqc.calibration.inputs import InputRole
from ptqc.errors import CalibrationError
from ptqc.evaluation.labels import no_class_number
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.arguments import shown

Outputs = Mapping[str, Any]
# Kinds of NumPy's types: texts, objects, bytes.
NO_NUMBERS = "UOS"


@dataclass(frozen=True)
class Case:
    """The samples that one label belongs to, with what the models computed.

    Attributes:
        name: Name for messages.
        feeds: Inputs of each sample by name.
        outputs: Outputs of the scored model for each sample, by name.
        firsts: The same of the first model.
        label: The label; None if there is none.
        output: Name of the output that is scored.
        roles: What each input is for.
        decode: Turns token ids into text, if a tokenizer was given.
    """

    name: str
    feeds: Sequence[Feeds]
    outputs: Sequence[Outputs]
    firsts: Sequence[Outputs]
    label: Any
    output: str
    roles: Mapping[str, InputRole]
    decode: Callable[[Sequence[int]], str] | None = None

    @property
    def answers(self) -> list[np.ndarray]:
        """The judged output of each sample. Raises CalibrationError where the model has none of this name."""
        return [self._judged(outputs) for outputs in self.outputs]

    @property
    def wanted(self) -> np.ndarray:
        """What the judged output should be: the label, or without one what the first model gives.

        Raises CalibrationError where the label is not of numbers.
        """
        if self.label is None:
            return self._judged(self.firsts[0])
        label = np.asarray(self.label)
        if label.dtype.kind in NO_NUMBERS:
            raise self.refused(f"the label is {shown(self.label)}, expected numbers")
        return label

    def whole(self, what: str) -> np.ndarray:
        """The label as whole numbers of something. Raises CalibrationError where it is anything else."""
        label = np.asarray(self.label)
        if label.dtype.kind not in "iu":
            raise self.refused(
                no_class_number(label.tolist())
                if what == "classes" and label.dtype.kind in NO_NUMBERS
                else f"the label is of type {label.dtype.name}, expected the numbers of {what}"
            )
        return label

    def _judged(self, outputs: Outputs) -> np.ndarray:
        if self.output not in outputs:
            there = ", ".join(outputs)
            raise self.refused(f"output {self.output!r} is judged, and one of the models has only {there}")
        return np.asarray(outputs[self.output])

    def fed(self, role: InputRole, sample: int = 0) -> np.ndarray | None:
        """What a sample gives the input of this role, None where the model has none."""
        feeds = self.feeds[sample]
        return next((feeds[name] for name, known in self.roles.items() if known is role), None)

    def refused(self, why: str) -> CalibrationError:
        """An error that names the case."""
        return CalibrationError(f"{self.name}: {why}")


class Metric(ABC):
    """A score of a model on data: subclass it for a metric of your own.

    Attributes:
        name: The name that `--metric` has.
        title: What the score is, with its unit.
        higher_is_better: Whether a higher score is better.
        samples: How many samples belong to one label.
        needs_labels: Whether it cannot be computed without labels.
        shown: Its name with its possible parameters, for messages.
    """

    name: ClassVar[str]
    shown: ClassVar[str] = ""
    title: str
    higher_is_better: ClassVar[bool] = True
    samples: ClassVar[int] = 1
    needs_labels: ClassVar[bool] = True

    @property
    def called(self) -> str:
        """The metric as a user names it, with its parameter."""
        return self.name

    @classmethod
    @abstractmethod
    def of(cls, parameter: str) -> "Metric | None":
        """The metric with what stands behind its name, as 5 in "top-5"; None where it takes no such thing."""

    @abstractmethod
    def measure(self, case: Case) -> tuple[Any, ...]:
        """What a case adds to the score: numbers, unless `gathered` takes something else.

        Raises CalibrationError where output and label do not fit.
        """

    def gathered(self, measured: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """What all cases add, (cases, numbers)."""
        return np.array(measured, np.float64)

    @abstractmethod
    def score(self, measured: np.ndarray) -> float:
        """The score of all cases. measured: (cases, numbers)."""

    def guessing(self, case: Case) -> float | None:
        """What guessing scores, in the metric's unit; None where that is unknown."""
        del case
        return None

    def details(self, measured: np.ndarray) -> dict[str, float]:
        """What else there is to say of all cases, by name."""
        del measured
        return {}


class Share(Metric):
    """A metric whose cases have a sum and a weight; its score is that of the sums."""

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        total, weight = measured.sum(0)
        return float(total / weight) if weight else float("nan")


# A score with its standard error, by the jackknife: what the score becomes without each group of cases.
#
# Of g groups, with the scores θ₁ … θ_g that are left without each: √((g − 1)/g · Σ (θ_i − θ̄)²) (Tukey 1958). Of a
# mean, with a case in each group, that is the usual standard error; it holds for ratios and for correlations of ranks
# as well.

GROUPS = 200  # at most
Score = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Estimate:
    """A mean over cases."""

    #: In the metric's unit.
    value: float
    #: The standard error of the value; NaN for a single case.
    standard_error: float


def estimate(score: Score, measured: np.ndarray) -> Estimate:
    """The score of cases (cases, numbers)."""
    return Estimate(score(measured), _error(_left(score, measured)))


def difference(score: Score, first: np.ndarray, other: np.ndarray) -> Estimate:
    """How far the score of the other is above that of the first, on the same cases."""
    return Estimate(score(other) - score(first), _error(_left(score, other) - _left(score, first)))


def _left(score: Score, measured: np.ndarray) -> np.ndarray:
    """The score without each group: drawn cases, so that those of one kind are spread, in whatever order they lie."""
    count = min(GROUPS, len(measured))
    if count < 2:
        return np.full(1, np.nan)
    groups = np.random.default_rng(0).permutation(len(measured)) % count
    return np.array([score(measured[groups != group]) for group in range(count)])


def _error(left: np.ndarray) -> float:
    count = len(left)
    return float(np.sqrt((count - 1) / count * np.square(left - left.mean()).sum())) if count > 1 else float("nan")


# A model's answer to a sample as one vector.


def vector(case: Case, sample: int = 0) -> np.ndarray:
    """The judged output in float64; of one vector for each token, the mean over those that are no padding."""
    answer = case.answers[sample].astype(np.float64)
    tokens, mask = case.fed(InputRole.TOKENS, sample), case.fed(InputRole.MASK, sample)
    if tokens is None or answer.ndim != 3 or answer.shape[1] != tokens.size:
        return answer.reshape(-1)
    counted = np.ones(tokens.size) if mask is None else mask.reshape(-1).astype(np.float64)
    return np.asarray(counted @ answer[0] / max(counted.sum(), 1.0))


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """The cosine of the angle between two vectors; 0 where one of them is zero."""
    sizes = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / sizes if sizes else 0.0
