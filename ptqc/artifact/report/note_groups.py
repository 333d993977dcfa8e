"""Notes that say the same of several values, told once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAMED = 3  # names that are told before the others are counted, or folded away


@dataclass(frozen=True)
class NoteGroup:
    """A message of a step. count: of the notes that say it; subjects: the values that they are about."""

    step: str
    message: str
    count: int
    subjects: tuple[str, ...]


def groups(notes: Sequence[Mapping[str, Any]]) -> list[NoteGroup]:
    """In the order of the first note of each."""
    found: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        found.setdefault((note["step"], note["message"]), []).append(note["subject"])
    return [
        NoteGroup(step, message, len(subjects), tuple(filter(None, subjects)))
        for (step, message), subjects in found.items()
    ]
