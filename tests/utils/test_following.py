"""A stage follows what another process has done."""

from pathlib import Path

import pytest

from ptqc.utils import progress


class Stage:
    def __init__(self) -> None:
        self.labels: list[str] = []

    def advance(self, label: str = "", steps: int = 1) -> None:
        self.labels += [label] * steps


def test_each_line_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PERIOD", 0.001)
    stage, path = Stage(), tmp_path / "done.txt"
    with progress.following(path, stage):
        progress.tell(path, "1 of 3")
        while stage.labels != ["1 of 3"]:
            pass
        progress.tell(path, "2 of 3")
        progress.tell(path, "3 of 3")
    assert stage.labels == ["1 of 3", "2 of 3", "3 of 3"]


def test_what_was_done_is_told_where_the_work_fails_and_nothing_without_a_file(tmp_path: Path) -> None:
    stage, path = Stage(), tmp_path / "done.txt"
    with progress.following(path, stage):
        pass
    assert stage.labels == []
    with pytest.raises(ValueError, match="broken"), progress.following(path, stage):  # noqa: PT012
        progress.tell(path, "one")
        raise ValueError("broken")
    assert stage.labels == ["one"]
