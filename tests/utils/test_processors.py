"""How many processors a process may use: those that it is bound to, and no more than its container's share of time."""

import os
from pathlib import Path

import pytest

from ptqc.utils import parallel
from ptqc.utils.parallel import processors

MINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", MINE), ("100000 100000", 1), ("10000 100000", 1), ("9900000 100000", min(MINE, 99)), ("", MINE)],
)
def test_a_container_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(parallel, "QUOTA", tmp_path / "cpu.max")
    assert processors() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", MINE), ("50000", 1)])
def test_a_container_of_older_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    for name, text in (("quota", quota), ("period", "100000")):
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(parallel, "QUOTA", tmp_path / "none")
    monkeypatch.setattr(parallel, "OLDER_QUOTA", (tmp_path / "quota", tmp_path / "period"))
    assert processors() == expected


def test_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "QUOTA", tmp_path / "none")
    monkeypatch.setattr(parallel, "OLDER_QUOTA", (tmp_path / "none", tmp_path / "none"))
    assert processors() == MINE
