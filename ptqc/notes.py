"""What a step did, or did not do and why: the raw material of `ptqc explain` and of the report."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a note matters to the user."""

    INFO = "info"  # something was done
    SKIPPED = "skipped"  # something could have been done and was not; the message is the reason
    WARNING = "warning"  # something the user should look at


@dataclass(frozen=True)
class Note:
    """A remark of the compiler about a value of the model or about the whole model."""

    #: The step of the compile that made it.
    step: str
    #: Name of the value; "" for the whole model.
    subject: str
    #: What was done, or not done and why.
    message: str
    #: "info", "skipped" (something was possible and not done) or "warning".
    level: Level = Level.INFO

    def __str__(self) -> str:
        where = f" {self.subject}:" if self.subject else ""
        return f"[{self.step}]{where} {self.message}"


OUT_OF_TIME = "time-limit"


def out_of_time(done: str) -> Note:
    """A note that the time limit left something out. done: what there was time for."""
    return Note(OUT_OF_TIME, "", f"cut short: there was time for {done}", Level.WARNING)


def is_cut_short(notes: Iterable[Note]) -> bool:
    """Whether the time limit left out anything."""
    return any(note.step == OUT_OF_TIME for note in notes)


UNFIT = "not-fit-for-use"


def unfit(why: str) -> Note:
    """A warning that a file is not fit for use, however well it was checked."""
    return Note(UNFIT, "", why, Level.WARNING)


def reasons_unfit(notes: Iterable[Note]) -> list[str]:
    """Why a file is not fit for use; none where it is."""
    return [note.message for note in notes if note.step == UNFIT]
