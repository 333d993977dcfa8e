"""What a loss budget counts, on samples that choose and on samples that judge: one class for each way of counting."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.budget import DROP, LOSS_UNITS, SAME, LossBudget
from ptqc.calibration.samples import Samples
from ptqc.errors import UsageError
from ptqc.evaluation.labels import Labelled
from ptqc.evaluation.scoring import Scoring
from ptqc.execution.bounded import outputs_in_files
from ptqc.execution.onnxruntime import Runner, open_packed
from ptqc.ir.recorded import release, released, remembered
from ptqc.losses import Kinds, OutputLoss, Outputs, comparable
from ptqc.losses.classes import Classes
from ptqc.passes.allocate.loss.bounds import draws_needed, mean_at_most, most_hits, most_of, student
from ptqc.passes.allocate.loss.flips import Flips

# Samples from which constants of a loss, such as variances, are taken.
REFERENCES = 64
# A plan is aimed at that a judge passes with this probability.
PASSING = 0.75
# Times by which one round may change the predicted loss.
MOST_ROOM = 8.0
MOST_SAMPLES = 10**6
# Samples that judge where there are as many, and how many differing ones of them the limit should allow: with fewer the
# bound asks for much less than the limit.
WANTED, WANTED_DIFFERENCES = (256, 1024), 10
STUDENT, EXACT, NO_BOUND = "Student's t, corrected for skewness", "Clopper-Pearson", "none: one figure"

Compared = Iterator[tuple[Outputs, Outputs]]


@dataclass(frozen=True)
class Lost:
    """What a file loses. value: as counted. bound: what it loses at most, with CONFIDENCE; values: by sample."""

    value: float
    bound: float
    samples: int
    method: str
    values: tuple[float, ...] = ()

    @classmethod
    def mean(cls, values: np.ndarray) -> "Lost":
        """Of values that are drawn independently."""
        return cls(float(values.mean()), mean_at_most(values), len(values), STUDENT, tuple(values.tolist()))


@dataclass(frozen=True)
class Criterion(ABC):
    """limit: what may be lost. unit: of it, as the budget writes it. order: the power of it that a loss grows with."""

    limit: float
    unit: str
    order: ClassVar[float] = 1.0

    def shown(self, lost: float) -> str:
        """What is lost, in the words of the budget."""
        if self.unit == SAME:
            return f"{100 * lost:.2f} % of the top classes"
        return f"{lost:.2f} points" if self.unit == DROP else f"{lost:.3g} {self.unit}"

    @abstractmethod
    def held(self, file: onnx.ModelProto) -> Lost:
        """What a file loses on samples that choose."""

    @abstractmethod
    def judged(self, file: onnx.ModelProto) -> Lost:
        """What it loses on samples that chose nothing."""

    @property
    @abstractmethod
    def judges(self) -> int:
        """How many samples judge."""

    @property
    def can_show(self) -> bool:
        """Whether so many samples could show that a budget is kept, and might by chance not show it."""
        return self.judges > 1

    def start(self, default: float) -> float:
        """The predicted loss of the first plan. default: what 8-bit activations may cost."""
        return default

    def room(self, held: Lost) -> float:
        """How many times as much may be predicted to be lost so that the judge still passes it with PASSING."""
        return _room(self.limit, _expected_bound(np.array(held.values), self.judges), self.order)

    def needed(self, judged: Lost) -> int | None:
        """How many samples would show what these suggest; None where no number of them would."""
        if judged.value >= self.limit or not math.isfinite(judged.bound):
            return None
        return math.ceil(judged.samples * ((judged.bound - judged.value) / (self.limit - judged.value)) ** 2)


@dataclass(frozen=True)
class Splits:
    """What samples choose (held_back) and judge (judging), and the float model that both compare with."""

    model: ir.Model
    kinds: Kinds
    held_back: Samples
    judging: Samples

    def compared(self, file: onnx.ModelProto, samples: Samples) -> Compared:
        """Outputs of the float model and of a file, sample by sample."""
        packed = open_packed(file, self.model)
        return ((self.real.run(feeds), packed.run(feeds)) for feeds in samples)

    @cached_property
    def real(self) -> Runner:
        """The float model, opened once."""
        return Runner(self.model)

    @cached_property
    def loss(self) -> OutputLoss:
        """With the constants that held-back samples give."""
        return OutputLoss.of(
            self.kinds, outputs_in_files(self.real.run(feeds) for feeds in self.held_back[:REFERENCES])
        )

    @property
    def first_classes(self) -> tuple[str, Classes]:
        """The first output of classes, with its kind."""
        return next(iter(_classes(self.kinds).items()))


@dataclass(frozen=True)
class OnSplits(Criterion):
    """What is counted on calibration samples."""

    splits: Splits

    @property
    def judges(self) -> int:
        return len(self.splits.judging)


@dataclass(frozen=True)
class MeanLoss(OnSplits):
    """The mean loss of the outputs, in their own unit."""

    def held(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, self.splits.held_back)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, self.splits.judging)

    def _lost(self, file: onnx.ModelProto, samples: Samples) -> Lost:
        loss = self.splits.loss
        found = [(loss(a, b), loss.size(a)) for a, b in self.splits.compared(file, samples)]
        return Lost.mean(_weighed(found))

    def start(self, default: float) -> float:
        del default
        return self.limit


@dataclass(frozen=True)
class SameClass(OnSplits):
    """The share of predictions whose top class is another; of several outputs of classes the one that differs most."""

    order: ClassVar[float] = 2.0  # outputs move by the root of the loss, and so many cross over

    def held(self, file: onnx.ModelProto) -> Lost:
        """As counted, drawn towards what the size of the loss makes likely: few samples show few differences."""
        name, kind = self.splits.first_classes
        losses = list[tuple[float, int]]()  # the divergence of the first output of classes

        def compared() -> Compared:
            for real, found in self.splits.compared(file, self.splits.held_back):
                losses.append((kind.combine(kind.losses(real[name], found[name])), real[name].size))
                yield real, found

        lost = self._lost(compared())
        likely = self._flips.share(float(_weighed(losses).mean()))
        count = lost.samples * likely
        value = likely * (lost.samples * lost.value + 1) / (count + 1)
        return Lost(value, lost.bound, lost.samples, lost.method, lost.values)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(self.splits.compared(file, self.splits.judging))

    def _lost(self, compared: Compared) -> Lost:
        found = [differing_classes(self.splits.kinds, *pair) for pair in compared]
        differing, predictions = (sum(numbers) for numbers in zip(*found, strict=True))
        if max(count for _, count in found) == 1:
            bound = most_of(differing, predictions)
            return Lost(differing / predictions, bound, predictions, EXACT, tuple(float(x) for x, _ in found))
        values = _weighed([(number / max(count, 1), count) for number, count in found])
        if np.ptp(values) > 0:
            return Lost.mean(values)
        more = values.copy()  # one more prediction is taken to differ: samples that are all alike show no spread
        more[0] += len(values) / predictions
        return Lost(float(values.mean()), mean_at_most(more), len(values), STUDENT, tuple(values.tolist()))

    @property
    def can_show(self) -> bool:
        return self.judges >= draws_needed(self.limit)

    @cached_property
    def _flips(self) -> Flips:
        name, kind = self.splits.first_classes
        return Flips.of(kind, (self.splits.real.run(feeds)[name] for feeds in self.splits.held_back))

    def start(self, default: float) -> float:
        return self._flips.loss(self._aim(), default)

    def _aim(self) -> float:
        """The share of differing predictions that the judge passes with PASSING."""
        most = most_hits(self.judges, self.limit)
        return self.limit if most < 0 else min(self.limit, most_of(most, self.judges, 1 - PASSING))

    def room(self, held: Lost) -> float:
        if held.method == EXACT:
            return _room(self._aim(), held.value, self.order)
        return super().room(held)

    def needed(self, judged: Lost) -> int | None:
        if judged.method != EXACT or judged.value >= self.limit:
            return super().needed(judged)
        low, high = 0, max(judged.samples, draws_needed(self.limit))
        while not self._shows(judged.value, high):
            if high > MOST_SAMPLES:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            count = (low + high) // 2
            low, high = (low, count) if self._shows(judged.value, count) else (count, high)
        return high

    def _shows(self, share: float, count: int) -> bool:
        """Whether so many samples, of which this share differs, show that the limit is kept."""
        return most_of(round(share * count), count) <= self.limit


def _scored(file: onnx.ModelProto, model: ir.Model) -> Runner:
    """A packed file as it is delivered, for whoever feeds only what that takes."""
    stand_ins = remembered(model)
    return open_packed(release(file, stand_ins)[0] if stand_ins else file, model)


@dataclass(frozen=True)
class LabelledDrop(Criterion):
    """Points of the score that are lost on labelled samples: every second one chooses, the others judge."""

    model: ir.Model
    labelled: Labelled
    order: ClassVar[float] = 2.0

    def held(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, 0)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, 1)

    def _lost(self, file: onnx.ModelProto, first: int) -> Lost:
        half, real = self.labelled.every_second(first), self._real[first::2]
        found = half.measured(_scored(file, self.model).run)
        value, drops = half.points(real) - half.points(found), half.drops(real, found)
        bound = value + mean_at_most(drops) - float(drops.mean())
        return Lost(value, bound, len(half.samples), STUDENT, tuple(drops.tolist()))

    @cached_property
    def _real(self) -> Sequence[Any]:
        return self.labelled.measured(Runner(released(self.model)).run)

    @property
    def judges(self) -> int:
        return self.labelled.every_second(1).draws


@dataclass(frozen=True)
class EvaluatedDrop(Criterion):
    """Points that the user's own score falls by. It is one figure, which judges as it is."""

    model: ir.Model
    scoring: Scoring
    order: ClassVar[float] = 2.0

    def held(self, file: onnx.ModelProto) -> Lost:
        value = self.scoring.float_score - self.scoring.score(_scored(file, self.model).run)
        return Lost(value, value, 0, NO_BOUND)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self.held(file)

    @property
    def judges(self) -> int:
        return 0

    def room(self, held: Lost) -> float:
        return _room(self.limit, held.value, self.order)

    def needed(self, judged: Lost) -> int | None:
        del judged
        return None


