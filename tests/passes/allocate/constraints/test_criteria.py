"""What budgets of loss count: means, top classes and scores of files whose outputs are known."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import proto

from ptqc.budget import parse
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import UsageError
from ptqc.evaluation.labels import LabelledClasses
from ptqc.evaluation.scoring import OwnScore, scoring_of
from ptqc.losses import OutputLoss
from ptqc.losses.classes import Logits
from ptqc.losses.embedding import Embedding
from ptqc.losses.labels import RATE, Labels
from ptqc.losses.regression import Regression
from ptqc.passes.allocate.constraints.criteria import (
    EXACT,
    EvaluatedDrop,
    LabelledDrop,
    Lost,
    MeanLoss,
    SameClass,
    Splits,
    _weighed,
    mean_at_most,
    most_of,
)
from ptqc.passes.allocate.constraints.loss import LossBudget
from ptqc.utils.progress import SILENT

CLASSES = 3


def model(weight: np.ndarray) -> ir.Model:
    graph = f"g (float[N,{len(weight)}] x) => (float[N,{CLASSES}] y) {{ y = Gemm(x, w) }}"
    return ir.from_proto(proto(graph, w=weight.astype(np.float32)))


def packed(weight: np.ndarray) -> onnx.ModelProto:
    return ir.to_proto(model(weight))


def spooled(x: np.ndarray | list[np.ndarray], folder: Path) -> Samples:
    return collect(x, input_specs(model(np.eye(CLASSES))), folder, len(x))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((60, CLASSES)).astype(np.float32)


@pytest.fixture
def splits(x: np.ndarray, tmp_path: Path) -> Splits:
    """The float model hands its input on; the first 20 samples choose."""
    held, judging = spooled(x[:20], tmp_path / "held"), spooled(x[20:], tmp_path / "judging")
    return Splits(model(np.eye(CLASSES)), {"y": Logits(1)}, held, judging)


SWAPPED = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1.0]])


def test_a_mean_loss_is_that_of_the_outputs(x: np.ndarray, splits: Splits) -> None:
    criterion = MeanLoss(0.1, "nat", splits)
    loss = OutputLoss.of(splits.kinds, [{"y": x}])
    each = np.array([loss({"y": row[None]}, {"y": row[None] * 1.5}) for row in x])
    held, judged = (criterion.held(packed(1.5 * np.eye(3))), criterion.judged(packed(1.5 * np.eye(3))))
    assert (held.value, judged.value) == (pytest.approx(each[:20].mean()), pytest.approx(each[20:].mean()))
    assert judged.bound == pytest.approx(mean_at_most(each[20:]))
    assert (held.samples, judged.samples, criterion.judges) == (20, 40, 40)


def test_how_certain_a_classifier_is_of_the_judges(x: np.ndarray, splits: Splits, tmp_path: Path) -> None:
    odds = np.exp(x[20:].astype(np.float64))
    expected = (odds.max(1) / odds.sum(1)).mean()
    for criterion in (MeanLoss(0.1, "nat", splits), SameClass(0.1, "%same", splits)):
        assert criterion.certainty == pytest.approx(expected)
    assert MeanLoss(0.1, "relative", replace(splits, kinds={"y": Regression(1)})).certainty is None
    maps = spooled(list(np.ones((4, 2, CLASSES), np.float32)), tmp_path / "maps")
    several = replace(splits, judging=maps)
    assert MeanLoss(0.1, "nat", several).certainty is None


def test_top_classes_are_counted_exactly(x: np.ndarray, splits: Splits) -> None:
    criterion = SameClass(0.05, "%same", splits)
    differing = int((x[20:].argmax(1) != 2).sum())  # the first two classes change places
    judged = criterion.judged(packed(SWAPPED))
    assert (judged.value, judged.samples, judged.method) == (differing / 40, 40, EXACT)
    assert judged.bound == most_of(differing, 40)


def test_few_held_back_samples_are_drawn_towards_what_the_loss_makes_likely(splits: Splits) -> None:
    criterion = SameClass(0.05, "%same", splits)
    same = criterion.held(packed(1.5 * np.eye(3)))
    assert all(value == 0 for value in same.values)
    assert 0 < same.value < 0.05
    assert criterion.held(packed(SWAPPED)).value > 0.2


def test_several_predictions_of_a_sample_are_not_independent(tmp_path: Path) -> None:
    """Ten samples of 50 rows, of which one sample is all different: Student's bound on shares of samples."""
    x = np.tile([1.0, 0.5, 0.0], (10, 50, 1)).astype(np.float32)
    x[3] = [0.0, 0.5, 1.0]
    data = collect(list(x), input_specs(model(np.eye(3))), tmp_path / "x", 10)
    criterion = SameClass(0.05, "%same", Splits(model(np.eye(3)), {"y": Logits(1)}, data, data))
    judged = criterion.judged(packed(np.diag([1.0, 1.0, 0.1])))
    assert judged.value == pytest.approx(0.1)
    assert judged.bound == pytest.approx(mean_at_most([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]))


