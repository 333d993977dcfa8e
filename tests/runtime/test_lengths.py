"""Sizes that vary: their arithmetic is that of numbers, whatever the lengths; what is not known is refused."""

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies

from ptqc.runtime.lengths import (
    Limit,
    SymDim,
    SymExpr,
    UnknownSizeError,
    at,
    bound,
    hint,
    narrowest,
    of_length,
    read,
    size_of,
    varies,
    with_lengths,
    written,
)

TIME, PAST = of_length("time"), of_length("past")
SMALL = strategies.integers(0, 9)
TERMS = strategies.dictionaries(
    strategies.sampled_from([(), ("past",), ("time",), ("past", "time"), ("time", "time")]), SMALL, max_size=4
)
LENGTHS = strategies.fixed_dictionaries({"past": strategies.integers(1, 50), "time": strategies.integers(1, 50)})


@drawn(TERMS, TERMS, LENGTHS)
def test_sums_and_products_are_those_of_numbers(one: dict, other: dict, lengths: dict[str, int]) -> None:
    a, b = size_of(one), size_of(other)
    assert at(a + b, lengths) == at(a, lengths) + at(b, lengths)
    assert at(a * b, lengths) == at(a, lengths) * at(b, lengths)
    assert at(a - b, lengths) == at(a, lengths) - at(b, lengths)
    assert read(written(a * b)) == a * b


@drawn(TERMS, TERMS, LENGTHS)
def test_division_is_exact_or_that_of_the_lengths(one: dict, other: dict, lengths: dict[str, int]) -> None:
    a, b = size_of(one), size_of(other)
    if not isinstance(b, SymExpr) or not varies([a]):
        return
    product = a * b
    assert product // b == a
    assert product % b == 0
    with with_lengths(lengths):
        result = (product + 1) // b
    assert at(result, lengths) == (at(product, lengths) + 1) // at(b, lengths)


def test_how_sizes_are_written() -> None:
    assert written(TIME + PAST) == "past + time"
    assert written(4 * TIME * TIME + 64) == "4*time*time + 64"
    assert written(7) == 7
    assert read("past + time") == PAST + TIME
    assert read(None) is None
    with pytest.raises(ValueError, match="'2 time' is no size"):
        read("2 time")


def test_what_lengths_leave_open_is_no_decision() -> None:
    assert 512 * TIME >= 512
    assert not TIME >= 2
    for decide in (lambda: TIME > 3, lambda: max(0, TIME), lambda: range(TIME), lambda: TIME <= 5):
        with pytest.raises(UnknownSizeError, match="a kernel has to know"):
            decide()
    with pytest.raises(UnknownSizeError, match="has to know the size time before it is written"):
        TIME // 2


def test_sizes_meet_expressions() -> None:
    with with_lengths({"time": 5}):
        assert TIME // 2 == 2
        assert np.float64(3) * TIME == 15
        assert 8 % TIME == 3
    assert hint(TIME * 2 + 1) == 129


def test_lengths_are_read_off_arrays() -> None:
    shapes = [((None, TIME), (2, 5)), ((None, PAST + TIME), (2, 9)), ((None, 4, PAST, 8), (2, 4, 4, 8))]
    assert bound(shapes) == {"time": 5, "past": 4}


def test_limits() -> None:
    limit = Limit(PAST + TIME, 8)
    assert limit.allows({"past": 4, "time": 4})
    assert not limit.allows({"past": 5, "time": 4})
    assert Limit.from_json(limit.to_json()) == limit
    assert narrowest([limit, Limit(PAST + TIME, 6), Limit(TIME, 3)]) == (Limit(PAST + TIME, 6), Limit(TIME, 3))
    assert SymDim("time", 4).least == 1
