"""The tests that are left out of a plain run, some at once, and what came of each on which commit.

python benchmarks/slow_tests.py [--only TEXT] [--minutes 50] [--each 40] [--again] [--at-once 2]

Ends when its minutes are over; the next call goes on with the tests that never ran, then with those that did not pass,
then with the oldest. --each: minutes after which a test is stopped. --again: those that passed on this commit, too.
The results are in figures/slow_tests.json; what tests wrote that did not pass is in build/benchmarks/slow_tests.
"""

import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import Any

import harness
from harness import FIGURES, RESULTS, ROOT, Column, number

DATA, LOGS = FIGURES / "slow_tests.json", RESULTS / "slow_tests"
COLUMNS = (
    Column("test", "test"),
    Column("result", "result"),
    Column("cases", "cases"),
    Column("skipped", "skipped"),
    Column("seconds", "seconds", number(0)),
    Column("commit", "commit"),
    Column("date", "date"),
    Column("note", "note"),
)
PASSED, FAILED, SKIPPED, STOPPED = "passed", "FAILED", "skipped", "STOPPED"
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--strict-markers",
    "-m",
    "slow",
)


def collected() -> list[str]:
    """The slow tests, each with all of its cases."""
    command = [*PYTEST, "--collect-only", "tests"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return list(dict.fromkeys(re.sub(r"\[.*", "", line) for line in lines if "::" in line))


def run(test: str, limit: float) -> dict[str, Any]:
    """Run one test with all of its cases. limit: seconds after which it is stopped."""
    log = LOGS / f"{re.sub('[^A-Za-z0-9_.]+', '-', test)}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    row = _run(test, limit, log)
    if row["result"] in (PASSED, SKIPPED):
        log.unlink()
    return row


def _run(test: str, limit: float, log: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ptqc-slow-") as folder:
        written = Path(folder) / "results.xml"
        command = [*PYTEST, "-n", "0", "--basetemp", f"{folder}/tmp", f"--junitxml={written}", test]
        began = time.monotonic()
        if harness.call(command, limit, log) is None:
            return {"test": test, "result": STOPPED, "seconds": limit, "note": f"not ended in {limit / 60:.0f} minutes"}
        row: dict[str, Any] = {"test": test, "seconds": round(time.monotonic() - began, 1)}
        if not written.exists():
            return {**row, "result": FAILED, "note": harness.last_line(log)[:200]}
        return {**row, **_results(ET.parse(written).getroot())}


def _results(suite: ET.Element) -> dict[str, Any]:
    """What the cases of a test ended with."""
    cases = list(suite.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [item for case in cases if (item := case.find("skipped")) is not None]
    result = FAILED if failed else SKIPPED if len(skipped) == len(cases) else PASSED
    row: dict[str, Any] = {"result": result, "cases": len(cases)}
    if skipped:
        reason, _ = Counter(str(item.get("message")) for item in skipped).most_common(1)[0]
        row |= {"skipped": len(skipped), "note": reason[:200]}
    if failed:
        row["note"] = "; ".join(str(case.get("name")) for case in failed)[:200]
    return row


def in_order(tests: Sequence[str], known: Mapping[str, Mapping[str, Any]], commit: str, again: bool) -> list[str]:
    """The tests to run: those that never ran, those that did not pass, then those that passed longest ago."""
    ended = {test for test, row in known.items() if row["result"] in (PASSED, SKIPPED)}
    here = set() if again else {test for test in ended if known[test]["commit"] == commit}
    left = [test for test in tests if test not in here]
    return sorted(left, key=lambda test: (test in known, test in ended, known.get(test, {}).get("date", "")))


def main() -> None:
    parser = harness.command_line(__doc__)
    parser.add_argument("--only", default="", help="tests whose name has this text")
    parser.add_argument("--minutes", type=float, default=50.0, help="after which no further test is started")
    parser.add_argument("--each", type=float, default=40.0, help="minutes after which a test is stopped")
    parser.add_argument("--again", action="store_true", help="those that passed on this commit, too")
    parser.add_argument("--at-once", type=int, default=2, help="tests that run at a time")
    arguments = parser.parse_args()
    facts, commit, began = harness.machine(), harness.commit(), time.monotonic()
    tests = collected()
    rows_before = harness.recorded(DATA) if DATA.exists() else []
    known = {row["test"]: row for row in rows_before if row["test"] in tests}

    def ended(test: str) -> dict[str, Any] | None:
        """None where the minutes are over, which says nothing of the test."""
        left = 60 * arguments.minutes - (time.monotonic() - began)
        if left <= 0:
            return None
        harness.say(f"{test} ({left / 60:.0f} minutes left)")
        limit = min(60 * arguments.each, left)
        row = run(test, limit)
        if row["result"] == STOPPED and limit < 60 * arguments.each:
            return None
        return {**row, "commit": commit, "date": str(date.today()), "machine": harness.heading(facts)}

    rows = list[dict[str, Any]]()
    chosen = in_order([test for test in tests if arguments.only in test], known, commit, arguments.again)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for done in as_completed([pool.submit(ended, test) for test in chosen]):
            if (row := done.result()) is not None:
                rows.append(row)
                known[row["test"]] = row
                harness.write_recorded(DATA, [known[each] for each in tests if each in known])
    harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)
    sys.exit(any(row["result"] in (FAILED, STOPPED) for row in rows))


if __name__ == "__main__":
    main()
