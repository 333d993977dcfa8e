"""The record of the slow tests: what is run next, and what a run of a test gives."""

import xml.etree.ElementTree as ET
from pathlib import Path

import harness
import pytest
import slow_tests
from slow_tests import FAILED, PASSED, SKIPPED, STOPPED, in_order


def test_what_never_ran_or_failed_comes_first() -> None:
    known = {
        "new": {"result": PASSED, "commit": "b", "date": "2026-11-02"},
        "old": {"result": PASSED, "commit": "a", "date": "2026-11-01"},
        "failed": {"result": FAILED, "commit": "b", "date": "2026-11-02"},
        "here": {"result": PASSED, "commit": "c", "date": "2026-11-03"},
    }
    tests = ["here", "new", "old", "failed", "never"]
    assert in_order(tests, known, "c", again=False) == ["never", "failed", "old", "new"]
    assert in_order(tests, known, "c", again=True)[-1] == "here"


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ("<testcase name='a'/><testcase name='b'><skipped message='no GPU'/></testcase>", (PASSED, 2, 1, "no GPU")),
        ("<testcase name='b'><skipped message='no GPU'/></testcase>", (SKIPPED, 1, 1, "no GPU")),
        ("<testcase name='a'/><testcase name='b'><failure/></testcase>", (FAILED, 2, None, "b")),
        ("<testcase name='a'><error/></testcase>", (FAILED, 1, None, "a")),
    ],
)
def test_results_of_cases(cases: str, expected: tuple[str, int, int | None, str]) -> None:
    row = slow_tests._results(ET.fromstring(f"<testsuites><testsuite>{cases}</testsuite></testsuites>"))
    assert (row["result"], row["cases"], row.get("skipped"), row.get("note")) == expected


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where output of tests is kept."""
    monkeypatch.setattr(slow_tests, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


def test_a_test_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_tests, "PYTEST", ("bash", "-c", "sleep 60 & wait"))
    monkeypatch.setattr(harness, "STOPPING", 0.2)
    row = slow_tests.run("test", 0.2)
    assert row["result"] == STOPPED
    assert row["seconds"] == 0.2


def test_a_run_without_results_failed(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    monkeypatch.setattr(slow_tests, "PYTEST", ("bash", "-c", "echo no such file; exit 4"))
    row = slow_tests.run("tests/test_a.py::test_b", 60)
    assert (row["result"], row["note"]) == (FAILED, "no such file")
    assert (logs / "tests-test_a.py-test_b.txt").read_text() == "no such file\n"
