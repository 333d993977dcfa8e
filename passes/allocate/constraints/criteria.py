"""What a loss budget counts, on samples that choose and on samples that judge: one class for each way of counting."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.errors import CalibrationError
from ptqc.evaluation.labels import Labelled
from ptqc.evaluation.scoring import Scoring
from ptqc.execution.onnxruntime import Runner, open_packed
from ptqc.execution.tensors import outputs_in_files
from ptqc.ir.recorded import release, released, remembered
from ptqc.losses import Kinds, OutputLoss, Outputs, comparable
from ptqc.losses.base import some_rows
from ptqc.losses.classes import Classes
from ptqc.losses.finite_rows import finite_rows
from ptqc.losses.labels import RATE, Labels

SAME, DROP = "%same", "%drop"
# How a budget writes the units that losses are measured in, by the name that `ptqc.losses` gives them.
LOSS_UNITS = {
    "nat": "nat",
    "nat per detection": "nat/detection",
    "relative squared error": "relative",
    "cosine distance": "cosine",
}

# How much a whole population loses at most, by some of its samples: one-sided bounds of CONFIDENCE.

CONFIDENCE = 0.9
POINTS = 100.0  # of a hit
HALVINGS = 60
STEPS = 4001  # of the integral over the density
TAIL = 1e3  # no quantile that is asked for lies further out


def most_of(hits: int, count: int, confidence: float = CONFIDENCE) -> float:
    """The largest share of which `count` independent draws still show at most `hits` with probability 1 − confidence.

    Clopper and Pearson, Biometrika 26 (1934): exact for whatever the share is.
    """
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(HALVINGS):
        share = (low + high) / 2
        low, high = (share, high) if at_most(hits, count, share) > 1 - confidence else (low, share)
    return high


def at_most(hits: int, count: int, share: float) -> float:
    """Probability that at most `hits` of `count` draws are of a kind that has this share of all."""
    if hits < 0 or share >= 1:
        return float(hits >= count)
    if share <= 0:
        return 1.0
    k = np.arange(min(hits, count) + 1)
    orders = np.concatenate([[0.0], np.cumsum(np.log((count - k[1:] + 1) / k[1:]))])  # log of (count over k)
    return float(min(1.0, np.exp(orders + k * math.log(share) + (count - k) * math.log1p(-share)).sum()))


def most_hits(count: int, share: float, confidence: float = CONFIDENCE) -> int:
    """The most hits among `count` draws whose bound `most_of` is still at most `share`; -1 where not even none will do.

    It is the last k with P(at most k | share) ≤ 1 − confidence.
    """
    hits = -1
    while hits < count and at_most(hits + 1, count, share) <= 1 - confidence:
        hits += 1
    return hits


def draws_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """The fewest draws without a hit that show a share of at most `share`."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-share))


def mean_at_most(values: Sequence[float] | np.ndarray, count: int = 0) -> float:
    """An upper bound on the mean of what `values` were drawn from.

    count: of samples, where so many others of this mean, spread and skewness are meant. Student's t, corrected for the
    skewness of the sample, as losses have a long tail on the right that few samples show too little of (Hall, Annals of
    Statistics 20 (1992), the monotone transformation of the statistic).
    """
    x, count = np.asarray(values, np.float64), count or len(values)
    if min(len(x), count) < 2:
        return math.inf
    mean, spread = float(x.mean()), float(x.std(ddof=1))
    if not spread > 0:
        return mean
    t, root = student(CONFIDENCE, count - 1), math.sqrt(count)
    centred = x - mean
    skewness = float((centred**3).mean() / (centred**2).mean() ** 1.5) / root
    if skewness <= 1e-6:  # a tail on the left makes no bound tighter
        return mean + t * spread / root
    return mean - 3 / skewness * (float(np.cbrt(1 - skewness * (t + skewness / 6))) - 1) * spread / root


def drop_at_most(drops: Sequence[float] | np.ndarray, count: int = 0) -> float:
    """An upper bound on the points that a score of hits falls by, from +100, 0 or -100 points of each sample.

    count: see `mean_at_most`, whose bound is too low where few answers change: it is at least what is lost, at most,
    by answers that become wrong (`most_of`), less what those that become right gain.
    """
    x = np.asarray(drops, np.float64)
    count = count or len(x)
    wrong, right = (float((sign * x > 0).mean()) for sign in (1, -1))
    return max(mean_at_most(x, count), POINTS * (most_of(round(wrong * count), count) - right))


