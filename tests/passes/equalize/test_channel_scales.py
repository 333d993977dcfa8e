"""Factors that make the ranges of channels and of their weights alike."""

import numpy as np
import pytest

from ptqc.passes.equalize.scale_channels import MOST, smoothing, unevenness


def test_activations_and_weights_reach_alike_far() -> None:
    reach, weights = np.array([1.0, 25.0, 4.0]), np.array([2.0, 0.5, 1.0])
    factors = smoothing(reach, weights)
    both = np.stack([reach * factors, weights / factors])
    ratios = both[0] / both[1]
    assert np.allclose(ratios, ratios[0])
    assert np.exp(np.log(factors).mean()) == pytest.approx(1)


def test_a_channel_that_was_never_seen_stays() -> None:
    assert smoothing(np.array([0.0, 4.0, 1.0]), np.ones(3))[0] == 1


def test_no_factor_is_extreme() -> None:
    factors = smoothing(np.array([1e-9, 1.0, 1.0, 1.0]), np.ones(4))
    assert factors.max() == MOST


def test_unevenness_is_the_largest_over_the_median_of_what_was_seen() -> None:
    assert unevenness(np.array([0.0, 1.0, 2.0, 20.0])) == 10
    assert unevenness(np.zeros(3)) == 1
