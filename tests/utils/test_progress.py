"""Progress: lines for long stages only, nothing for the Python API, a bar on a terminal."""

import io
import re
import sys
import time
from collections.abc import Callable

import pytest

from ptqc.errors import UsageError
from ptqc.utils import progress
from ptqc.utils.progress import IN_SHARES, SILENT, Left, Lines, Live, Progress, check_progress, for_terminal, in_shares


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(progress, "time", result)
    return result


def test_a_long_stage_is_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    with Lines(stream).stage("measure", 12) as stage:
        stage.advance("layer")
        clock.now += 3.25
    assert stream.getvalue() == "measure: 3.2 s, 12 steps\n"


def test_a_short_stage_says_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    with Lines(stream).stage("measure"):
        clock.now += 1.0
    assert stream.getvalue() == ""


def test_a_failed_stage_says_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    stage = Lines(stream).stage("measure")
    stage.__enter__()
    clock.now += 9
    assert not stage.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert stream.getvalue() == ""


@pytest.fixture
def beats(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `Lines` says, with a heartbeat that each takes a minute of the clock."""
    said: list[str] = []

    def line(_: Lines, text: str) -> None:
        said.append(text)
        clock.now += 60

    monkeypatch.setattr(Lines, "line", line)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.001)
    return said


def wait_for(beats: list[str], count: int) -> None:
    end = time.monotonic() + 10
    while len(beats) < count and time.monotonic() < end:
        time.sleep(0.001)


@pytest.mark.parametrize("total", [12, int(IN_SHARES)])
def test_a_long_stage_says_that_it_is_at_work(beats: list[str], total: int) -> None:
    with Lines().stage("measure", total) as stage:
        stage.advance("layer", 5)
        said = len(beats)
        wait_for(beats, said + 2)
    # What is left is told where a beat came before the steps, so that these took time.
    line = rf"measure: 5 of {total} done, {60 * (said + 1)} s so far(, about \d+ (s|min) left)?"
    assert re.fullmatch(line, beats[said + 1])


def test_it_says_what_is_left_from_a_tenth_on(beats: list[str], clock: Clock) -> None:
    with Lines().stage("solve", IN_SHARES) as stage:
        clock.now += 20
        stage.advance("layer", IN_SHARES // 20)
        wait_for(beats, 1)
        assert "left" not in beats[0]
        stage.advance("layer", IN_SHARES // 5)
        said = len(beats)
        wait_for(beats, said + 2)
    assert re.fullmatch(r"solve: 25 % done, \d+ s so far(, about \d+ (s|min) left)?", beats[said + 1])


def test_what_is_left_follows_from_the_steps_that_are_done() -> None:
    left = Left(100, began=10.0)
    left.add(9, now=12.0)
    assert left.seconds(12.0) is None
    left.add(16, now=20.0)
    assert left.seconds(20.0) == pytest.approx(30.0)
    assert left.seconds(24.0) == pytest.approx(26.0)
    assert left.seconds(90.0) == 0.0
    assert Left(None, 0.0, 3).seconds(1.0) is None


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.0, "10 s"), (41.0, "50 s"), (119.0, "120 s"), (200.0, "3 min"), (0.0, "")]
)
def test_what_is_left_is_told_roughly(seconds: float, expected: str) -> None:
    assert Left(100, 0.0, 50, last=seconds).text(seconds) == expected


@pytest.mark.parametrize("costs", [[1.0], [1, 1, 1], [5.0, 0.0, 1e-9, 700.0], [0.1] * 1999])
def test_shares_are_all_steps_as_costs_are(costs: list[float]) -> None:
    result = in_shares(costs)
    assert sum(result) == IN_SHARES
    assert len(result) == len(costs)
    assert all(abs(part - IN_SHARES * cost / sum(costs)) <= 1 for part, cost in zip(result, costs, strict=True))


def test_a_stage_of_unknown_length(beats: list[str]) -> None:
    with Lines().stage("read"):
        wait_for(beats, 2)
    assert beats[:2] == ["read: 0 s so far", "read: 60 s so far"]


def test_a_stage_that_ended_says_no_more(beats: list[str]) -> None:
    with Lines().stage("read"):
        wait_for(beats, 1)
    time.sleep(0.05)
    said = len(beats)
    time.sleep(0.05)
    assert len(beats) == said


def use(shown: Progress) -> None:
    with shown.stage("measure", 2) as stage:
        stage.advance("a layer with [brackets] in its name")
        stage.advance()
    shown.line("one [line] stays")


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    use(SILENT)
    assert capsys.readouterr() == ("", "")


def test_a_bar_leaves_only_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    use(Live())
    output, shown = capsys.readouterr()
    assert output == ""
    assert "one [line] stays" in shown


@pytest.mark.parametrize(("quiet", "terminal", "kind"), [(True, True, type(SILENT)), (False, False, Lines)])
def test_the_kind_fits_the_stream(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, terminal: bool, kind: type[Progress]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert isinstance(for_terminal(quiet), kind)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(for_terminal(), Live)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_bar_counts_and_estimates_only_towards_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Live().stage("one", 7) as stage:
        time.sleep(0.5)
        stage.advance("l[/b]", 3)
        wait_until(lambda: "3/7" in stream.getvalue() and "about 10 s left" in stream.getvalue())
    assert "l[/b]" in stream.getvalue()
    stream.truncate(0)
    with Live().stage("other") as stage:
        stage.advance("layer")
    assert "other" in stream.getvalue()
    assert "None" not in stream.getvalue()
    assert "left" not in stream.getvalue()


def test_what_shows_no_progress_is_refused() -> None:
    check_progress(SILENT)
    with pytest.raises(UsageError, match=r"progress is .*print.*give an object with stage\(name, total\)"):
        check_progress(print)
