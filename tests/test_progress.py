"""Progress: lines for long stages only, nothing for the Python API, a bar on a terminal."""

import io
import sys

import pytest

from ptqc import progress
from ptqc.progress import SILENT, Lines, Live, Progress, for_terminal


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
