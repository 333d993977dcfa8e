"""How a command fails on a model, and whether it fails in the same way on a part of it."""

import re
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptqc.errors import UsageError
from ptqc.utils import sandbox

MODEL, DATA = "{model}", "{data}"
COMPILE = ("compile", MODEL, "--calibration", DATA, "-o", "out", "--cache", "cache")
# Commands of ptqc that read a model or an artifact.
OWN = (
    "inspect",
    "compile",
    "resolve",
    "sweep",
    "expand",
    "explain",
    "compare",
    "eval",
    "run",
    "bench",
    "verify",
    "bisect",
    "cache",
)
REFUSED = 2
# Of a trial, beyond three times what the whole model took.
SECONDS = 30.0
# Of the whole model.
MOST_SECONDS = 3600.0
# How the process that another program takes the place of says that it could not.
NO_PROGRAM, CANNOT_RUN = 127, re.compile("^cannot run .*", re.MULTILINE)
FAULT = re.compile(r"internal fault: (\w+):")


@dataclass(frozen=True)
class Failure:
    """code: exit code, minus a signal's number, or None where it did not end. fault: of ptqc, by its exception."""

    code: int | None
    fault: str

    def __str__(self) -> str:
        if self.code is None:
            return "does not end"
        if self.code < 0:
            return f"is ended by {signal.Signals(-self.code).name}"
        return f"ends with exit code {self.code}" + (f" ({self.fault})" if self.fault else "")


@dataclass(frozen=True)
class Command:
    """A command of ptqc, or another program. words: with MODEL and DATA in place of files.

    message: a pattern that what it writes to stderr must match. seconds: that it may take.
    """

    words: tuple[str, ...]
    message: str | None = None
    seconds: float = MOST_SECONDS

    @classmethod
    def parse(cls, words: Sequence[str], message: str | None) -> "Command":
        """Words with the files among them made absolute, since trials run in a folder of their own.

        Raises UsageError for a pattern that is none, and for words that name no model.
        """
        if not any(MODEL in word for word in words):
            raise UsageError(f"the command {shlex.join(words)!r} does not say where the model goes: write {MODEL}")
        try:
            re.compile(message or "")
        except re.error as error:
            raise UsageError(f"the message {message!r} is not a regular expression: {error}") from error
        return cls(tuple(str(Path(word).absolute()) if Path(word).is_file() else word for word in words), message)

    def run(self, model: Path, data: Path, folder: Path) -> tuple[Failure | None, float]:
        """How it failed in a folder, or None; and the seconds it took. Raises UsageError for a program that is none."""
        words = self._filled(model, data)
        module = "ptqc.cli.main" if words[0] in OWN else "ptqc.utils.program"
        started = time.monotonic()
        ended = sandbox.run(module, words, self.seconds, folder=folder)
        if ended.code == NO_PROGRAM and (reason := CANNOT_RUN.search(ended.errors)) is not None:
            raise UsageError(f"{reason[0]}; give a program, or one of ptqc's commands {', '.join(OWN)}")
        failed = ended.code != 0 and re.search(self.message or "", ended.errors) is not None
        return (_failure(ended) if failed else None), time.monotonic() - started

    def command_line(self, model: Path, data: Path) -> str:
        """The command as it is typed."""
        words = self._filled(model, data)
        return shlex.join(["ptqc", *words] if words[0] in OWN else words)

    def _filled(self, model: Path, data: Path) -> list[str]:
        return [word.replace(MODEL, str(model)).replace(DATA, str(data)) for word in self.words]


def _failure(ended: sandbox.Ended) -> Failure:
    fault = FAULT.search(ended.errors)
    return Failure(ended.code, fault[1] if fault else "")


def check_distinct(failure: Failure, message: str | None) -> None:
    """Refuse a refusal, which parts of a model have reasons of their own for. Raises UsageError."""
    if failure.code == REFUSED and message is None:
        raise UsageError(
            "the command ends with exit code 2, as it does for any model that cannot be accepted; say with --message "
            "which words of its message are meant"
        )
