"""Progress of long steps: a live bar on a terminal, lines elsewhere, nothing for the Python API."""

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol, TextIO

from ptqc.errors import UsageError
from ptqc.utils.arguments import shown
from ptqc.utils.text import printable, visible


class Stage(Protocol):
    """One stage of a compile, such as "calibrate"."""

    def advance(self, label: str = "", steps: int = 1) -> None:
        """Count steps that are done; an exception from here cancels the work.

        Args:
            label: What is being worked on, such as the name of a layer.
            steps: How many steps are done.
        """


class Progress(Protocol):
    """Shows progress: implement both methods, or use `ptqc.Lines`."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Enter a stage; the context manager gives the stage.

        Args:
            name: What the stage does.
            total: Its number of steps; None if it is not known.
        """
        ...

    def line(self, text: str) -> None:
        """Show a line that stays."""


def check_progress(value: object) -> None:
    """Raises UsageError for what shows no progress."""
    if not all(callable(getattr(value, name, None)) for name in ("stage", "line")):
        raise UsageError(
            f"progress is {shown(value)}; give an object with stage(name, total), a context, and line(text), such as "
            "ptqc.Lines()"
        )


class _Nothing:
    def __repr__(self) -> str:
        return "SILENT"

    def advance(self, label: str = "", steps: int = 1) -> None:
        """Do nothing."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:  # noqa: ARG002
        yield self

    def line(self, text: str) -> None:
        """Do nothing."""


SILENT: Progress = _Nothing()
SILENT_STAGE: Stage = _Nothing()


class Shares(int):
    """The steps of a stage whose pieces take different times, of which the share that is done is told in percent."""


IN_SHARES = Shares(1000)


def in_shares(costs: Sequence[float]) -> list[int]:
    """IN_SHARES steps, given to pieces as their costs are; none of these may be negative, nor all be 0."""
    total, passed = sum(costs), [0, *accumulate(costs)]
    ends = [round(IN_SHARES * cost / total) for cost in passed]
    return [end - start for start, end in pairwise(ends)]


@dataclass
class Left:
    """What is left of a stage: as much time for each step as those took that are done.

    total: its steps, where they are known. began, and all moments: on one clock.
    """

    total: int | None
    began: float
    steps: int = 0
    last: float = 0.0

    def add(self, steps: int, now: float) -> None:
        """So many more are done."""
        self.steps, self.last = self.steps + steps, now

    def seconds(self, now: float) -> float | None:
        """From now to the end; None before a tenth is done, since less says little, and where nothing is known."""
        if not self.total or 10 * self.steps < self.total:
            return None
        whole = (self.last - self.began) * self.total / self.steps
        return max(whole - (now - self.began), 0.0)

    def text(self, now: float) -> str:
        """As roughly as it is known: "40 s", "3 min"; empty where it is not, or the estimate has run out."""
        seconds = self.seconds(now)
        if not seconds:
            return ""
        return f"{10 * math.ceil(seconds / 10)} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# Seconds after which a stage says that it is still at work, and again.
HEARTBEAT = 30.0


class Lines:
    """Prints a line for each stage that takes over 2 s, and one every 30 s (HEARTBEAT) while a stage lasts.

    Args:
        stream: Where to print; default: standard error.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Time the stage; print while it lasts and when it is done."""
        started, ended = time.monotonic(), threading.Event()
        counted = _Count(Left(total, started))

        def beat() -> None:
            while not ended.wait(HEARTBEAT):
                now = time.monotonic()
                self.line(f"{name}: {counted.done}{now - started:.0f} s so far{counted.left(now)}")

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield counted
        finally:
            ended.set()
        elapsed = time.monotonic() - started
        if elapsed > 2:
            steps = f", {total} step{'s' if total != 1 else ''}" if total and not isinstance(total, Shares) else ""
            self.line(f"{name}: {elapsed:.1f} s{steps}")

    def line(self, text: str) -> None:
        """Print the text."""
        print(printable(text), file=self._stream, flush=True)


class _Count:
    def __init__(self, known: Left) -> None:
        self._known = known

    def advance(self, label: str = "", steps: int = 1) -> None:  # noqa: ARG002
        """Count what is done."""
        self._known.add(steps, time.monotonic())

    @property
    def done(self) -> str:
        steps, total = self._known.steps, self._known.total
        if isinstance(total, Shares):
            return f"{100 * steps // total} % done, "
        of = f" of {total}" if total else ""
        return f"{steps}{of} done, " if steps or total else ""

    def left(self, now: float) -> str:
        """What is left, where it is known."""
        result = self._known.text(now)
        return f", about {result} left" if result else ""


class Live:
    """A bar with the stage, the current item and, where the number of steps is known, an estimate of what is left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Show a bar while the stage lasts."""
        from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        known = Left(total, time.monotonic())

        class LeftColumn(ProgressColumn):
            """What is left, as plain lines tell it."""

            def render(self, task: Task) -> Text:  # noqa: ARG002
                result = known.text(time.monotonic())
                return Text(f"about {result} left" if result else "")

        steps = "{task.percentage:.0f} %" if isinstance(total, Shares) else "{task.completed}/{task.total}"
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<22}", markup=False),
            BarColumn(),
            *([TextColumn(steps)] if total else []),
            TimeElapsedColumn(),
            *([LeftColumn()] if total else []),
            TextColumn("{task.fields[label]}", markup=False),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(name, total=total, label="")

            def update(label: str, steps: int) -> None:
                known.add(steps, time.monotonic())
                bars.update(task, advance=steps, label=visible(label)[-40:])

            yield _Bar(update)

    def line(self, text: str) -> None:
        """Print the text above the bar."""
        self._console.print(printable(text), highlight=False, markup=False)


class _Bar:
    def __init__(self, update: "_Update") -> None:
        self._update = update

    def advance(self, label: str = "", steps: int = 1) -> None:
        """Move the bar on."""
        self._update(label, steps)


class _Update(Protocol):
    def __call__(self, label: str, steps: int) -> None: ...


def for_terminal(quiet: bool = False) -> Progress:
    """Live on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return SILENT
    return Live() if sys.stderr.isatty() else Lines()


# Progress of another process, which adds a line to a file for each step that it has done.

PERIOD = 0.5


def tell(path: Path, label: str) -> None:
    """A step is done; label names it, on one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{label}\n")


@contextmanager
def following(path: Path, stage: Stage) -> Iterator[None]:
    """Let a stage advance by each line that a file gets meanwhile; it need not be there yet."""
    ended, seen = threading.Event(), 0

    def look() -> None:
        nonlocal seen
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
        for label in lines[seen:]:
            stage.advance(label)
        seen = len(lines)

    def follow() -> None:
        while not ended.wait(PERIOD):
            look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
