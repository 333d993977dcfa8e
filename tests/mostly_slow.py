"""Tests with many cases, of which the plain suite runs a few."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(names: Iterable[Any], *plain: Any) -> list[Any]:
    """Parameters of a test: all but the plain ones are slow."""
    known = list(names)
    assert set(plain) <= set(known)
    return [name if name in plain else pytest.param(name, marks=pytest.mark.slow) for name in known]