@pytest.mark.parametrize("differing", [0, 5])
def test_samples_that_are_all_alike_show_no_spread(differing: int, tmp_path: Path) -> None:
    """Ten samples of 50 rows, in each of which as many differ: an eleventh may be one of which all do."""
    x = np.tile([1.0, 0.5, 0.0], (10, 50, 1)).astype(np.float32)
    x[:, :differing] = [0.0, 0.5, 1.0]
    data = collect(list(x), input_specs(model(np.eye(3))), tmp_path / "x", 10)
    criterion = SameClass(0.05, "%same", Splits(model(np.eye(3)), {"y": Logits(1)}, data, data))
    judged = criterion.judged(packed(np.diag([1.0, 1.0, 0.1])))
    assert judged.value == pytest.approx(differing / 50)
    assert judged.bound == pytest.approx(max(differing / 50, most_of(0, 10)))


def test_of_several_outputs_the_one_that_differs_most_counts(tmp_path: Path) -> None:
    """One prediction of `few` differs in half of the samples, none of the hundred of `many`."""
    graph = f"g (float[N,100,{CLASSES}] x) => (float[N,{CLASSES}] few, float[N,100,{CLASSES}] many) {{"
    graph += " m = ReduceMean<keepdims=0>(x, axis) few = Gemm(m, w) many = Identity(x) }"

    def built(weight: np.ndarray) -> onnx.ModelProto:
        return proto(graph, w=weight.astype(np.float32), axis=np.array([1]))

    x = np.zeros((400, 100, CLASSES), np.float32)
    x[:200, :, 0], x[200:, :, 2] = 1, 1
    real = ir.from_proto(built(np.eye(CLASSES)))
    data = collect(x, input_specs(real), tmp_path / "x", 400)
    criterion = SameClass(0.02, "%same", Splits(real, {"few": Logits(1), "many": Logits(2)}, data, data))
    assert criterion.judged(built(SWAPPED)).value == 0.5


def test_a_score_that_is_nan_is_no_top_class(tmp_path: Path) -> None:
    x = np.tile([1.0, 0.5, 0.0], (10, 1)).astype(np.float32)
    data = spooled(x, tmp_path / "x")
    criterion = SameClass(0.05, "%same", Splits(model(np.eye(3)), {"y": Logits(1)}, data, data))
    assert criterion.judged(packed(np.full((3, 3), np.nan))).value == 1


def test_background_alone_shows_nothing(tmp_path: Path) -> None:
    data = spooled(np.tile([1.0, 0.5, 0.0], (10, 1)).astype(np.float32), tmp_path / "x")
    kinds = {"y": Logits(1, background=0)}
    judged = SameClass(0.05, "%same", Splits(model(np.eye(3)), kinds, data, data)).judged(packed(SWAPPED))
    assert (judged.value, judged.bound) == (0, 1)


