"""Rotations are orthogonal, spread a single channel evenly, and keep the mean where asked."""

import numpy as np
import pytest

from ptqc.passes.equalize.rotate import rotation


@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("size", [1, 2, 12, 64, 172, 256])
def test_orthogonal(size: int, keeps_mean: bool) -> None:
    matrix = rotation(size, 3, keeps_mean)
    assert np.abs(matrix.T @ matrix - np.eye(size)).max() < 1e-12
    if keeps_mean:
        assert np.abs(np.ones(size) @ matrix - 1).max() < 1e-12


def test_a_single_channel_is_spread_evenly() -> None:
    assert np.allclose(np.abs(rotation(64)), 1 / 8)


def test_the_mean_is_kept_and_a_single_channel_spread() -> None:
    assert np.abs(rotation(256, keeps_mean=True)).max() < 0.5


def test_other_seeds_give_other_signs() -> None:
    assert not np.array_equal(rotation(16, 0), rotation(16, 1))
