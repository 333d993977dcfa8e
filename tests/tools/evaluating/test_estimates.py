"""Standard errors: those of means are the usual ones, those of ratios and differences cover what they should."""

import math

import numpy as np
import pytest

from ptqc.tools.evaluating.metric import GROUPS, difference, estimate


def mean(measured: np.ndarray) -> float:
    return float(measured.mean())


def ratio(measured: np.ndarray) -> float:
    return float(measured[:, 0].sum() / measured[:, 1].sum())


@pytest.mark.parametrize("count", [2, 17, GROUPS])
def test_the_error_of_a_mean_is_the_usual_one(count: int) -> None:
    values = np.random.default_rng(0).standard_normal((count, 1))
    result = estimate(mean, values)
    assert result.value == pytest.approx(values.mean())
    assert result.standard_error == pytest.approx(values.std(ddof=1) / np.sqrt(count))


def test_a_single_case_has_no_error() -> None:
    assert math.isnan(estimate(mean, np.ones((1, 1))).standard_error)
    assert math.isnan(difference(mean, np.ones((1, 1)), np.ones((1, 1))).standard_error)


def test_more_cases_than_groups() -> None:
    values = np.random.default_rng(1).standard_normal((20 * GROUPS, 1))
    assert estimate(mean, values).standard_error == pytest.approx(1 / np.sqrt(len(values)), rel=0.15)


@pytest.mark.parametrize("order", ["one after the other", "in turns"])
def test_kinds_of_cases_that_differ_are_in_all_groups(order: str) -> None:
    """As classes of images, of which a model knows some better: they take turns, or each lies together."""
    kinds = np.random.default_rng(3).permutation(np.repeat(np.arange(10.0), GROUPS))
    usual = kinds.std(ddof=1) / np.sqrt(len(kinds))
    kinds.sort()
    values = kinds if order == "one after the other" else kinds.reshape(10, -1).T
    assert estimate(mean, values.reshape(-1, 1)).standard_error == pytest.approx(usual, rel=0.15)


def test_the_error_of_a_ratio_is_how_far_it_spreads() -> None:
    def drawn(seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        weights = random.integers(1, 30, 60)
        return np.stack([weights * 2.0 + random.normal(0, np.sqrt(weights)), weights], 1)

    scores = [ratio(drawn(seed)) for seed in range(400)]
    errors = [estimate(ratio, drawn(seed)).standard_error for seed in range(20)]
    assert np.mean(errors) == pytest.approx(np.std(scores), rel=0.15)


def test_a_difference_on_the_same_cases_is_surer_than_both_scores() -> None:
    random = np.random.default_rng(2)
    first = random.standard_normal((100, 1))
    other = first + 0.1 + 0.01 * random.standard_normal((100, 1))
    result = difference(mean, first, other)
    assert result.value == pytest.approx(0.1, abs=0.005)
    assert result.standard_error == pytest.approx((other - first).std(ddof=1) / 10)
    assert result.standard_error < 0.02 * estimate(mean, first).standard_error
