"""A drawing of how far each channel of a tensor reaches: a panel for each way to write the same network.

Colours are of middle brightness, to be read on white and on black. The axis is the same in all panels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pareto_plot import text

WIDTH, HEIGHT, ACROSS = 220, 120, 3
LEFT, RIGHT, ABOVE, BELOW = 34, 10, 26, 22
INK, LINES = "#868686", "#86868655"
NARROW, WIDE, STEP = "#3d8bd9", "#e08a1e", "#e5484d"
# Of bars, so that the line of the step is seen on them.
SHADE = 0.6
# Codes of 8 bits over a range that reaches as far to both sides.
STEPS = 255


@dataclass(frozen=True, eq=False)
class Bars:
    """What a panel shows. reach: the largest magnitude of each channel. apart: which are split off (channels,)."""

    title: str
    reach: np.ndarray
    apart: np.ndarray

    @property
    def step(self) -> float:
        """Between two codes of 8 bits that reach as far as the widest channel that is not split off."""
        return 2 * float(self.reach[~self.apart].max()) / STEPS


@dataclass(frozen=True)
class Axis:
    """Logarithmic, in whole decades. low, high: exponents of ten at its ends."""

    low: int
    high: int

    @classmethod
    def of(cls, panels: Sequence[Bars]) -> "Axis":
        """From the smallest step to the widest channel of all panels."""
        least = min(panel.step for panel in panels)
        most = max(float(panel.reach.max()) for panel in panels)
        return cls(math.floor(math.log10(least)), math.ceil(math.log10(most)))

    def up(self, value: float) -> float:
        """How far above the foot of a panel a value lies; at the foot, if it is smaller than what the axis shows."""
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return HEIGHT * max(share, 0.0)

    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**exponent for exponent in range(self.low, self.high + 1)]


def draw(panels: Sequence[Bars], name: str) -> str:
    """The drawing. name: of the tensor, for readers who do not see it."""
    axis, body = Axis.of(panels), [f"<title>{name}</title>"]
    wide, tall = LEFT + WIDTH + RIGHT, ABOVE + HEIGHT + BELOW
    places = [((place % ACROSS) * wide + LEFT, (place // ACROSS) * tall + ABOVE) for place in range(len(panels) + 1)]
    for bars, (left, top) in zip(panels, places, strict=False):
        body += _panel(bars, axis, left, top)
    body += _legend(*places[-1])
    size = f"{ACROSS * wide} {math.ceil(len(places) / ACROSS) * tall}"
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" {style}>\n' + "\n".join(body) + "\n</svg>\n"


def _panel(bars: Bars, axis: Axis, left: int, top: int) -> Iterator[str]:
    foot = top + HEIGHT
    for value in axis.ticks():
        y = foot - axis.up(value)
        yield f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="{LINES}"/>'
        yield text(left - 4, y + 4, f"{value:g}", "end", INK)
    for which, color in ((~bars.apart, NARROW), (bars.apart, WIDE)):
        if which.any():
            yield f'<path d="{_bars(bars.reach, which, axis, left, foot)}" fill="{color}" fill-opacity="{SHADE}"/>'
    y = foot - axis.up(bars.step)
    yield f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="{STEP}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    yield text(left + WIDTH / 2, top - 9, bars.title, "middle", INK)
    yield text(left + WIDTH / 2, foot + 14, f"{len(bars.reach)} channels", "middle", INK)


def _bars(reach: np.ndarray, which: np.ndarray, axis: Axis, left: int, foot: int) -> str:
    """The path of a bar for each of these channels; bars of neighbours have one outline, without gaps."""
    places, across = np.flatnonzero(which), WIDTH / len(reach)
    path = ""
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        steps = (f"V{foot - axis.up(reach[x]):.1f}H{left + (x + 1) * across:.2f}" for x in run)
        path += f"M{left + run[0] * across:.2f} {foot}{''.join(steps)}V{foot}"
    return path


def _legend(left: int, top: int) -> Iterator[str]:
    entries = (
        (NARROW, "largest magnitude of a channel"),
        (WIDE, "the same, split off"),
        (STEP, "step of 8-bit codes"),
    )
    for row, (color, meaning) in enumerate(entries):
        y = top + 30 + 20 * row
        style = 'stroke-width="1.5" stroke-dasharray="4 3"' if color == STEP else f'stroke-width="8" opacity="{SHADE}"'
        yield f'<path d="M{left} {y}h18" stroke="{color}" {style}/>'
        yield text(left + 26, y + 4, meaning, "start", INK)
