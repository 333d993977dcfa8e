"""The loss of each kind against its definition in plain NumPy, and the sum over outputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outputs import fitted, loss

from ptqc.losses import OutputKind, OutputLoss
from ptqc.losses.base import PER_DETECTION, Group
from ptqc.losses.classes import Logits, Probabilities
from ptqc.losses.detection import Detection
from ptqc.losses.embedding import Embedding
from ptqc.losses.features import Features
from ptqc.losses.maps import Map
from ptqc.losses.regression import Regression
from ptqc.losses.scores import Scores
from ptqc.losses.state import State
from ptqc.losses.total import HOPELESS

seeds = st.integers(0, 1000).map(np.random.default_rng)
HEAD = (Group(0, 4), Group(4, 5, scores=True), Group(5, 8, scores=True))


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL straight from its definition, of logits on the last axis."""
    p, q = (np.exp(x.astype(np.float64)) for x in (p, q))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return float((p * np.log(p / q)).sum(-1).mean())


def binary(p: float, q: float) -> float:
    return float(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))


def close(array: np.ndarray, rng: np.random.Generator, step: float = 0.05) -> np.ndarray:
    return np.asarray(array + step * rng.standard_normal(array.shape), array.dtype)


@given(rng=seeds, spread=st.floats(0.1, 10))
def test_class_scores(rng: np.random.Generator, spread: float) -> None:
    y, z = (rng.normal(0, spread, (7, 3)).astype(np.float32) for _ in range(2))
    measure = fitted(Logits(1), y)
    assert measure.unit == "nat"
    assert loss(measure, y, y) == 0
    assert loss(measure, y, z) == pytest.approx(divergence(y, z), rel=1e-6, abs=1e-9)
    assert loss(measure, y, y + 100) == pytest.approx(0, abs=1e-4)


