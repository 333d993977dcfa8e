"""The smallest failing part of a sequence."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptqc.tools.reduce.search import ddmin

Numbers = tuple[int, ...]


def holds(*wanted: int) -> Callable[[Numbers], bool]:
    return lambda part: set(wanted) <= set(part)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_what_it_takes_is_left_and_nothing_else(drawn: tuple[int, set[int]]) -> None:
    count, wanted = drawn
    assert ddmin(range(count), holds(*wanted)) == tuple(sorted(wanted))


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_no_element_can_be_left_out(count: int, seed: int) -> None:
    """Where failing is not a matter of single elements."""

    def fails(part: Numbers) -> bool:
        return sum(hash((seed, number)) % 7 for number in part) >= 9

    if fails(tuple(range(count))):
        result = ddmin(range(count), fails)
        assert fails(result)
        assert not any(fails(result[:i] + result[i + 1 :]) for i in range(len(result)) if len(result) > 1)


def test_half_of_the_whole_goes_at_once() -> None:
    asked: list[Numbers] = []
    ddmin(range(1024), lambda part: bool(asked.append(part)) or 700 in part)
    assert len(asked) < 30


@pytest.mark.parametrize("whole", [(), (3,)])
def test_nothing_to_leave_out_asks_nothing(whole: Numbers) -> None:
    assert ddmin(whole, lambda _part: bool(1 / 0)) == whole