@cache
def student(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution above its median, to six digits."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    low, high = 0.0, TAIL
    for _ in range(HALVINGS):
        t = (low + high) / 2
        # The substitution x = sqrt(freedom) tan(a) makes the density a power of cos(a).
        end = math.atan(t / math.sqrt(freedom))
        angles = np.linspace(0, end, STEPS)
        area = scale * math.sqrt(freedom) * _simpson(np.cos(angles) ** (freedom - 1), end)
        low, high = (t, high) if 0.5 + area < probability else (low, t)
    return high


def _simpson(heights: np.ndarray, width: float) -> float:
    inner = 4 * heights[1:-1:2].sum() + 2 * heights[2:-1:2].sum()
    return float((heights[0] + inner + heights[-1]) * width / (len(heights) - 1) / 3)


# How many top classes a loss of class scores is likely to change, told from the float scores alone.
#
# Noise of variance σ² on every score costs KL ≈ ½ σ² (1 − Σ_c p_c²) to second order, and the two best classes change
# places with probability Φ(−m / (σ√2)) where the second is m behind. Both are means over predictions.

MOST_ROWS = 4096
FLIP_HALVINGS = 50
RANGE = (1e-8, 1e2)  # of losses
SMALLEST_SHARE = 1e-9


@dataclass(frozen=True)
class Flips:
    """margins: of the best class before the second, in log probabilities. doubt: the mean of 1 − Σ p²."""

    margins: np.ndarray
    doubt: float

    @classmethod
    def of(cls, kind: Classes, values: Iterable[np.ndarray]) -> "Flips":
        """What float outputs say."""
        rows = list[np.ndarray]()
        for value in values:
            rows.append(some_rows(kind.log_probabilities(value), kind.axis)[:MOST_ROWS])
            if sum(map(len, rows)) >= MOST_ROWS:
                break
        log_p = np.concatenate(rows)[:MOST_ROWS]
        if log_p.shape[1] < 2:
            return cls(np.full(len(log_p), np.inf), 1.0)
        best = np.sort(log_p, axis=1)[:, -2:]
        doubt = float(np.mean(1 - np.exp(2 * log_p).sum(1)))
        return cls(best[:, 1] - best[:, 0], max(doubt, 1e-6))

    def share(self, loss: float) -> float:
        """The share of predictions that change where the mean divergence is `loss`."""
        sigma = math.sqrt(2 * max(loss, RANGE[0]) / self.doubt)
        return max(float(np.mean([0.5 * math.erfc(m / (2 * sigma)) for m in self.margins])), SMALLEST_SHARE)

    def loss(self, share: float, most: float) -> float:
        """The loss, at most `most`, with which this share changes."""
        low, high = math.log(RANGE[0]), math.log(most)
        for _ in range(FLIP_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share(math.exp(middle)) < share else (low, middle)
        return math.exp(low)


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
CHANGED = f"{STUDENT}, and at least Clopper-Pearson of answers that became wrong"
# Classifiers that are so certain were probably trained on the samples. Files of three networks that are (0.992 to 0.999
# on average) lost 4.6 to 27 times as much on evaluation data as on calibration samples, of four others (0.57 to 0.95)
# 1.4 to 2.5 times.
CERTAIN = 0.99

# Of fewer values no bound on their mean is to be trusted.
FEWEST_JUDGES = 8

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
    def mean(cls, values: np.ndarray, most: float = 0.0) -> "Lost":
        """Of values that are drawn independently. most: what another may be, where these are all alike."""
        bound = mean_at_most(values)
        if len(values) and not np.ptp(values) > 0:
            bound = max(bound, most * most_of(0, len(values)))
        return cls(float(values.mean()), bound, len(values), STUDENT, tuple(values.tolist()))


@dataclass(frozen=True)
class Criterion(ABC):
    """limit: what may be lost. unit: of it, as the budget writes it.

    order: the power of the limit that a loss grows with. who_judges: in words, which of a user's samples judge.
    """

    limit: float
    unit: str
    order: ClassVar[float] = 1.0
    who_judges: ClassVar[str] = "a quarter of all samples, or all beyond --samples, judge"

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
        return self.judges >= FEWEST_JUDGES

    @property
    def certainty(self) -> float | None:
        """The float model's mean probability of its top class on judging samples; None where it does not classify."""
        return None

    @property
    def measured_on(self) -> int:
        """How many of the judging samples are also among those that weights were fitted to."""
        return 0

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
            self.kinds, outputs_in_files(self.real.run(feeds) for feeds in self.held_back.some(REFERENCES))
        )

    @property
    def first_classes(self) -> tuple[str, Classes]:
        """The first output of classes, with its kind."""
        return next(iter(outputs_of_classes(self.kinds).items()))


@dataclass(frozen=True)
class OnSplits(Criterion):
    """What is counted on calibration samples."""

    splits: Splits

    @property
    def judges(self) -> int:
        return len(self.splits.judging)

    @property
    def certainty(self) -> float | None:
        """Of one prediction for each sample: in maps and texts, most predictions are certain of any sample."""
        if not outputs_of_classes(self.splits.kinds):
            return None
        name, kind = self.splits.first_classes
        top = list[float]()
        for feeds in self.splits.judging:
            rows = some_rows(kind.log_probabilities(self.splits.real.run(feeds)[name]), kind.axis)
            if len(rows) > 1:
                return None
            top.append(float(np.exp(rows.max())))
        return float(np.mean(top))


@dataclass(frozen=True)
class MeanLoss(OnSplits):
    """The mean loss of the outputs, in their own unit."""

    def held(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, self.splits.held_back)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, self.splits.judging)

    def _lost(self, file: onnx.ModelProto, samples: Samples) -> Lost:
        loss = self.splits.loss
        result = [(loss(a, b), loss.size(a, b)) for a, b in self.splits.compared(file, samples)]
        labels = (kind for kind in loss.kinds.values() if isinstance(kind, Labels))
        lost = Lost.mean(_weighed(result), sum(RATE * loss.rate(kind) for kind in labels))
        return lost if lost.samples >= FEWEST_JUDGES else replace(lost, bound=math.inf)

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
        loss = OutputLoss({name: kind})
        losses = list[tuple[float, int]]()  # the divergence of the first output of classes

        def compared() -> Compared:
            for real, packed in self.splits.compared(file, self.splits.held_back):
                losses.append((loss(real, packed), loss.size(real, packed)))
                yield real, packed

        lost = self._lost(compared())
        likely = self._flips.share(float(_weighed(losses).mean()))
        count = lost.samples * likely
        value = likely * (lost.samples * lost.value + 1) / (count + 1)
        return Lost(value, lost.bound, lost.samples, lost.method, lost.values)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(self.splits.compared(file, self.splits.judging))

    def _lost(self, compared: Compared) -> Lost:
        result = most_differing([differing_classes(self.splits.kinds, *pair) for pair in compared])
        differing, predictions = (sum(numbers) for numbers in zip(*result, strict=True))
        if max(count for _, count in result) == 1:
            bound = most_of(differing, predictions)
            return Lost(differing / predictions, bound, predictions, EXACT, tuple(float(x) for x, _ in result))
        if not predictions:
            return Lost(0.0, 1.0, len(result), STUDENT)
        lost = Lost.mean(_weighed([(number / count, count) for number, count in result if count]), 1.0)
        return replace(lost, bound=min(lost.bound, 1.0))

    @property
    def can_show(self) -> bool:
        return self.judges >= draws_needed(self.limit)

    @cached_property
    def _flips(self) -> Flips:
        name, kind = self.splits.first_classes
        values = (self.splits.real.run(feeds)[name] for feeds in self.splits.held_back)
        return Flips.of(kind, (finite_rows(kind, value)[0] for value in values))

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
        return _fewest(lambda count: most_of(round(judged.value * count), count) <= self.limit)


