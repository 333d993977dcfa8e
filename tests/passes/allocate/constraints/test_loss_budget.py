"""A budget of loss: the rounds close in on it, the judge decides in an order fixed before, and what it says is told."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiling import compiled, kept_budgets, quick, residual, samples

import ptqc
from ptqc.artifact.fit_for_use import check_budgets
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.errors import Infeasible, Missed, UsageError
from ptqc.execution.onnxruntime import Runner
from ptqc.losses import OutputLoss
from ptqc.losses.classes import Logits
from ptqc.notes import Level
from ptqc.passes.allocate.constraints import loss
from ptqc.passes.allocate.constraints.criteria import Criterion, Lost, mean_at_most
from ptqc.passes.allocate.constraints.loss import CLOSE, ROUNDS, LossBudget, Round, Verdict, loss_report
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import SILENT

COUNT = 96
FLOAT = residual()
DATA = samples(3, 8, 8, count=COUNT)


@dataclass(frozen=True)
class Planted(Criterion):
    """Files lose what `lost` says of them, by their bytes."""

    lost: dict[bytes, float]

    def held(self, data: bytes) -> Lost:
        return Lost(self.lost[data], 0.0, 64, "planted")

    def judged(self, data: bytes) -> Lost:
        return Lost(self.lost[data], self.lost[data], 64, "planted")

    @property
    def judges(self) -> int:
        return 64

    def room(self, held: Lost) -> float:
        return min(8.0, max(0.125, self.limit / held.value))


class Builder:
    """Plans that lose `factor` times the power `order` of what is predicted."""

    job: Any = SimpleNamespace(analysis=SimpleNamespace(loss_unit="nat"))

    def __init__(self, limit: float, factor: float, order: float) -> None:
        self.criterion, self.factor, self.order = Planted(limit, "nat", {}), factor, order

    def __call__(self, limit: float, earlier: Sequence[Round]) -> Round | None:
        if any(one.limit == limit for one in earlier):
            return None
        lost = self.factor * limit**self.order
        return round_of(limit, lost, 1000 - len(earlier), self.criterion)


def round_of(limit: float, lost: float, size: int, criterion: Planted) -> Round:
    data = bytes(size)
    criterion.lost[data] = lost
    fitted: Any = SimpleNamespace(
        exported=SimpleNamespace(proto=data, size=len(data)), allocation=SimpleNamespace(loss=0.75 * limit)
    )
    job: Any = SimpleNamespace(analysis=SimpleNamespace(activation_loss=0.25 * limit))
    return Round(limit, job, fitted, criterion.held(data), criterion.room(criterion.held(data)))


@pytest.mark.parametrize("factor", [0.05, 0.7, 1.0, 1.5, 6.0, 50.0])
@pytest.mark.parametrize("order", [0.8, 1.0, 1.5])
def test_rounds_close_in_on_the_largest_limit_that_is_good(factor: float, order: float) -> None:
    build: Any = Builder(0.01, factor, order)
    with SILENT.stage("") as stage:
        rounds = loss._rounds(build, StartsAtLimit(0.01, "nat", {}), Deadline(), stage)
    best = (0.01 / factor) ** (1 / order)
    good = max((one.limit for one in rounds if one.room >= 1), default=0.0)
    assert len(rounds) <= ROUNDS
    assert good <= best * (1 + 1e-9)
    assert good >= best / (CLOSE * 1.3)


class StartsAtLimit(Planted):
    def start(self, default: float) -> float:
        del default
        return self.limit


def test_there_is_no_round_for_which_there_is_no_time() -> None:
    build: Any = Builder(0.01, 6.0, 1.0)
    with SILENT.stage("") as stage:
        assert len(loss._rounds(build, StartsAtLimit(0.01, "nat", {}), Deadline(0.0), stage)) == 1


def verdict_of(*lost: float) -> Verdict:
    """Of files of 100, 99, … bytes, given in another order."""
    criterion = Planted(0.01, "nat", {})
    rounds = [round_of(0.01, value, 100 - number, criterion) for number, value in enumerate(lost)]
    return loss._judge(criterion, rounds[::-1], range(len(rounds)), SILENT)


@pytest.mark.parametrize(
    ("lost", "delivered", "judged", "kept"),
    [
        ((0.004, 0.006, 0.02, 0.001), 99, 3, True),  # what lies behind the first that fails is never looked at
        ((0.02, 0.001), 100, 1, False),
        ((0.004, 0.006), 99, 2, True),
        ((0.01,), 100, 1, True),
        ((float("nan"),), 100, 1, False),
    ],
)
def test_the_judge_goes_from_the_largest_to_the_first_that_fails(
    lost: tuple[float, ...], delivered: int, judged: int, kept: bool
) -> None:
    result = verdict_of(*lost)
    assert result.rounds[result.delivered].size == delivered
    assert (len(result.judged), result.is_kept) == (judged, kept)


def test_a_sequence_of_tests_errs_as_rarely_as_one() -> None:
    """Of five files that all lose more than the limit, one passes in at most one of ten draws of the judges."""
    random, count, wrong = np.random.default_rng(0), 60, 0
    for _ in range(400):
        drawn = random.normal(0.0102, 0.002, (5, count))
        bounds = [mean_at_most(x) for x in drawn]
        wrong += verdict_of(*bounds).is_kept
    assert wrong / 400 <= 0.1


def test_what_is_missed_says_what_helps() -> None:
    budget = LossBudget(0.01, "nat")
    over = loss_report(budget, verdict_of(0.02), "nat")
    assert "the file loses 0.02 nat on 64 judging samples, over the budget of 0.01nat" in str(over.notes)
    result = verdict_of(0.008)
    unsure = replace(result, judged={0: Lost(0.008, 0.012, 64, "planted")})
    text = loss_report(budget, unsure, "nat")
    assert text.document["samples_needed"] == 256
    assert "may lose up to 0.012 nat" in str(text.notes)
    assert "about 192 more judging samples" in str(text.notes)
    with pytest.raises(Missed, match="without strict the file is delivered") as missed:
        check_budgets({"loss": text})
    assert missed.value.figures == {"budget": "0.01nat", "limit": 0.01, "value": 0.012, "unit": "nat"}
    check_budgets({"loss": loss_report(budget, result, "nat")})


@pytest.mark.parametrize(("certainty", "is_told"), [(0.996, True), (0.95, False), (None, False)])
def test_samples_that_a_model_was_probably_trained_on_are_told(certainty: float | None, is_told: bool) -> None:
    result = verdict_of(0.008)
    certain: Any = SimpleNamespace(certainty=certainty, limit=0.01, measured_on=0)
    notes = loss_report(LossBudget(0.01, "nat"), replace(result, criterion=certain), "nat").notes
    assert [note.level for note in notes] == [Level.WARNING] * is_told
    assert ("a mean probability of 0.996 on the judging samples" in str(notes)) == is_told


def test_what_has_no_bound_is_said_without_one() -> None:
    result = verdict_of(0.008)
    alone = replace(result.rounds[0], held=Lost(0.008, float("inf"), 1, "planted"))
    document = loss_report(LossBudget(0.01, "nat"), replace(result, rounds=(alone,)), "nat").document
    assert document["measured"] == {"lost": 0.008, "bound": None, "samples": 1, "method": "planted"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loss")


@pytest.fixture(scope="module")
def kept(place: Path) -> Artifact:
    return compiled(FLOAT, DATA, place, "0.002nat", bits=(2, 4, 7))


def resolve(artifact: Artifact, folder: Path, budget: Any, **options: Any) -> Artifact:
    with quick():
        return ptqc.resolve(
            artifact.folder, output=folder, budget=budget, cache=artifact.folder.parent / "cache", **options
        )


@pytest.mark.long
def test_the_delivered_file_keeps_the_loss_on_samples_that_chose_nothing(kept: Artifact) -> None:
    """Judged here once more, on the samples that are not among the calibrated ones."""
    result = kept.manifest["loss_budget"]
    assert kept_budgets(kept) == {"loss": True}
    assert kept.manifest["calibration"]["samples"] == COUNT - COUNT // 4
    real, packed = Runner(kept.folder.parent / "model.onnx"), Runner(kept.path)
    x = DATA[2::4]  # in the middle of every four
    kind = OutputLoss.of({"y": Logits(1)}, [{"y": np.zeros((1, 10))}])
    lost = [kind(real.run({"x": row[None]}), packed.run({"x": row[None]})) for row in x]
    assert result["judged"]["lost"] == pytest.approx(np.mean(lost), rel=1e-6)
    assert result["judged"]["bound"] == pytest.approx(mean_at_most(lost), rel=1e-6)
    assert result["judged"]["bound"] <= 0.002
    assert result["rounds"][result["delivered"]]["bytes"] == kept.path.stat().st_size


@pytest.mark.slow
def test_a_larger_loss_takes_fewer_bytes(kept: Artifact, tmp_path: Path) -> None:
    larger = resolve(kept, tmp_path / "out", "0.02nat")
    assert kept_budgets(larger)["loss"]
    assert larger.path.stat().st_size < kept.path.stat().st_size


@pytest.mark.long
def test_documents_tell_the_loss(kept: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(kept.summary().split())
    assert "on 24 judging samples, at most" in text
    assert "of the budget of 0.002nat" in text
    assert 'id="loss-budget"' in (kept.folder / "report.html").read_text()
    assert main(["explain", str(kept.folder)]) == 0
    assert "of the budget of 0.002nat" in capsys.readouterr().out


def test_what_is_not_shown_counts_where_asked_for(kept: Artifact, tmp_path: Path) -> None:
    """24 samples show at most 90.9 %, however many agree."""
    missed = resolve(kept, tmp_path / "missed", "99%same")
    assert kept_budgets(missed) == {"loss": False}
    assert not all(kept_budgets(missed).values())
    assert "more judging samples would show that it is kept; a quarter" in " ".join(missed.summary().split())
    words = ["resolve", str(kept.folder), "-o", str(tmp_path / "strict"), "--budget", "99%same", "--strict", "-q"]
    assert main([*words, "--cache", str(kept.folder.parent / "cache")]) == 2
    assert not (tmp_path / "strict").exists()


@pytest.mark.slow
def test_budgets_that_contradict_each_other_are_refused(kept: Artifact, tmp_path: Path) -> None:
    both = resolve(kept, tmp_path / "both", ["14%", "0.02nat"])
    assert kept_budgets(both) == {"size": True, "loss": True}
    with pytest.raises(Infeasible, match=r"12% and 1e-05nat contradict .* loses about .* nat on held-back"):
        resolve(kept, tmp_path / "contradicting", ["12%", "0.00001nat"])


@pytest.mark.slow
def test_samples_that_judge_can_come_later(kept: Artifact, tmp_path: Path) -> None:
    cache = kept.folder.parent / "cache"
    plain = compiled(FLOAT, DATA, tmp_path, "13%", bits=(2, 7), cache=cache)
    assert plain.manifest["loss_budget"] is None
    with quick(), pytest.raises(UsageError, match="set none aside: give more samples with --data"):
        ptqc.resolve(plain.folder, output=tmp_path / "none", budget="0.05nat", cache=cache)
    value = np.concatenate([DATA, samples(3, 8, 8, count=20, seed=1)])
    with quick():
        result = ptqc.resolve(plain.folder, output=tmp_path / "later", budget="0.05nat", cache=cache, data=value)
    assert result.manifest["loss_budget"]["judged"]["samples"] == 20


def test_a_drop_of_the_score_is_judged_on_labels_that_chose_nothing(kept: Artifact, tmp_path: Path) -> None:
    real, x = Runner(kept.folder.parent / "model.onnx"), samples(3, 8, 8, count=80, seed=3)
    right = np.array([real.run({"x": row[None]})["y"].argmax() for row in x])
    np.savez(tmp_path / "labelled.npz", x=x, labels=np.where(np.arange(80) % 8, right, (right + 1) % 10))
    result = resolve(kept, tmp_path / "out", "20%drop", labels=tmp_path / "labelled.npz")
    assert kept_budgets(result) == {"loss": True}
    packed = Runner(result.path)
    kept_classes = [packed.run({"x": row[None]})["y"].argmax() == label for row, label in zip(x, right, strict=True)]
    judged = result.manifest["loss_budget"]["judged"]
    assert judged["samples"] == 40
    assert judged["lost"] <= judged["bound"] <= 20
    assert np.mean(kept_classes) >= 0.7
    assert result.path.stat().st_size < kept.path.stat().st_size


def test_a_score_needs_labels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1%drop counts points of a score: give --labels"):
        compiled(FLOAT, DATA, tmp_path, "1%drop")


def test_a_unit_that_does_not_fit_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptqc.passes.analyze.measure", None)
    with pytest.raises(UsageError, match="judged in nat"):
        compiled(FLOAT, DATA, tmp_path, "0.01relative")
