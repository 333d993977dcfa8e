"""Progress: lines for long stages only, nothing for the Python API, a bar on a terminal."""

import io
import sys
import time

import pytest

from ptqc.errors import UsageError
from ptqc.work import progress
from ptqc.work.progress import SILENT, Lines, Live, Progress, check_progress, for_terminal


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


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


def test_a_long_stage_says_that_it_is_at_work(beats: list[str]) -> None:
    with Lines().stage("measure", 12) as stage:
        stage.advance("layer", 5)
        said = len(beats)
        wait_for(beats, said + 2)
    assert beats[said + 1] == f"measure: 5 of 12 done, {60 * (said + 1)} s so far"


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


def test_a_bar_counts_and_estimates_only_towards_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Live().stage("one", 7) as stage:
        stage.advance("layer", 7)
    assert "7/7" in stream.getvalue()
    assert "left" in stream.getvalue()
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
