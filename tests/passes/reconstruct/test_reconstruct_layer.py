"""One layer: its target, its bias, and its error on samples held back."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from ptqc.formats import Integer, TwoOfFour
from ptqc.ir.layers import Layer
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.passes.quantize.gptq import ColumnOrder, Factored, RoundingTarget, grids_for, round_all
from ptqc.passes.quantize.moments import ColumnSample, Joined
from ptqc.passes.reconstruct.layer_problem import DAMPING, LayerInputs, LayerProblem

# One layer


LAYER = Layer("y", "Conv", "x", "w", "b", "y", (6, 2, 1, 2), 0, 2)


def target_of(made: LayerProblem, strength: float) -> np.ndarray:
    return made.target(Factored.of(made.second, DAMPING), strength, ColumnOrder())


def problem(seed: int, drift: float) -> tuple[LayerProblem, np.ndarray]:
    """Columns of a layer of two groups whose inputs came out mixed and shifted, and the float model's outputs."""
    weight, bias = noise(6, 2, 1, 2, seed=seed), noise(6, seed=seed + 1)
    real = noise(2, 4, 400, seed=seed + 2)
    mixing = np.eye(4, dtype=np.float32) + drift * noise(2, 4, 4, seed=seed + 3, scale=0.5)
    seen = mixing @ real + np.float32(drift) + noise(2, 4, 400, seed=seed + 4, scale=0.1)
    y = LAYER.matrix(weight) @ real + bias.reshape(2, 3, 1)
    parts = [slice(0, 150), slice(150, 300), slice(300, 400)]
    held_x, held_y = ([Joined([array[..., part]]) for part in parts] for array in (seen, y))
    return LayerProblem(LAYER, LAYER.matrix(weight), bias, LayerInputs(ColumnSample(LAYER, 1, 0), held_x, 2), held_y), y


def concatenated(pieces: list[Joined]) -> np.ndarray:
    return np.concatenate([np.asarray(piece) for piece in pieces], -1)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), drift=st.floats(0, 0.5), strength=st.sampled_from([0.25, 1.0]))
def test_the_target_is_on_the_way_to_the_least_squares_weight(seed: int, drift: float, strength: float) -> None:
    made, y = problem(seed, drift)
    x = concatenated(made.seen.x[:2]).astype(np.float64)
    for group in range(2):
        covariance = np.cov(np.concatenate([x[group], y[group, :, :300]]), bias=True)
        inputs, cross = covariance[:4, :4], covariance[4:, :4]
        damped = made.second[group] + DAMPING * np.trace(made.second[group]) / 4 * np.eye(4)
        value, target = made.weight[group], target_of(made, strength)[group]
        whole = (cross - value @ inputs) @ np.linalg.inv(damped)
        np.testing.assert_allclose(target, value + strength * whole, atol=2e-3)
        before, after = (np.var(y[group, :, :300] - matrix @ x[group], axis=-1).sum() for matrix in (value, target))
        assert after <= before * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), strength=st.sampled_from([0.25, 1.0]))
def test_weights_without_correction_aim_at_the_mean_too(seed: int, strength: float) -> None:
    """Least squares without a free intercept: on the way to it the squared error falls, the mean's included."""
    corrected, y = problem(seed, 0.3)
    made = replace(corrected, layer=replace(LAYER, keeps_sign=True))
    x = concatenated(made.seen.x[:2]).astype(np.float64)
    wanted = y[..., :300] - made.bias.reshape(2, 3, 1)
    for group in range(2):
        inputs, cross = x[group] @ x[group].T / 300, wanted[group] @ x[group].T / 300
        damped = made.second[group] + DAMPING * np.trace(made.second[group]) / 4 * np.eye(4)
        np.testing.assert_allclose(made.second[group], inputs, atol=0.05 * np.trace(inputs))
        value, target = made.weight[group], target_of(made, strength)[group]
        whole = (cross - value @ inputs) @ np.linalg.inv(damped)
        np.testing.assert_allclose(target, value + strength * whole, atol=2e-3)
        before, after = (np.square(wanted[group] - matrix @ x[group]).sum() for matrix in (value, target))
        assert after <= before * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), drift=st.floats(0, 0.5), bits=st.sampled_from([2, 4, 8]))
