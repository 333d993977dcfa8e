"""Mutated models through the whole command: compiled or refused in one line, in time and memory, nothing touched."""

import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mutated import CRASH, FAULT, LITTER
from mutations import DECODERS

PROGRAM = Path(__file__).with_name("mutated.py")
# Of processors, not of the clock: a busy machine is no fault of the mutant.
SECONDS, MEGABYTES = 30.0, 2048.0
# Four samples of these mutants are 262,144 images: batches are fixed at 65,536 or padded to more. The second one takes
# two gigabytes wherever it is run; layer by layer, that was 228 s of a processor on a busy machine.
MORE = {972: (60.0, 4096.0), 280: (300.0, 8192.0)}
# How many times that on the clock, for a process that waits for ever.
PATIENCE = 10.0
MUTANTS = 2000
OF_DECODERS = range(DECODERS, DECODERS + 200)
SAMPLE = [*range(2), *OF_DECODERS[:1]]
Outcome = dict[str, Any]


def allowed(number: int) -> tuple[float, float]:
    """Seconds of a processor and megabytes that a mutant may take."""
    return MORE.get(number, (SECONDS, MEGABYTES))


def outcomes(numbers: Sequence[int], folder: Path) -> Iterator[Outcome]:
    """Of every mutant; a process that dies or hangs is an outcome of the one that it had begun, and is replaced."""
    left = list(numbers)
    while left:
        for outcome in _one_process(tuple(left), folder):
            left.remove(outcome["number"])
            yield outcome


def _one_process(numbers: Sequence[int], folder: Path) -> Iterator[Outcome]:
    """Outcomes until the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, numbers)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=paths, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        for number in numbers:
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE * allowed(number)[0])
            line = process.stdout.readline() if ready else b""
            if not line:
                process.kill()
                yield {"number": number, "died": process.wait()}
                return
            yield json.loads(line)


def faults(outcome: Outcome) -> list[str]:
    """What is wrong with an outcome."""
    if "died" in outcome:
        return [f"the process died: {outcome['died']}"]
    text, code = outcome["told"], outcome["code"]
    seconds, megabytes = allowed(outcome["number"])
    wrong = {
        "exit code": code not in (0, 2, 3),
        "trace": "Traceback" in text,
        "message": text != "" if code == 0 else not (text.startswith("ptqc: ") and text.count("\n") == 1),
        "time": outcome["seconds"] > seconds,
        "memory": max(outcome["megabytes"], outcome["child_megabytes"]) > megabytes,
        "left behind": outcome["left"] != [],
        "model changed": not outcome["unchanged"],
    }
    return [name for name, is_so in wrong.items() if is_so]


def bad(numbers: Sequence[int], folder: Path) -> dict[int, tuple[list[str], Outcome]]:
    result = {}
    counts: Counter[Any] = Counter()
    for outcome in outcomes(numbers, folder):
        counts[outcome.get("code", "died")] += 1
        if wrong := faults(outcome):
            result[outcome["number"]] = (wrong, outcome)
    print(dict(counts))
    return result


@pytest.mark.long
def test_a_sample_of_mutants(tmp_path: Path) -> None:
    assert bad(SAMPLE, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MUTANTS, 200))
def test_every_mutant(first: int, tmp_path: Path) -> None:
    assert bad(range(first, first + 200), tmp_path) == {}


@pytest.mark.slow
def test_every_mutant_of_decoders_with_packed_caches(tmp_path: Path) -> None:
    assert bad(OF_DECODERS, tmp_path) == {}


@pytest.mark.slow
def test_what_must_not_happen_would_be_found(tmp_path: Path) -> None:
    """A crash, a file that is left, a fault of the compiler; the process that died is replaced for the others."""
    result = bad([CRASH, LITTER, FAULT], tmp_path)
    assert result[CRASH][0] == ["the process died: -11"]
    assert "left behind" in result[LITTER][0]
    assert "exit code" in result[FAULT][0]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"seconds": 31.0}, "time"),
        ({"megabytes": 2049.0}, "memory"),
        ({"child_megabytes": 2049.0}, "memory"),
        ({"unchanged": False}, "model changed"),
        ({"code": 2, "told": "ptqc: one\nTraceback (most recent call last)\n"}, "trace"),
        ({"code": 2, "told": "one\n"}, "message"),
    ],
)
def test_each_limit_is_looked_at(change: Outcome, wrong: str) -> None:
    fine = {"number": 0, "code": 0, "told": "", "seconds": 1.0, "megabytes": 1.0, "child_megabytes": 1.0, "left": []}
    assert faults({**fine, "unchanged": True}) == []
    assert wrong in faults({**fine, "unchanged": True, **change})
