"""The distance between outputs, infinities included."""

import math

import numpy as np
import pytest

from ptqc.execution.agreement import BOUNDS, allowed, relative, relative_to_float


def test_it_is_relative_to_all_samples_together() -> None:
    wanted = [np.array([3.0, 0.0]), np.array([0.0, 4.0])]
    assert relative(wanted, wanted) == 0.0
    assert relative(wanted, [np.array([3.0, 0.5]), np.array([0.0, 4.0])]) == pytest.approx(0.1)


def test_infinities_and_nan_equal_themselves() -> None:
    masked = [np.array([np.inf, -np.inf, np.nan, 2.0], np.float32)]
    assert relative(masked, masked) == 0.0
    assert relative(masked, [np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)]) == 0.5


@pytest.mark.parametrize("result", [[np.nan, 2.0], [np.inf, 2.0], [-np.inf, 2.0]])
def test_they_are_far_from_anything_else(result: list[float]) -> None:
    assert relative([np.array([1.0, 2.0])], [np.array(result)]) == math.inf
    assert relative([np.array(result)], [np.array([1.0, 2.0])]) == math.inf


def test_zeros_have_no_size() -> None:
    assert relative([np.zeros(3)], [np.zeros(3)]) == 0.0
    assert relative([np.zeros(3)], [np.full(3, 2.0)]) == pytest.approx(math.sqrt(12))


def test_what_is_allowed_has_bounds() -> None:
    assert allowed(0.0) == BOUNDS[0]
    assert allowed(0.1) == pytest.approx(0.2)
    assert allowed(9.0) == BOUNDS[1]


def test_the_float_model_counts_where_it_is_finite() -> None:
    real, result = [np.array([3.0, np.nan, 4.0])], [np.array([3.0, 7.0, 9.0])]
    assert relative_to_float(real, result) == 1.0
    assert relative_to_float([result[0]], [real[0]]) == math.inf
