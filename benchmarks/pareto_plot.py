"""A drawing of what pareto.py found: bytes across, divergence from the float model upwards, a panel for each task.

python benchmarks/pareto_plot.py results.json pareto.svg
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLORS = {"one width": "#888888", "greedy": "#d98e00", "light": "#2f7fd1", "advanced": "#123d6b"}
WIDTH, HEIGHT, MARGIN, ACROSS = 360, 220, 48, 2

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """The rows of a task and where they are drawn. left, top: of the frame."""

    task: str
    rows: Sequence[Row]
    left: int
    top: int

    def x(self, share: float) -> float:
        """Of a file with this share of the float file's bytes."""
        return self.left + WIDTH * _between(share, [row["share"] for row in self.rows])

    def y(self, value: float) -> float:
        """Of a loss."""
        return self.top + HEIGHT * (1 - _between(math.log(value), [math.log(loss(row)) for row in self.rows]))

    def draw(self) -> Iterator[str]:
        """The elements."""
        yield f'<rect x="{self.left}" y="{self.top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
        yield text(self.left + WIDTH - 6, self.top + 16, self.task, "end")
        for value in _ends([loss(row) for row in self.rows]):
            yield text(self.left - 4, self.y(value) + 4, f"{value:.2g}", "end")
        for share in _ends([row["share"] for row in self.rows]):
            yield text(self.x(share), self.top + HEIGHT + 14, f"{share:.1%}", "middle")
        for method, color in COLORS.items():
            points = sorted((row["share"], loss(row)) for row in self.rows if row["method"] == method)
            path = " ".join(f"{self.x(share):.1f},{self.y(value):.1f}" for share, value in points)
            yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'


def loss(row: Row) -> float:
    """The divergence of a row, or its relative error; 0 where it has neither."""
    return float(row.get("kl_nat") or row.get("relative_error") or 0)


def draw(rows: Sequence[Row]) -> str:
    """The drawing."""
    drawn = [row for row in rows if loss(row)]
    names = list(dict.fromkeys(row["task"] for row in drawn))
    body = [text(MARGIN + 110 * i, 20, method, "start", color) for i, (method, color) in enumerate(COLORS.items())]
    for place, name in enumerate(names):
        down, right = divmod(place, ACROSS)
        left, top = MARGIN + right * (WIDTH + MARGIN), MARGIN + down * (HEIGHT + MARGIN)
        body += Panel(name, [row for row in drawn if row["task"] == name], left, top).draw()
    size = f"{MARGIN + ACROSS * (WIDTH + MARGIN)} {MARGIN + -(-len(names) // ACROSS) * (HEIGHT + MARGIN)}"
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" {style}>\n' + "\n".join(body) + "\n</svg>\n"


def _between(value: float, values: Sequence[float]) -> float:
    low, high = _ends(values)
    return (value - low) / (high - low) if high > low else 0.5


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def text(x: float, y: float, content: str, anchor: str, color: str = "#333333") -> str:
    """An element of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(content)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("drawing", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(arguments.results.read_text(encoding="utf-8"))["rows"]
    arguments.drawing.write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
