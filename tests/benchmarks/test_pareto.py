"""The drawing has a line for each method of each task, in its place."""

import re

import pytest
from pareto_plot import COLORS, HEIGHT, MARGIN, WIDTH, Panel, draw

ROWS = [
    {"task": "net", "method": method, "share": share, "kl_nat": loss * worse}
    for method, worse in (("one width", 2.0), ("light", 1.0))
    for share, loss in ((0.1, 1.0), (0.2, 0.1), (0.3, 0.01))
]
WITHOUT = [
    {"task": "net", "method": "greedy", "note": "infeasible"},
    {"task": "other", "method": "light", "note": "no"},
]


def test_a_panel_reaches_from_corner_to_corner() -> None:
    panel = Panel("net", ROWS, MARGIN, MARGIN)
    assert (panel.x(0.1), panel.x(0.3)) == (MARGIN, MARGIN + WIDTH)
    assert (panel.y(2.0), panel.y(0.01)) == (MARGIN, MARGIN + HEIGHT)
    assert panel.x(0.2) == pytest.approx(MARGIN + WIDTH / 2)


def test_lines_go_through_every_file_that_there_is() -> None:
    drawn = draw([*ROWS, *WITHOUT])
    lines = dict(re.findall(r'<polyline points="([^"]*)" fill="none" stroke="([^"]*)"', drawn))
    by_color = {color: points.split() for points, color in lines.items()}
    assert [len(by_color.get(COLORS[method], [])) for method in ("one width", "light")] == [3, 3]
    upper, lower = (float(by_color[COLORS[method]][0].split(",")[1]) for method in ("one width", "light"))
    assert upper < lower  # more loss is higher up
    assert "other" not in drawn


def test_a_single_file_lies_in_the_middle() -> None:
    panel = Panel("net", ROWS[:1], 0, 0)
    assert (panel.x(0.1), panel.y(2.0)) == (WIDTH / 2, HEIGHT / 2)