@given(rng=seeds)
def test_class_scores_of_pixels(rng: np.random.Generator) -> None:
    y, z = (rng.normal(0, 2, (2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    expected = divergence(*(np.moveaxis(x, 1, -1) for x in (y, z)))
    assert loss(fitted(Logits(1), y), y, z) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(rng=seeds)
def test_probabilities_are_not_put_through_another_softmax(rng: np.random.Generator) -> None:
    logits = [rng.normal(0, 2, (7, 3)).astype(np.float32) for _ in range(2)]
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in logits)
    assert loss(fitted(Probabilities(1), p), p, q) == pytest.approx(divergence(*logits), rel=1e-4, abs=1e-6)


def test_a_probability_of_zero_is_finite() -> None:
    p, q = (np.array([x], np.float32) for x in ([1, 0, 0], [0, 1, 0]))
    assert 10 < loss(fitted(Probabilities(1), p), p, q) < 100


def test_large_scores_do_not_overflow() -> None:
    y = np.array([[1e4, -1e4, 0]], np.float32)
    assert loss(fitted(Logits(1), y), y, y) == 0


def test_independent_scores_by_hand() -> None:
    y, z = np.array([[0.69, 0.1]], np.float32), np.array([[0.34, 0.1]], np.float32)
    measure = fitted(Scores(1), y)
    assert (measure.unit, loss(measure, y, y)) == ("nat", 0)
    assert loss(measure, y, z) == pytest.approx(binary(0.69, 0.34), rel=1e-6)
    assert np.isfinite(loss(measure, np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)))


def test_scores_of_places_are_said_per_thing_found() -> None:
    """However much background is beside it: 1 of 10, or of 1000 places."""
    losses = []
    for places in (10, 1000):
        y = np.full((1, places, 2), 1e-7, np.float32)
        z = y.copy()
        y[0, 3], z[0, 3] = (0.69, 1e-7), (0.34, 1e-7)
        losses.append(loss(fitted(Scores(2, places=True), y), y, z))
    assert losses == pytest.approx([binary(0.69, 0.34) / 0.69] * 2, rel=1e-3)


def test_embeddings_by_hand() -> None:
    """60 degrees apart, and twice as long."""
    y = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    z = np.array([[0.5, np.sqrt(0.75)], [0.0, 2.0]], np.float32)
    measure = fitted(Embedding(1, normalized=True), y)
    assert measure.unit == "cosine distance"
    assert loss(measure, y, z) == pytest.approx((0.5 + 0) / 2, rel=1e-6)
    assert loss(fitted(Embedding(1), y), y, z) == pytest.approx((0.5 + 0.5) / 2, rel=1e-6)


@given(rng=seeds)
def test_embeddings_lose_half_their_relative_squared_error(rng: np.random.Generator) -> None:
    y = rng.standard_normal((6, 40)).astype(np.float32)
    z = close(y, rng, 0.01)
    squared = ((z.astype(float) - y) ** 2).sum(1) / (y.astype(float) ** 2).sum(1)
    assert loss(fitted(Embedding(1), y), y, z) == pytest.approx(squared.mean() / 2, rel=0.02)


def test_embeddings_of_zeros() -> None:
    zeros, y = np.zeros((1, 8), np.float32), np.ones((1, 8), np.float32)
    measure = fitted(Embedding(1), y)
    assert loss(measure, zeros, zeros) == 0
    assert loss(measure, y, zeros) == pytest.approx(1.5)


@pytest.mark.parametrize("kind", [Features, Map, Regression, State])
def test_error_relative_to_each_channels_variance(kind: type[OutputKind]) -> None:
    rng = np.random.default_rng(0)
    spread = np.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    y = [(rng.standard_normal((2, 2, 8, 8)) * spread).astype(np.float32) for _ in range(20)]
    measure = fitted(kind(1, (Group(0, 2),)), *y)  # type: ignore[call-arg]
    assert measure.unit == "relative squared error"
    variance = np.concatenate(y).astype(np.float64).var((0, 2, 3)).reshape(1, 2, 1, 1)
    assert loss(measure, y[0], y[0] + np.sqrt(variance)) == pytest.approx(1, rel=1e-6)
    assert loss(measure, y[0], y[0]) == 0


def test_a_channel_that_hardly_moves_does_not_decide() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((4, 2, 8, 8)).astype(np.float32)
    y[:, 1] *= 1e-6
    assert loss(fitted(Map(1), y), y, y + 0.01) < 0.01
    constant = np.ones((1, 2, 8, 8), np.float32)
    assert np.isfinite(loss(fitted(Map(1), constant), constant, constant))


def test_groups_of_other_scales_are_judged_apart() -> None:
    """Boxes in pixels and small numbers: each group's own error, and their mean."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.uniform(0, 300, (1, 4, 900)), rng.uniform(0, 0.1, (1, 6, 900))], 1).astype(np.float32)
    z = y.copy()
    z[:, 4:] += 0.02
    kind = Features(1, (Group(0, 4), Group(4, 10)))
    result = fitted(kind, y).losses("y", {"y": y}, {"y": z})
    expected = 0.02**2 / y[0, 4:].astype(float).var(1)
    assert result == pytest.approx(
        {"values (channels 0 to 3)": 0, "values (channels 4 to 9)": expected.mean()}, rel=1e-3
    )
    assert kind.combine(result) == pytest.approx(expected.mean() / 2, rel=1e-3)


def test_each_anchor_for_itself_said_nothing() -> None:
    """(N, 4 + classes, anchors) normalized along the anchors, as if they were channels, drowns the scores."""
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(10, 300, (8, 4, 500)), rng.beta(0.3, 8, (8, 6, 500))
    y = np.concatenate([boxes, scores], 1).astype(np.float32)
    z = np.concatenate([boxes, np.clip(scores + 0.04 * rng.standard_normal(scores.shape), 0, 1)], 1).astype(np.float32)
    wrong = loss(fitted(Features(2), y), y, z)
    right = fitted(Features(1, (Group(0, 4), Group(4, 10))), y).losses("y", {"y": y}, {"y": z})
    assert wrong < 1e-5
    assert right["values (channels 4 to 9)"] > 0.1
    detection = Detection(1, (Group(0, 4), Group(4, 10, scores=True)))
    assert loss(fitted(detection, y), y, z) > 10 * detection.unit.tolerance


def test_detections_by_hand() -> None:
    """Two anchors of objectness times class 0.9 · 0.8 and 0.5 · 0.4; of the first the box moves and the score falls."""
    y = np.zeros((1, 2, 8), np.float32)
    y[0, 0] = [10, 20, 30, 40, 0.9, 0.8, 0, 0]
    y[0, 1] = [20, 40, 60, 80, 0.5, 0.4, 0, 0]
    z = y.copy()
    z[0, 0, 0], z[0, 0, 4] = 12, 0.5
    weights = np.array([0.72, 0.2])
    share = weights.sum()
    mean = weights @ y[0, :, :4] / share
    variance = weights @ (y[0, :, :4] - mean) ** 2 / share
    floor = np.maximum(variance, 0.05 * variance.mean())
    scores = binary(0.72, 0.4) / share
    boxes = 0.72 * (2**2 / floor[0]) / 4 / share
    measure = fitted(Detection(2, HEAD), y)
    result = measure.losses("y", {"y": y}, {"y": z})
    assert result == pytest.approx({"scores": scores, "values (channels 0 to 3)": boxes}, rel=1e-4)
    assert loss(measure, y, z) == pytest.approx(scores + 2 * boxes, rel=1e-4)


def test_what_activations_may_cost_moves_no_score_far() -> None:
    """Near a threshold of 0.3, by less than 0.025; with three times that, as many detections more come and go."""
    assert binary(0.3, 0.325) > PER_DETECTION.tolerance > binary(0.3, 0.31)


def heads(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = np.concatenate([rng.uniform(0, 300, (2, 30, 4)), rng.beta(0.2, 2, (2, 30, 4))], 2)
    z = np.concatenate([y[..., :4] + rng.standard_normal((2, 30, 4)), np.clip(close(y[..., 4:], rng), 0, 1)], 2)
    return y, z


@given(rng=seeds)
def test_the_order_of_anchors_does_not_matter(rng: np.random.Generator) -> None:
    y, z = heads(rng)
    measure, order = fitted(Detection(2, HEAD), y), rng.permutation(30)
    assert loss(measure, y[:, order], z[:, order]) == pytest.approx(loss(measure, y, z), rel=1e-9)
    assert loss(fitted(Detection(2, HEAD), y[:, order]), y, z) == pytest.approx(loss(measure, y, z), rel=1e-9)


@given(rng=seeds, factor=st.floats(0.01, 100))
def test_the_scale_of_a_group_does_not_matter(rng: np.random.Generator, factor: float) -> None:
    y, z = heads(rng)
    scale = np.array([factor] * 4 + [1] * 4)
    for kind in (Detection(2, HEAD), Features(2, (Group(0, 4), Group(4, 8)))):
        expected = loss(fitted(kind, y), y, z)
        assert loss(fitted(kind, y * scale), y * scale, z * scale) == pytest.approx(expected, rel=1e-6)


@given(rng=seeds)
def test_the_layout_does_not_matter(rng: np.random.Generator) -> None:
    y, z = heads(rng)
    expected = loss(fitted(Detection(2, HEAD), y), y, z)
    last = [x.transpose(0, 2, 1) for x in (y, z)]
    assert loss(fitted(Detection(1, HEAD), last[0]), *last) == pytest.approx(expected, rel=1e-9)
    maps = [x.reshape(2, 8, 5, 6) for x in last]
    assert loss(fitted(Detection(1, HEAD), maps[0]), *maps) == pytest.approx(expected, rel=1e-9)


def test_background_decides_nothing_about_boxes() -> None:
    y, z = np.zeros((1, 100, 8), np.float32), np.zeros((1, 100, 8), np.float32)
    y[0, :, :4] = np.random.default_rng(0).uniform(0, 300, (100, 4))
    y[0, :2, 4:6] = 0.9
    z[:] = y
    z[0, 2:, :4] += 50
    assert loss(fitted(Detection(2, HEAD), y), y, z) < 1e-4


@pytest.mark.parametrize("kind", [Logits(1), Probabilities(1), Embedding(1), Scores(1), Regression(1)])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_no_numbers_lose_everything(kind: OutputKind, wrong: float) -> None:
    p, q = np.array([[0.2, 0.3, 0.5]], np.float32), np.array([[0.2, wrong, 0.5]], np.float32)
    measure = fitted(kind, p)
    assert loss(measure, p, q) == HOPELESS
    assert measure.losses("y", {"y": p}, {"y": q}) == {"": HOPELESS}


@pytest.mark.parametrize("kind", [Logits(1), Map(1), Embedding(1), Scores(1)])
def test_the_mean_over_batches_counts_what_they_hold(kind: OutputKind) -> None:
    """Batches of 1 to 5 rows have the mean loss of all rows together."""
    rng = np.random.default_rng(0)
    y, z = (rng.uniform(0.1, 0.9, (15, 3, 4, 2)).astype(np.float32) for _ in range(2))
    parts = [[{"y": part} for part in np.split(of, np.cumsum([1, 2, 3, 4]))] for of in (y, z)]
    measure = fitted(kind, y)
    assert measure.mean(*parts) == pytest.approx(loss(measure, y, z), rel=1e-9)
    assert measure.mean_losses("y", *parts) == pytest.approx({"": loss(measure, y, z)}, rel=1e-9)


def test_batches_of_one_size_count_alike() -> None:
    y, z = np.random.default_rng(0).normal(0, 1, (2, 7, 1, 3))
    measure = fitted(Logits(1), y[0])
    pairs = [({"y": a}, {"y": b}) for a, b in zip(y, z, strict=True)]
    assert measure.mean(*zip(*pairs, strict=True)) == float(np.mean([measure(a, b) for a, b in pairs]))
    assert OutputLoss({}).mean([{}], [{}]) == 0


def two(
    first: OutputKind, second: OutputKind, rng: np.random.Generator
) -> tuple[OutputLoss, list[dict[str, np.ndarray]]]:
    y = {"a": rng.standard_normal((4, 6)), "b": rng.standard_normal((4, 6))}
    z = {name: close(value, rng) for name, value in y.items()}
    return OutputLoss.of({"a": first, "b": second}, [y]), [y, z]


def test_outputs_of_one_unit_add_up() -> None:
    measure, pair = two(Logits(1), Logits(1), np.random.default_rng(0))
    assert measure.unit == "nat"
    assert measure(*pair) == pytest.approx(sum(divergence(pair[0][name], pair[1][name]) for name in "ab"))


def test_outputs_of_several_units_are_exchanged_by_their_tolerances() -> None:
    """0.02 nat are as much as 0.002 of a variance, or a cosine distance of 0.001."""
    measure, pair = two(Logits(1), Embedding(1), np.random.default_rng(0))
    losses = {name: measure.losses(name, *pair)[""] for name in "ab"}
    assert measure.unit == "relative squared error"
    assert measure(*pair) == pytest.approx(0.1 * losses["a"] + 2 * losses["b"])


def test_states_count_little_beside_the_answer() -> None:
    measure, pair = two(Regression(1), State(1), np.random.default_rng(0))
    losses = {name: measure.losses(name, *pair)[""] for name in "ab"}
    assert measure(*pair) == pytest.approx(losses["a"] + 0.1 * losses["b"])
    alone = fitted(State(1), pair[0]["b"])
    assert loss(alone, pair[0]["b"], pair[1]["b"]) == pytest.approx(losses["b"])


def test_many_states_share_what_one_has() -> None:
    rng = np.random.default_rng(0)
    names = ["y", *(f"present.{i}" for i in range(5))]
    y = {name: rng.standard_normal((4, 6)) for name in names}
    measure = OutputLoss.of({name: State(1) if "." in name else Regression(1) for name in names}, [y])
    z = {name: value + (0.1 if "." in name else 0) for name, value in y.items()}
    states = [measure.losses(name, y, z)[""] for name in names[1:]]
    assert measure(y, z) == pytest.approx(0.1 * np.mean(states))


@pytest.mark.parametrize("shapes", [((1, 1), (1, 8)), ((8,), (1, 8)), ((1, 2, 4, 4), (1, 3, 4, 4))])
def test_outputs_whose_channels_vary_have_one_variance(shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    measure = fitted(Regression(None), *values)
    variance = np.concatenate([value.ravel() for value in values]).var()
    for value in values:
        assert loss(measure, value, value + 0.5) == pytest.approx(0.25 / variance, rel=1e-4)


def test_what_was_not_found_any_more_counts_as_zeros() -> None:
    """Where the compiled network finds fewer things than the float one, or more."""
    y, z = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    measure = fitted(Regression(None), np.array([[0.0, 2.0]], np.float32))
    assert loss(measure, y, z) == pytest.approx(1 / 3)
    assert loss(measure, z, y) == pytest.approx(1 / 3)
    nothing = np.zeros((0, 2), np.float32)
    assert loss(measure, nothing, nothing) == 0


def test_what_the_compiled_model_alone_finds_weighs_as_much() -> None:
    nothing, some = ({"y": np.arange(6 * rows, dtype=np.float32).reshape(rows, 6)} for rows in (0, 3))
    loss = OutputLoss.of({"y": Regression()}, [some])
    assert loss.size(nothing, some) == loss.size(some, nothing) == loss.size(some, some) == 18
    assert loss.mean([nothing, some], [some, some]) > 0
