import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from ptqc.loss import HOPELESS, OutputLoss, output_loss


def model(text: str) -> ir.Model:
    return ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}'))


CLASSIFIER = "g (float[N, 4] x, float[4, 3] w) => (float[N, 3] y) { y = MatMul(x, w) }"
SOFTMAX = "g (float[N, 3] x) => (float[N, C] y) { y = Softmax(x) }"
IMAGE = "g (float[N, 3, 8, 8] x) => (float[N, 2, 8, 8] y) { y = Identity(x) }"


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL straight from its definition."""
    p, q = (np.exp(x.astype(np.float64)) for x in (p, q))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return float((p * np.log(p / q)).sum(-1).mean())


seeds = st.integers(0, 1000).map(np.random.default_rng)


@given(rng=seeds, spread=st.floats(0.1, 10))
def test_divergence_of_class_scores(rng: np.random.Generator, spread: float) -> None:
    y, z = (rng.normal(0, spread, (7, 3)).astype(np.float32) for _ in range(2))
    loss = output_loss(model(CLASSIFIER), [{"y": y}])
    assert loss.unit == "nat"
    assert loss({"y": y}, {"y": y}) == 0
    assert loss({"y": y}, {"y": z}) == pytest.approx(divergence(y, z), rel=1e-6, abs=1e-9)
    assert loss({"y": y}, {"y": y + 100}) == pytest.approx(0, abs=1e-4)


@given(rng=seeds)
def test_probabilities_are_not_put_through_another_softmax(rng: np.random.Generator) -> None:
    logits = [rng.normal(0, 2, (7, 3)).astype(np.float32) for _ in range(2)]
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in logits)
    loss = output_loss(model(SOFTMAX), [{"y": p}])
    assert loss.probabilities == {"y"}
    assert loss({"y": p}, {"y": q}) == pytest.approx(divergence(*logits), rel=1e-4, abs=1e-6)


def test_a_probability_of_zero_is_finite() -> None:
    p, q = (np.array([x], np.float32) for x in ([1, 0, 0], [0, 1, 0]))
    loss = output_loss(model(SOFTMAX), [{"y": p}])
    assert 10 < loss({"y": p}, {"y": q}) < 100


@pytest.mark.parametrize("text", [CLASSIFIER, SOFTMAX])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_no_numbers_lose_everything(text: str, wrong: float) -> None:
    p = np.array([[0.2, 0.3, 0.5]], np.float32)
    loss = output_loss(model(text), [{"y": p}])
    assert loss({"y": p}, {"y": np.array([[0.2, wrong, 0.5]], np.float32)}) == HOPELESS


def test_large_scores_do_not_overflow() -> None:
    y = np.array([[1e4, -1e4, 0]], np.float32)
    assert output_loss(model(CLASSIFIER), [{"y": y}])({"y": y}, {"y": y}) == 0


@given(rng=seeds)
def test_error_relative_to_each_channels_variance(rng: np.random.Generator) -> None:
    spread = np.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    y = [(rng.standard_normal((2, 2, 8, 8)) * spread).astype(np.float32) for _ in range(20)]
    loss = output_loss(model(IMAGE), [{"y": part} for part in y])
    assert loss.unit == "relative squared error"
    joined = np.concatenate(y)
    variance = joined.astype(np.float64).var((0, 2, 3)).reshape(1, 2, 1, 1)
    assert loss({"y": y[0]}, {"y": y[0] + np.sqrt(variance)}) == pytest.approx(1, rel=1e-6)
    assert loss({"y": y[0]}, {"y": y[0]}) == 0


def test_a_channel_that_hardly_moves_does_not_decide() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((4, 2, 8, 8)).astype(np.float32)
    y[:, 1] *= 1e-6
    loss = output_loss(model(IMAGE), [{"y": y}])
    assert loss({"y": y}, {"y": y + 0.01}) < 0.01
    constant = {"y": np.ones((1, 2, 8, 8), np.float32)}
    assert np.isfinite(output_loss(model(IMAGE), [constant])(constant, constant))


def test_losses_of_batches_average() -> None:
    rng = np.random.default_rng(0)
    y, z = (rng.standard_normal((6, 3)).astype(np.float32) for _ in range(2))
    loss = output_loss(model(CLASSIFIER), [{"y": y}])
    halves = [loss({"y": y[part]}, {"y": z[part]}) for part in (slice(3), slice(3, 6))]
    assert loss({"y": y}, {"y": z}) == pytest.approx(np.mean(halves))


LABELLED = "g (float[N, 4] x, float[4, 3] w) => (int64[a, b] z, float[N, 3] y) {{ y = MatMul(x, w) {} }}"


@pytest.mark.parametrize(
    ("text", "shape", "classifies"),
    [
        (CLASSIFIER, (5, 3), True),
        (SOFTMAX, (5, 3), True),
        (IMAGE, (1, 2, 8, 8), False),
        ("g (float[N, 4] x, float[4, 1] w) => (float[N, 1] y) { y = MatMul(x, w) }", (5, 1), False),
        ("g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y) { y = MatMul(x, w) }", (5, 4), False),
        ("g (float[N, T, 4] x, float[4, 3] w) => (float[N, T, 3] y) { y = MatMul(x, w) }", (2, 5, 3), True),
        ("g (float[N, T, 4] x) => (float[N, T, 3] y) { y = Tanh(x) }", (2, 5, 3), False),
        (
            "g (float[N, 4] x, float[4, 3] w) => (float[N, 3] y, float[N, 3] z) { y = MatMul(x, w) z = Neg(y) }",
            (5, 3),
            False,
        ),
        (LABELLED.format("z = ArgMax<axis=1>(y)"), (5, 3), True),
        (LABELLED.format("place = ArgMax<axis=1>(y) z = Squeeze(place)"), (5, 3), True),
        (LABELLED.format("places = NonZero(y) z = Transpose(places)"), (5, 3), False),
    ],
)
def test_what_counts_as_a_classifier(text: str, shape: tuple[int, ...], classifies: bool) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    outputs = {"y": np.abs(array), "z": np.ones(1, np.int64) if "int64" in text else array}
    assert bool(output_loss(model(text), [outputs]).logits) is classifies


def test_the_kind_can_be_asked_for() -> None:
    y = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert output_loss(model(CLASSIFIER), [{"y": y}], "mse").unit == "relative squared error"
    assert output_loss(model(IMAGE), [{"y": y}], "kl").unit == "nat"


def test_integer_outputs_do_not_count() -> None:
    text = "g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y, int64[4] z) { y = Tanh(x) z = Shape(x) }"
    outputs = {"y": np.ones((1, 3, 8, 8), np.float32), "z": np.array([1, 3, 8, 8])}
    loss = output_loss(model(text), [outputs])
    assert set(loss.scale) == {"y"}


def test_a_vector_output() -> None:
    loss = OutputLoss((), frozenset(), {"y": np.asarray(4.0)})
    y = np.zeros(5, np.float32)
    assert loss({"y": y}, {"y": y + 2}) == pytest.approx(1)


@pytest.mark.parametrize("shapes", [((1, 1), (1, 8)), ((8,), (1, 8)), ((1, 2, 4, 4), (1, 3, 4, 4))])
def test_outputs_whose_channels_vary_have_one_variance(shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    loss = output_loss(model(IMAGE), [{"y": value} for value in values], "mse")
    variance = np.concatenate([value.ravel() for value in values]).var()
    for value in values:
        assert loss({"y": value}, {"y": value + 0.5}) == pytest.approx(0.25 / variance, rel=1e-4)


@pytest.mark.parametrize("text", [CLASSIFIER, "g (float[N, 4] x) => (float[N, 3, H, W] y) { y = Identity(x) }"])
def test_the_mean_over_batches_counts_what_they_hold(text: str) -> None:
    """Batches of 1 to 5 rows have the mean loss of all rows together."""
    rng = np.random.default_rng(0)
    shape = (15, 3) if text == CLASSIFIER else (15, 3, 4, 2)
    y, z = rng.normal(0, 1, shape).astype(np.float32), rng.normal(0, 1, shape).astype(np.float32)
    parts = [np.split(of, np.cumsum([1, 2, 3, 4])) for of in (y, z)]
    loss = output_loss(model(text), [{"y": y}])
    found = loss.mean(*([{"y": part} for part in of] for of in parts))
    assert found == pytest.approx(loss({"y": y}, {"y": z}), rel=1e-9)


def test_batches_of_one_size_count_alike() -> None:
    y, z = np.random.default_rng(0).normal(0, 1, (2, 7, 1, 3))
    loss = output_loss(model(CLASSIFIER), [{"y": y[0]}])
    pairs = [({"y": a}, {"y": b}) for a, b in zip(y, z, strict=True)]
    assert loss.mean(*zip(*pairs, strict=True)) == float(np.mean([loss(a, b) for a, b in pairs]))
    assert output_loss(model(CLASSIFIER), [{"y": np.zeros((2, 3), np.int64)}]).mean([{}], [{}]) == 0
