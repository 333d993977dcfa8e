"""Runs of `single_kernels.py`, which loads stand-ins for the driver, each in a process of its own."""

import json
from pathlib import Path
from typing import Any

from test_cuda_target import process

FOUND = ("differs: ", "stops: ")


def run(cases: str, kind: str, folder: Path, *faults: str) -> dict[str, Any]:
    """What it prints of the cases of a kind, or of faults."""
    done = process("single_kernels", cases, kind, str(folder), *faults)
    assert done.problem is None, done.errors
    result: dict[str, Any] = json.loads(done.said)
    return result


def unnoticed(cases: str, at_least: int, folder: Path) -> dict[str, list[str]]:
    """Planted faults that are not found in every order of threads, with what is said of them in each.

    at_least: so many faults are planted.
    """
    result = run(cases, "few", folder, "all faults")
    assert len(result) >= at_least
    return {
        fault: messages for fault, messages in result.items() if not all(each.startswith(FOUND) for each in messages)
    }
