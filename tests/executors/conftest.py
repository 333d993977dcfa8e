"""What several tests of executors compare with."""

import pytest
from killing import Killable, Usual


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Usual:
    """A compile in threads that nobody kills."""
    return Usual.of(Killable(tmp_path_factory.mktemp("usual") / "one", ("--executor", "threads")))
