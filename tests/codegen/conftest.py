"""The tests in `cpu/` take minutes of one processor: they begin with the others, and are waited for at the end."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from background import Background

WAITS = "test_the_cpu_target"


BACKGROUND = pytest.StashKey[Background]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == WAITS)


def pytest_collection_finish(session: pytest.Session) -> None:
    is_asked = any(item.name == WAITS for item in session.items) and not session.config.option.collectonly
    if is_asked and find_spec("tvm") is not None:
        session.config.stash[BACKGROUND] = Background.start(Path(__file__).with_name("cpu"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if BACKGROUND in config.stash:
        config.stash[BACKGROUND].end()


@pytest.fixture
def cpu_tests(request: pytest.FixtureRequest) -> Background:
    return request.config.stash[BACKGROUND]
