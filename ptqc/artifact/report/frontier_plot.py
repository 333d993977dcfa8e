"""Predicted loss of the best plan at each size, with this file marked."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ptqc.artifact.report.markup import dot, label, line, path, svg
from ptqc.artifact.report.rows import ReportFacts
from ptqc.utils.text import magnitude, number, percent

WIDTH, HEIGHT = 1040.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 24.0, 24.0, 52.0
DECADES_WITHOUT_STEPS = 2.6  # below this the axis also has ticks at 2 and 5


@dataclass(frozen=True)
class PlotAxes:
    """Bytes across, linear; loss upwards, logarithmic. low, high: exponents of ten."""

    smallest: float
    largest: float
    low: float
    high: float

    def x(self, size: float) -> float:
        """Position of a size."""
        share = (size - self.smallest) / (self.largest - self.smallest)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        """Position of a loss; 0 lies on the bottom line."""
        exponent = max(math.log10(loss), self.low) if loss > 0 else self.low
        return TOP + (self.high - exponent) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def frontier_plot(facts: ReportFacts) -> str:
    """The drawing, or a sentence where there is nothing to draw."""
    points = sorted({(int(p["bytes"]), float(p["loss"])) for p in facts.sensitivity["frontier"]})
    if not points:
        return "<p>No frontier was computed for this file.</p>"
    axes = _axes([*points, (facts.size, facts.loss)])
    return svg(WIDTH, HEIGHT, "predicted loss against size", _shapes(facts, points, axes))


def _axes(points: list[tuple[int, float]]) -> PlotAxes:
    sizes = [size for size, _ in points]
    margin = 0.04 * (max(sizes) - min(sizes)) or 0.1 * max(sizes) or 1.0
    exponents = [math.log10(loss) for _, loss in points if loss > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    room = high - low or 3.0
    # More room below: the label of this file stands there.
    return PlotAxes(max(0.0, min(sizes) - margin), max(sizes) + margin, low - 0.16 * room, high + 0.06 * room)


def _shapes(facts: ReportFacts, points: list[tuple[int, float]], axes: PlotAxes) -> Iterator[str]:
    yield from loss_axis(axes, f"predicted loss ({facts.unit})")
    yield from size_axis(axes, facts.original)
    yield from _budget(facts, axes)
    yield path([(axes.x(size), axes.y(loss)) for size, loss in points], "curve")
    for size, loss in points:
        yield dot(axes.x(size), axes.y(loss), 3.5, "point", f"{size:,} bytes: {number(loss)} {facts.unit}")
    yield from _this_file(facts, axes)


def loss_axis(axes: PlotAxes, title: str) -> Iterator[str]:
    """Ticks and title of the losses."""
    for tick in _log_ticks(axes.low, axes.high):
        y = axes.y(tick)
        yield line(LEFT, y, WIDTH - RIGHT, y, "grid")
        yield label(LEFT - 8, y + 4, number(tick), "tick", "end")
    yield label(0, 12, title, "tick")


def _log_ticks(low: float, high: float) -> list[float]:
    steps = (1,) if high - low > DECADES_WITHOUT_STEPS else (1, 2, 5)
    ticks = [step * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def size_axis(axes: PlotAxes, original: int) -> Iterator[str]:
    """Ticks of the sizes. original: bytes of the float file."""
    bottom = HEIGHT - BOTTOM
    yield line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    for tick in _ticks(axes.smallest, axes.largest):
        x = axes.x(tick)
        yield line(x, bottom, x, bottom + 5, "axis")
        yield label(x, bottom + 19, f"{magnitude(tick)}B", "tick", "middle")
        yield label(x, bottom + 35, percent(tick / original), "tick", "middle")


def _ticks(low: float, high: float, wanted: int = 7) -> list[float]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _budget(facts: ReportFacts, axes: PlotAxes) -> Iterator[str]:
    limit, budget = facts.manifest["allocation"]["limit"], facts.manifest["budget"]
    if budget and axes.smallest <= limit <= axes.largest:
        x = axes.x(limit)
        yield line(x, TOP, x, HEIGHT - BOTTOM, "budget")
        right = x < WIDTH / 2
        yield label(x + 6 if right else x - 6, TOP + 10, f"budget {budget}", "tick", "start" if right else "end")


def _this_file(facts: ReportFacts, axes: PlotAxes) -> Iterator[str]:
    x, y = axes.x(facts.size), axes.y(facts.loss)
    told = f"{facts.size:,} bytes, {number(facts.loss)}"
    yield dot(x, y, 7, "here", f"this file: {told} {facts.unit}")
    right = x < WIDTH / 2
    yield label(
        x + 13 if right else x - 13,
        y - 9 if right else y + 19,
        f"this file: {told}",
        "strong",
        "start" if right else "end",
    )
