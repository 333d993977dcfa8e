"""Values beyond a number of bytes are held in files, as the same numbers."""

import mmap
from itertools import permutations

import numpy as np
import pytest

from ptqc.execution.tensors import SMALL, Bounded, Compressed, Held

COUNT = SMALL // 2  # of 16 bits


def codes_of(value: Held) -> np.ndarray:
    return value.codes if isinstance(value, Compressed) else value


def is_in_file(value: Held) -> bool:
    base = codes_of(value)
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, mmap.mmap)


def compressed() -> Held:
    return Compressed.of(np.random.default_rng(0).normal(size=(2, COUNT // 2)).astype(np.float32))


@pytest.mark.parametrize("value", [compressed(), np.arange(COUNT, dtype=np.int64)])
def test_what_does_not_fit_is_in_a_file_and_the_same(value: Held) -> None:
    kept = Bounded(0).keep(value)
    assert is_in_file(kept)
    assert not is_in_file(value)
    assert type(kept) is type(value)
    assert np.array_equal(np.asarray(kept), np.asarray(value))
    assert np.asarray(kept).dtype == np.asarray(value).dtype


def test_there_is_room_again_when_a_value_goes() -> None:
    bounded = Bounded(3 * SMALL)
    values = [bounded.keep(compressed()) for _ in range(4)]
    assert [is_in_file(value) for value in values] == [False, False, False, True]
    assert bounded.held == 3 * SMALL
    del values[1]
    assert bounded.held == 2 * SMALL
    assert not is_in_file(bounded.keep(compressed()))


def test_the_order_in_memory_stays() -> None:
    """Products round by it."""
    for axes in permutations(range(4)):
        value = np.arange(COUNT * 2, dtype=np.float32).reshape(2, 8, 1, -1).transpose(axes)
        kept = Bounded(0).keep(value)
        assert is_in_file(kept)
        assert codes_of(kept).strides == value.strides
        assert np.array_equal(kept, value)


def test_what_shows_other_values_is_not_counted_again() -> None:
    bounded = Bounded(2 * SMALL)
    first, second = (bounded.array(np.zeros((2, COUNT // 2), np.int16)) for _ in range(2))
    shown = bounded.array(first.T)
    assert bounded.held == 2 * SMALL
    assert shown.base is first
    del first
    assert bounded.held == 2 * SMALL
    del second, shown
    assert bounded.held == 0
    in_file = Bounded(0).array(np.zeros((2, COUNT // 2), np.int16))
    assert np.shares_memory(Bounded(0).array(in_file.T), in_file)


def test_what_is_small_or_has_gaps_or_is_no_plain_array_stays() -> None:
    bounded = Bounded(0)
    for value in (np.arange(3), np.zeros((COUNT, 2))[:, :1], np.full(SMALL, "a", object), [np.zeros(SMALL)]):
        assert bounded.keep(value) is value  # type: ignore[arg-type]
    assert bounded.held == 0
