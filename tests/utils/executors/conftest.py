"""What several tests of executors compare with."""

import pytest

# What these assert is explained as in tests.
pytest.register_assert_rewrite("killing", "problems")

from killing import Killable, Usual  # noqa: E402


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Usual:
    """A compile in threads that nobody kills."""
    return Usual.of(Killable(tmp_path_factory.mktemp("usual") / "one", ("--executor", "threads")))