def test_bias_and_held_back_error(seed: int, drift: float, bits: int) -> None:
    made, y = problem(seed, drift)
    solution = made.rounded(Integer(bits), 0.5)
    (corrected, _, bias), (uncorrected, _, given_bias) = made.judged(solution)
    missing = y - LAYER.matrix(solution.weight) @ concatenated(made.seen.x)
    left = missing - bias.reshape(2, 3, 1)
    np.testing.assert_allclose(left[..., :300].mean(-1), 0, atol=1e-4)
    assert corrected == pytest.approx(float(np.square(left[..., 300:]).sum()), rel=1e-4)
    np.testing.assert_array_equal(given_bias, made.bias)
    left = missing - made.bias.reshape(2, 3, 1)
    assert uncorrected == pytest.approx(float(np.square(left[..., 300:]).sum()), rel=1e-4)


@pytest.mark.parametrize("dead", [0.0, 1e-30])
def test_outputs_that_are_never_active_keep_their_weights(dead: float) -> None:
    made, y = problem(0, 0.2)
    weight = made.weight.copy()
    weight[0, 1] = dead
    y[0, 1] += noise(400, seed=5, scale=1e-4) - y[0, 1]  # as values that are held in 16 bits
    held = [Joined([y[..., part]]) for part in (slice(0, 150), slice(150, 300), slice(300, 400))]
    made = LayerProblem(LAYER, weight, made.bias, made.seen, held)
    kept = target_of(made, 1.0) == weight
    assert kept[0, 1].all()
    assert not kept[0, [0, 2]].any()
    assert not kept[1].any()


def test_rounding_the_target_beats_rounding_the_weight() -> None:
    made, _ = problem(0, 0.5)
    form = Integer(8)
    grid = grids_for(made.weight, made.second, [form])[form]
    (of_weight,) = round_all([RoundingTarget.of(made.weight, grid, form, 0)], made.second)
    plain = QuantizedWeight(form, LAYER.tensor(of_weight.codes), of_weight.scale.reshape(-1), LAYER.channel_axis)
    errors = [made.judged(answer)[0][0] for answer in (plain, made.rounded(form, 1.0))]
    assert errors[1] < 0.5 * errors[0]


def test_two_of_four_inputs_of_each_tap_are_kept() -> None:
    layer, x = Layer("y", "Conv", "x", "w", "b", "y", (6, 8, 1, 2), 0, 1), noise(16, 16) @ noise(16, 400, seed=1)
    weight, bias = noise(6, 8, 1, 2, seed=2), np.zeros(6, np.float32)
    y = layer.matrix(weight) @ x[None]
    parts = [slice(0, 300), slice(300, 400)]
    held_x, held_y = ([Joined([array[..., part]]) for part in parts] for array in (x[None], y))
    seen = LayerInputs(ColumnSample(layer, 1, 0), held_x, 1)
    made = LayerProblem(layer, layer.matrix(weight), bias, seen, held_y)
    codes = made.rounded(TwoOfFour(5), 1.0).codes
    assert (np.count_nonzero(codes.reshape(6, 2, 4, 1, 2), axis=2) == 2).all()
    largest = np.argsort(np.argsort(np.abs(weight.reshape(6, 2, 4, 1, 2)), axis=2), axis=2) >= 2
    plain = QuantizedWeight(
        TwoOfFour(5),
        (np.rint(weight * 8) * largest.reshape(weight.shape)).astype(np.int8),
        np.full(6, 0.125, np.float32),
        0,
    )
    (result, *_), (other, *_) = (made.judged(one) for one in (made.rounded(TwoOfFour(5), 1.0), plain))
    assert result[0] < 0.5 * other[0]
