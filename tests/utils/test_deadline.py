"""Time limits: how they are given, and what they leave."""

import time

import pytest

from ptqc.errors import UsageError
from ptqc.utils import deadline
from ptqc.utils.deadline import NEVER, Deadline, Pace, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), (" 5 min ", 300), ("1.5h", 5400), (".5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-5", "5 days", "1e3", "5m30s", "nan"])
def test_other_texts_are_refused_with_the_known_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"90s, 5m or 1\.5h"):
        parse_seconds(text)


def test_a_deadline_leaves_what_ends_before_it() -> None:
    deadline = Deadline.after(100, time.monotonic())
    assert deadline.leaves(0)
    assert deadline.leaves(90)
    assert not deadline.leaves(110)
    assert not Deadline.after(1, time.monotonic() - 2).leaves(0)


def test_without_a_limit_there_is_time_for_everything() -> None:
    assert Deadline().leaves(1e300)
    assert Deadline.after(0, time.monotonic() - 5).leaves(1e300)


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(deadline, "time", result)
    return result


def test_shares_of_what_is_left(clock: Clock) -> None:
    whole = Deadline.after(100, clock.now)
    clock.now += 20
    assert whole.left == 80
    assert whole.share(0.25).left == 20
    clock.now += 100
    assert (whole.left, whole.share(0.5).left) == (0, 0)
    assert not NEVER.share(0.5).is_limited


def test_what_there_is_time_for(clock: Clock) -> None:
    whole = Deadline.after(100, clock.now)
    assert [whole.affords(seconds, 64, 8) for seconds in (0.0, 1.0, 4.0, 50.0)] == [64, 64, 25, 8]
    assert NEVER.affords(1e9, 64, 8) == 64


def test_a_pace_without_a_limit_is_never_short(clock: Clock) -> None:
    pace = Pace(NEVER, 10, 1e9)
    clock.now += 1e9
    assert pace.part() == 1
    assert not pace.is_short


def test_a_pace_follows_what_was_measured(clock: Clock) -> None:
    """Ten pieces, of which there is time for half at first; the others then turn out to take three times as long."""
    pace = Pace(Deadline.after(50, clock.now), 10, 10.0)
    assert pace.part() == 0.5
    clock.now += 30
    pace.did(2, 0.5)
    assert pace.part() == pytest.approx(20 / (30 * 8))
    assert pace.is_short


def test_what_the_first_piece_loads_is_not_its_pace(clock: Clock) -> None:
    """It takes 20 seconds, each further one takes 2."""
    pace = Pace(Deadline.after(50, clock.now), 12)
    clock.now += 20
    pace.did(1)
    assert pace.whole == 240
    for _ in range(2):
        clock.now += 2
        pace.did(1)
    assert pace.whole == 24
    assert pace.part() == 1


def test_a_small_part_says_nothing_of_the_pace(clock: Clock) -> None:
    """A hundredth of a piece, in which the first call of everything falls."""
    pace = Pace(Deadline.after(50, clock.now), 10, 10.0)
    clock.now += 5
    pace.did(0.01)
    assert pace.whole == 100
    assert pace.part() == pytest.approx(45 / 99.9)


def test_a_pace_takes_up_again_what_was_saved(clock: Clock) -> None:
    pace = Pace(Deadline.after(50, clock.now), 10, 10.0)
    pace.did(5, 0.0)
    assert pace.part() == 1
    clock.now += 60
    assert pace.part() == 0


def test_an_unknown_pace_begins(clock: Clock) -> None:
    assert Pace(Deadline.after(50, clock.now), 10).part() == 1
    assert Pace(Deadline.after(-1, clock.now), 10).part() == 0