def _fewest(shows: Callable[[int], bool], too_few: int = 0) -> int | None:
    """The fewest samples that show a limit, None where a million do not. too_few: so many do not."""
    low, high = too_few, max(2 * too_few, 2)
    while not shows(high):
        if high > MOST_SAMPLES:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        count = (low + high) // 2
        low, high = (low, count) if shows(count) else (count, high)
    return high


def _scored(file: onnx.ModelProto, model: ir.Model) -> Runner:
    """A packed file as it is delivered, for whoever feeds only what that takes."""
    stand_ins = remembered(model)
    return open_packed(release(file, stand_ins)[0] if stand_ins else file, model)


@dataclass(frozen=True)
class LabelledDrop(Criterion):
    """Points of the score that are lost on labelled samples: every second one chooses, the others judge.

    calibration: the samples that weights are fitted to.
    """

    model: ir.Model
    labelled: Labelled
    calibration: Samples | None = None
    order: ClassVar[float] = 2.0
    who_judges: ClassVar[str] = "half of the labelled samples judge"

    def held(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, 0)

    def judged(self, file: onnx.ModelProto) -> Lost:
        return self._lost(file, 1)

    def _lost(self, file: onnx.ModelProto, first: int) -> Lost:
        half, real = self.labelled.every_second(first), self._real[first::2]
        result = half.measured(_scored(file, self.model).run)
        value, drops = half.points(real) - half.points(result), half.drops(real, result)
        bound = value + self._at_most(drops) - float(drops.mean())
        if not np.ptp(drops) > 0:  # what no picture shows may still be in others
            bound = max(bound, POINTS * most_of(0, len(half.samples)))
        return Lost(value, bound, len(half.samples), CHANGED if half.counts_hits else STUDENT, tuple(drops.tolist()))

    def _at_most(self, drops: Sequence[float] | np.ndarray, count: int = 0) -> float:
        return (drop_at_most if self.labelled.counts_hits else mean_at_most)(drops, count)

    @cached_property
    def _real(self) -> Sequence[Any]:
        result = self.labelled.measured(Runner(released(self.model)).run)
        for first, use in enumerate(("choose", "judge")):
            half = self.labelled.every_second(first)
            if math.isnan(half.points(result[first::2])):
                raise CalibrationError(
                    f"the {len(half.samples)} labelled samples that {use} hold nothing that is scored: give more labels"
                )
        return result

    @property
    def judges(self) -> int:
        return self.labelled.every_second(1).draws

    @property
    def measured_on(self) -> int:
        judges = self.labelled.every_second(1).samples
        return 0 if self.calibration is None else sum(judges.among(self.calibration))

    @property
    def can_show(self) -> bool:
        fewest = draws_needed(self.limit / POINTS) if self.labelled.counts_hits else FEWEST_JUDGES
        return self.judges >= fewest

    def room(self, held: Lost) -> float:
        if not self.can_show:  # what is seen is all that there is to go by
            return _room(self.limit, held.value, self.order)
        return _room(self.limit, _expected_bound(np.array(held.values), self.judges, self._at_most), self.order)

    def needed(self, judged: Lost) -> int | None:
        if not self.labelled.counts_hits or judged.value >= self.limit:
            return super().needed(judged)
        # Of the judges' own number no fewer, as these did not show it.
        return _fewest(lambda count: self._at_most(judged.values, count) <= self.limit, judged.samples)


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