def test_rows_that_are_nan_in_float_are_left_out(tmp_path: Path) -> None:
    graph = f"g (float[N,{CLASSES}] x) => (float[N,{CLASSES}] y) {{"
    graph += " s = Gemm(x, w) a = Abs(x) m = ReduceMax<keepdims=1>(a, axis) y = Div(s, m) }"

    def built(weight: np.ndarray) -> onnx.ModelProto:
        return proto(graph, w=weight.astype(np.float32), axis=np.array([1]))

    x = np.random.default_rng(0).standard_normal((10, 4, CLASSES)).astype(np.float32)
    x[:, 3] = 0  # 0 / 0
    real = ir.from_proto(built(np.eye(CLASSES)))
    data = collect(list(x), input_specs(real), tmp_path / "x", 10)
    criterion = SameClass(0.05, "%same", Splits(real, {"y": Logits(1)}, data, data))
    held = criterion.held(built(np.diag([1.0, 1.0, 0.5])))
    assert 0 < held.value < 1
    assert criterion.start(0.1) > 1e-6


def test_labels_that_never_differ_show_as_little_as_classes_that_never_do(tmp_path: Path) -> None:
    graph = f"g (float[N,{CLASSES}] x) => (int64[N,1] y) {{ s = Gemm(x, w) y = ArgMax<axis=1>(s) }}"
    file = proto(graph, w=np.eye(CLASSES, dtype=np.float32))
    data = collect(
        np.random.default_rng(0).random((20, CLASSES), np.float32), input_specs(ir.from_proto(file)), tmp_path, 20
    )
    criterion = MeanLoss(0.002, "relative", Splits(ir.from_proto(file), {"y": Labels()}, data, data))
    judged = criterion.judged(file)
    assert (judged.value, judged.bound) == (0, pytest.approx(RATE * most_of(0, 20)))


def test_few_judges_bound_nothing(tmp_path: Path) -> None:
    for count, is_bounded in ((7, False), (8, True)):
        data = spooled(np.random.default_rng(0).random((count, CLASSES), np.float32), tmp_path / str(count))
        criterion = MeanLoss(0.1, "nat", Splits(model(np.eye(3)), {"y": Logits(1)}, data, data))
        assert np.isfinite(criterion.judged(packed(SWAPPED)).bound) == criterion.can_show == is_bounded


@pytest.mark.parametrize("count", [16, 64])
@pytest.mark.parametrize("power", [0.0, -0.5])
def test_the_bound_of_samples_of_different_lengths_holds(count: int, power: float) -> None:
    """Losses that do not depend on the length of a sample, and those that fall with it; 90 % are claimed."""
    rng = np.random.default_rng(0)

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.ceil(20 * rng.lognormal(0, 1, size))
        return rng.exponential(1, size) * lengths**power, lengths

    values, lengths = drawn(10**6)
    truth = (values * lengths).sum() / lengths.sum()
    bounds = [mean_at_most(_weighed(list(zip(*drawn(count), strict=True)))) for _ in range(1000)]
    assert np.mean(np.array(bounds) >= truth) > 0.8
    weighed = _weighed([(1.0, 1), (4.0, 3)])
    assert weighed.mean() == pytest.approx(3.25)


@pytest.mark.parametrize(("limit", "hits", "count"), [(0.01, 0, 64), (0.01, 2, 400), (0.05, 1, 40)])
def test_how_many_samples_would_show_it(splits: Splits, limit: float, hits: int, count: int) -> None:
    """With as many of the same kind the bound is kept, with a tenth fewer it is not."""
    result = Lost(hits / count, most_of(hits, count), count, EXACT)
    needed = SameClass(limit, "%same", splits).needed(result)
    assert needed is not None
    assert needed > count
    assert most_of(round(result.value * needed), needed) <= limit
    fewer = int(0.9 * needed)
    assert most_of(round(result.value * fewer), fewer) > limit


def test_what_is_over_the_limit_no_number_of_samples_shows(splits: Splits) -> None:
    assert SameClass(0.01, "%same", splits).needed(Lost(0.02, most_of(8, 400), 400, EXACT)) is None
    assert MeanLoss(0.1, "nat", splits).needed(Lost(0.1, 0.2, 40, "")) is None


def test_a_mean_needs_samples_by_the_square(splits: Splits) -> None:
    assert MeanLoss(0.1, "nat", splits).needed(Lost(0.05, 0.15, 40, "")) == 160


