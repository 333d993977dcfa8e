"""What several tests of executors compare with."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from compiling import one_at_a_time

# What these assert is explained as in tests.
pytest.register_assert_rewrite("killing", "problems")

from killing import Killable, Usual  # noqa: E402


@pytest.fixture(scope="session")
def usual(shared_room: Path) -> Usual:
    """A compile in threads that nobody kills; once for all processes that test."""
    known = shared_room / "usual.json"
    with one_at_a_time(known):
        if not known.exists():
            result = Usual.of(Killable(shared_room / "usual", ("--executor", "threads")))
            known.write_text(json.dumps(asdict(result)))
    (files, entries), seconds = json.loads(known.read_text()).values()
    return Usual((files, entries), seconds)
