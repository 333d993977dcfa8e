"""Time limits: how they are given, and what they leave."""

import time

import pytest

from ptqc.deadline import Deadline, parse_seconds
from ptqc.errors import UsageError


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
