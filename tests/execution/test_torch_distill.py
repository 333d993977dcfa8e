"""Inputs matched to batch normalization: the error of the statistics falls, and the inputs stay in their range."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import Unsupported

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.execution.torch.distill import distill  # noqa: E402

NETWORK = """g (float[N, 3, 8, 8] x) => (float[N, 4, 4, 4] y) {
    a = BatchNormalization(x, s3, s3, m3, v3)
    b = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (a, w)
    c = BatchNormalization(b, s4, s4, m4, v4)
    y = Relu(c)
}"""


def network(graph: str = NETWORK) -> ir.Model:
    statistics = {"m3": noise(3, scale=0.2), "v3": np.full(3, 0.5), "m4": noise(4, scale=0.3), "v4": np.full(4, 2.0)}
    constants = {"s3": np.ones(3), "s4": np.ones(4), "w": noise(4, 3, 3, 3, scale=0.5), **statistics}
    return parse(graph, **{name: array.astype(np.float32) for name, array in constants.items()})


def test_the_error_of_the_statistics_falls() -> None:
    result = distill(network(), noise(16, 3, 8, 8), 30)
    assert result.after < 0.2 * result.before
    assert result.batch.shape == (16, 3, 8, 8)
    assert result.batch.dtype == np.float32
    again = distill(network(), result.batch, 0)
    assert again.before == again.after == pytest.approx(result.after, rel=1e-4)


def test_the_error_is_the_relative_distance_of_means_and_spreads() -> None:
    x = noise(64, 3, 8, 8)
    mean, std = noise(3, scale=0.2), np.full(3, np.sqrt(0.5))
    distance = ((x.mean((0, 2, 3)) - mean) ** 2).sum() + ((x.std((0, 2, 3)) - std) ** 2).sum()
    only_first = network(NETWORK.replace("c = BatchNormalization(b, s4, s4, m4, v4)", "c = Identity(b)"))
    assert distill(only_first, x, 0).before == pytest.approx(distance / (std**2).sum(), rel=1e-4)


def test_no_steps_change_nothing() -> None:
    x = noise(4, 3, 8, 8)
    assert np.array_equal(distill(network(), x, 0).batch, x)


def test_inputs_stay_within_their_extremes() -> None:
    x = noise(8, 3, 8, 8).clip(0, 0.5)
    result = distill(network(), x, 20).batch
    assert result.min() >= 0
    assert result.max() <= 0.5
    assert not np.array_equal(result, x)


def test_the_same_inputs_give_the_same() -> None:
    first, second = (distill(network(), noise(4, 3, 8, 8), 5).batch for _ in range(2))
    assert np.array_equal(first, second)


def test_every_step_is_told() -> None:
    steps: list[int] = []
    distill(network(), noise(2, 3, 8, 8), 3, lambda: steps.append(1))
    assert len(steps) == 3


def test_what_has_no_gradient_is_refused() -> None:
    random = NETWORK.replace("b = Conv", "r = Bernoulli(a)\n    b = Conv").replace("(a, w)", "(r, w)")
    with pytest.raises(Unsupported, match="Bernoulli"):
        distill(network(random), noise(2, 3, 8, 8), 1)