def differing_classes(kinds: Kinds, real: Outputs, found: Outputs) -> tuple[int, int]:
    """Predictions of a run whose top class differs, and how many there are: of the output that differs most.

    (0, 0) where no output has classes.
    """
    each = [~kind.same(*comparable(kind, real[name], found[name])) for name, kind in _classes(kinds).items()]
    nothing = np.zeros(0, np.bool_)
    worst = max(each, key=lambda differs: (differs.mean() if differs.size else 0.0, differs.size), default=nothing)
    return int(worst.sum()), int(worst.size)


def _classes(kinds: Kinds) -> dict[str, Classes]:
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Classes)}


def check_unit(budget: LossBudget, kinds: Kinds) -> None:
    """Raises UsageError where the outputs are not judged in what the budget counts."""
    if budget.unit == DROP:
        return
    unit = OutputLoss(kinds).unit
    judged = ", ".join(f"{name} as {kind.describe()}" for name, kind in kinds.items())
    fitting = f"0.01{LOSS_UNITS[unit]}"
    if budget.unit == SAME:
        if not _classes(kinds):
            raise UsageError(
                f"the budget {budget} counts top classes, but no output has classes ({judged}): "
                f"give a loss such as {fitting}, or say with --loss OUTPUT=logits which output has them"
            )
    elif budget.unit != LOSS_UNITS[unit]:
        raise UsageError(
            f"the budget {budget} does not fit: the outputs of this model are judged in {unit} ({judged}); "
            f"give a loss such as {fitting}"
        )


