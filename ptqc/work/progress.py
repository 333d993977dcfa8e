"""Progress of long steps: a live bar on a terminal, lines elsewhere, nothing for the Python API."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from ptqc.arguments import shown
from ptqc.errors import UsageError


class Stage(Protocol):
    """One stage of known or unknown length."""

    def advance(self, label: str = "", steps: int = 1) -> None:
        """`steps` more are done; label names what is being worked on."""


class Progress(Protocol):
    """Where progress is shown."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """A stage of `total` steps."""
        ...

    def line(self, text: str) -> None:
        """One line that stays."""


def check_progress(given: object) -> None:
    """Raises UsageError for what shows no progress."""
    if not all(callable(getattr(given, name, None)) for name in ("stage", "line")):
        raise UsageError(
            f"progress is {shown(given)}; give an object with stage(name, total), a context, and line(text), such as "
            "ptqc.work.progress.Lines()"
        )


class _Nothing:
    def advance(self, label: str = "", steps: int = 1) -> None:
        """Do nothing."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:  # noqa: ARG002
        yield self

    def line(self, text: str) -> None:
        """Do nothing."""


SILENT: Progress = _Nothing()


# Seconds after which a stage says that it is still at work, and again.
HEARTBEAT = 30.0


class Lines:
    """A plain line every HEARTBEAT seconds of a stage, and one at the end of each that took over two seconds."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Time the stage; print while it lasts and when it is done."""
        started, counted, ended = time.monotonic(), _Count(), threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT):
                of = f" of {total}" if total else ""
                done = f"{counted.steps}{of} done, " if counted.steps or total else ""
                self.line(f"{name}: {done}{time.monotonic() - started:.0f} s so far")

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield counted
        finally:
            ended.set()
        elapsed = time.monotonic() - started
        if elapsed > 2:
            steps = f", {total} steps" if total else ""
            self.line(f"{name}: {elapsed:.1f} s{steps}")

    def line(self, text: str) -> None:
        """Print the text."""
        print(text, file=self._stream, flush=True)


class _Count:
    def __init__(self) -> None:
        self.steps = 0

    def advance(self, label: str = "", steps: int = 1) -> None:  # noqa: ARG002
        """Count what is done."""
        self.steps += steps


class Live:
    """A bar with the stage, the current item and, where the number of steps is known, an estimate of what is left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Show a bar while the stage lasts."""
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        steps = [TextColumn("{task.completed}/{task.total}")] if total else []
        left = [TextColumn("left"), TimeRemainingColumn()] if total else []
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(),
            *steps,
            TimeElapsedColumn(),
            *left,
            TextColumn("{task.fields[label]}"),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(name, total=total, label="")
            yield _Bar(lambda label, steps: bars.update(task, advance=steps, label=label[-40:]))

    def line(self, text: str) -> None:
        """Print the text above the bar."""
        self._console.print(text, highlight=False, markup=False)


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
