"""Equal notes are one group, in the order of the first of each."""

from ptqc.artifact.report.summary import NoteGroup, groups


def note(step: str, subject: str, message: str) -> dict[str, str]:
    return {"step": step, "subject": subject, "message": message}


def test_groups() -> None:
    notes = [note("a", "x", "m"), note("b", "", "m"), note("a", "y", "m"), note("a", "x", "n"), note("b", "", "m")]
    assert groups(notes) == [
        NoteGroup("a", "m", 2, ("x", "y")),
        NoteGroup("b", "m", 2, ()),
        NoteGroup("a", "n", 1, ("x",)),
    ]
    assert groups([]) == []