def samples_wanted(budget: LossBudget | None) -> int:
    """How many samples a judge is given where there are as many."""
    if budget is None or budget.unit == DROP:
        return 0
    return int(np.clip(WANTED_DIFFERENCES / budget.limit, *WANTED)) if budget.unit == SAME else WANTED[0]


def samples_necessary(budget: LossBudget) -> int:
    """How few samples could at all show that the budget is kept."""
    return draws_needed(budget.limit) if budget.unit == SAME else 2


def _weighed(found: Sequence[tuple[float, int]]) -> np.ndarray:
    """Values whose plain mean is the mean of the given ones by their weights."""
    values, weights = (np.array(column, np.float64) for column in zip(*found, strict=True))
    return np.asarray(values * weights / (weights.mean() or 1.0))


def _expected_bound(held: np.ndarray, judges: int) -> float:
    """What a judge's bound stays under with PASSING, for all that held-back samples say."""
    if len(held) < 2:
        return 2 * float(held.mean())
    luck = float(held.std(ddof=1)) * math.sqrt(1 / judges + 1 / len(held)) * student(PASSING, len(held) - 1)
    return mean_at_most(held, judges) + luck


def _room(limit: float, lost: float, order: float) -> float:
    """How many times as much may be predicted, where so much was lost; what is lost is to the power of `order`."""
    times = (limit / lost) ** order if lost > 0 else MOST_ROOM
    return float(np.clip(times, 1 / MOST_ROOM, MOST_ROOM))
