"""examples/three_layers.py: the best plans are those of trying all, and the page shows its tables."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from three_layers import CODE, LAYERS, LIMITS, best, every_plan, table  # noqa: E402


@pytest.mark.parametrize("limit", LIMITS)
def test_no_plan_within_the_limit_loses_less(limit: int) -> None:
    plan, costs = best(limit)
    assert costs["bytes"] <= limit
    assert costs["loss"] == min(costs["loss"] for _, costs in every_plan() if costs["bytes"] <= limit)
    widths = set(plan.values())
    assert costs["bytes"] == sum(layer.bytes_in(plan[layer.name]) for layer in LAYERS) + CODE * len(widths)


def test_the_page_has_these_tables() -> None:
    page = (ROOT / "docs" / "concepts" / "budgets.md").read_text(encoding="utf-8")
    assert all(part in page for part in table().split("\n\n"))
