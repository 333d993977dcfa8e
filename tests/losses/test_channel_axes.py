"""The axis of the channels and their groups, where only the data can tell."""

import time

import numpy as np
import pytest

from ptqc.losses.axes import channel_axis, groups
from ptqc.losses.base import Group


def spread(shape: tuple[int, ...], axis: int, seed: int = 0) -> np.ndarray:
    """Normal numbers whose slices along an axis have means of their own."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).standard_normal(shape[axis]) * 3
    return rng.standard_normal(shape) + means.reshape([-1 if i == axis else 1 for i in range(len(shape))])


@pytest.mark.parametrize("axis", [1, 2])
def test_the_axis_whose_slices_differ(axis: int) -> None:
    values = [spread((2, 12, 40), axis, seed) for seed in range(3)]
    assert channel_axis(None, (2, 12, 40), values) == axis


def test_the_usual_axis_where_nothing_differs() -> None:
    rng = np.random.default_rng(0)
    assert channel_axis(None, (), [rng.standard_normal((2, 12, 40))]) == 2
    assert channel_axis(None, (), [rng.standard_normal((2, 3, 12, 40))]) == 1


def test_an_axis_whose_size_varies_is_never_taken() -> None:
    values = [spread((1, 5, 8), 2), spread((1, 5, 9), 2)]
    assert channel_axis(None, (), values) == 1
    assert channel_axis(None, (), [np.ones((1, 4)), np.ones((1, 5))]) is None
    assert channel_axis(None, (), [np.ones(4), np.ones((1, 4))]) is None


def test_a_symbolic_axis_is_not_taken_beside_a_fixed_one() -> None:
    values = [spread((2, 12, 40), 2, seed) for seed in range(3)]
    assert channel_axis(None, ("N", 12, "T"), values) == 1


def test_three_scales() -> None:
    rng = np.random.default_rng(0)
    scale = np.repeat([300.0, 1.0, 0.01], [4, 2, 6])
    values = [rng.uniform(0.5, 1, (1, 100, 12)) * scale]
    assert groups(None, 2, values) == (Group(0, 4), Group(4, 6), Group(6, 12, scores=True))
    assert groups(None, 2, [values[0] / scale]) == (Group(0, 12),)


def test_channels_that_alternate_are_one_group() -> None:
    values = [np.random.default_rng(0).uniform(0.5, 1, (1, 100, 12)) * np.tile([300.0, 1.0], 6)]
    assert groups(None, 2, values) == (Group(0, 12),)


def test_many_channels_take_no_time() -> None:
    values = [np.random.default_rng(0).standard_normal((1, 2, 200_000)).astype(np.float32)]
    began = time.perf_counter()
    groups(None, 2, values)
    assert time.perf_counter() - began < 5
