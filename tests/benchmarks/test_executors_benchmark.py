"""The table of executors: what each costs beside threads, and which files differ."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import executors
import pytest
from peak_memory import Peak

FILES = {"model.onnx": "a", "plan.json": "b"}


@pytest.fixture
def options() -> argparse.Namespace:
    return argparse.Namespace(model=Path("m.onnx"), ways=["threads", "ray"], workers=2, rounds=2)


def rows(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, *runs: tuple[Peak, Mapping[str, str]]
) -> list[dict[str, object]]:
    value = iter(runs)
    monkeypatch.setattr(executors, "compiled", lambda _options, _way: next(value))
    return executors.rows_of(options)


def peak(processor: float, code: int = 0) -> Peak:
    return Peak(100.0 + processor, seconds=2 * processor, processor=processor, code=code)


def test_the_least_of_all_rounds_beside_that_of_threads(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [(peak(seconds), FILES) for seconds in (10.0, 13.0, 12.0, 11.0)]
    threads, ray = rows(options, monkeypatch, *runs)
    assert (threads["processor"], threads["of_threads"], threads["same"]) == (10.0, 1.0, "all 2 files")
    assert (ray["processor"], ray["of_threads"], ray["same"]) == (11.0, 1.1, "all 2 files")
    assert ray["peak_mb"] == 113.0


def test_a_file_that_ever_differed_is_named(options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**FILES, "plan.json": "c"}
    _, ray = rows(options, monkeypatch, *((peak(1.0), files) for files in (FILES, other, FILES, FILES)))
    assert ray["same"] == "all but plan.json"


def test_a_failure_is_a_row(options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [(peak(1.0), FILES), (peak(1.0, 3), {}), (peak(1.0), FILES), (peak(1.0), FILES)]
    threads, ray = rows(options, monkeypatch, *runs)
    assert threads["of_threads"] == 1.0
    assert ray["note"] == "ended with exit code 3"