def room_of(values: np.ndarray, splits: Splits) -> float:
    return MeanLoss(1.0, "nat", splits).room(Lost.mean(values))


def test_room_leaves_what_the_judge_may_add(splits: Splits) -> None:
    """Where one set has a room of 1, a judge passes another of its kind about as often as is aimed at."""
    random = np.random.default_rng(0)
    passed = []
    for _ in range(300):
        held, judged = random.exponential(1, 64), random.exponential(1, 40)
        room = room_of(held, splits)
        assert room_of(held * room, splits) == pytest.approx(1)
        passed.append(mean_at_most(judged * room) <= 1)
    assert np.mean(passed) == pytest.approx(0.75, abs=0.08)


def test_one_round_changes_the_limit_by_a_bounded_factor(splits: Splits) -> None:
    assert (room_of(np.zeros(20), splits), room_of(np.full(20, 100.0), splits)) == (8, 1 / 8)


def test_points_of_labelled_samples(x: np.ndarray, tmp_path: Path) -> None:
    """Every second sample judges; the changed file has the first two classes in each other's place."""
    labels = x.argmax(1)
    labelled = LabelledClasses(spooled(x, tmp_path / "x"), labels)
    criterion = LabelledDrop(1.0, "%drop", model(np.eye(3)), labelled)
    assert criterion.held(packed(SWAPPED)).value == pytest.approx(100 * (labels[0::2] != 2).mean())
    assert criterion.judged(packed(SWAPPED)).value == pytest.approx(100 * (labels[1::2] != 2).mean())
    assert criterion.judges == 30
    assert criterion.room(criterion.held(packed(np.eye(3)))) == 8


def test_few_labelled_samples_show_no_small_drop(x: np.ndarray, tmp_path: Path) -> None:
    """Of 30 judges none may differ, and up to 7.4 points may be lost all the same."""
    labelled = LabelledClasses(spooled(x, tmp_path / "x"), x.argmax(1))
    criterion = LabelledDrop(1.0, "%drop", model(np.eye(3)), labelled)
    judged = criterion.judged(packed(np.eye(3)))
    assert (judged.value, judged.bound) == (0, pytest.approx(7.39, abs=0.01))
    assert not criterion.can_show
    assert criterion.needed(judged) == 230
    assert replace(criterion, limit=8.0).can_show


def test_points_of_a_score_of_the_users_own(x: np.ndarray) -> None:
    def score(run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> float:
        return 10 * float(run({"x": x})["y"].std() / x.std())

    scoring = scoring_of(model(np.eye(3)), OwnScore(score, 100), None, "", SILENT)
    assert scoring is not None
    criterion = EvaluatedDrop(1.0, "%drop", model(np.eye(3)), scoring)
    judged = criterion.judged(packed(0.8 * np.eye(3)))
    assert judged.value == judged.bound == pytest.approx(2, rel=1e-5)
    assert criterion.room(judged) == pytest.approx(0.25, rel=1e-5)
    assert criterion.needed(judged) is None


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("0.01relative", Logits(1), r"judged in nat \(y as class scores.*give a loss such as 0.01nat"),
        ("0.01nat", Regression(1), r"judged in relative squared error .*such as 0.01relative"),
        ("0.01nat", Embedding(1), r"judged in cosine distance .*such as 0.01cosine"),
        ("99%same", Regression(1), r"no output has classes \(y as numbers.*such as 0.01relative, or say with --loss"),
    ],
)
def test_a_unit_that_does_not_fit_is_refused_with_the_one_that_does(text: str, kind: Logits, expected: str) -> None:
    budget = parse(text)
    assert isinstance(budget, LossBudget)
    with pytest.raises(UsageError, match=expected):
        budget.check_unit({"y": kind})


@pytest.mark.parametrize("text", ["0.01nat", "99%same", "1%drop"])
def test_units_that_fit(text: str) -> None:
    budget = parse(text)
    assert isinstance(budget, LossBudget)
    budget.check_unit({"y": Logits(1)})