Differing = tuple[int, int]  # predictions whose top class differs, and how many there are


def differing_classes(kinds: Kinds, real: Outputs, outputs: Outputs) -> dict[str, Differing]:
    """By output of classes, which predictions of a run differ."""
    same = {
        name: kind.same(*comparable(kind, real[name], outputs[name]))
        for name, kind in outputs_of_classes(kinds).items()
    }
    return {name: (int(np.sum(~one)), int(one.size)) for name, one in same.items()}


def most_differing(runs: Sequence[Mapping[str, Differing]]) -> list[Differing]:
    """Of each run, the output of which most differs in all of them. runs: see `differing_classes`."""

    def share(name: str) -> float:
        differing, count = (sum(numbers) for numbers in zip(*(run[name] for run in runs), strict=True))
        return differing / count if count else -1.0

    worst = max(runs[0], key=share)
    return [run[worst] for run in runs]


def outputs_of_classes(kinds: Kinds) -> dict[str, Classes]:
    """The outputs that are compared as classes."""
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Classes)}


def _weighed(pairs: Sequence[tuple[float, int]]) -> np.ndarray:
    """Values whose mean is the mean of all by their weights, and whose spread is that mean's; pairs: (value, weight).

    A mean by weights is a ratio of two sums, R = Σ v w / Σ w. Leaving out sample i changes it by (v − R) w / (Σ w − w),
    of which the jackknife makes pseudo-values (Tukey 1958); here their mean is R. What weighs nothing is left out.
    """
    values, weights = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    if not np.ptp(weights) > 0:
        return values
    values, weights = values[weights > 0], weights[weights > 0]
    if len(values) < 2:
        return values
    mean, total = float((values * weights).sum() / weights.sum()), weights.sum()
    pseudo = (len(values) - 1) * (values - mean) * weights / (total - weights)
    return np.asarray(mean + pseudo - pseudo.mean())


def _expected_bound(held: np.ndarray, judges: int, at_most: Callable[[np.ndarray, int], float] = mean_at_most) -> float:
    """What a judge's bound stays under with PASSING, for all that held-back samples say. at_most: the bound."""
    if len(held) < 2:
        return 2 * float(held.mean())
    luck = float(held.std(ddof=1)) * math.sqrt(1 / judges + 1 / len(held)) * student(PASSING, len(held) - 1)
    return at_most(held, judges) + luck


def _room(limit: float, lost: float, order: float) -> float:
    """How many times as much may be predicted, where so much was lost; what is lost is to the power of `order`."""
    times = (limit / lost) ** order if lost > 0 else MOST_ROOM
    return float(np.clip(times, 1 / MOST_ROOM, MOST_ROOM))
