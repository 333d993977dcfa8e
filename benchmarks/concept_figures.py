"""The figures of docs/concepts/, as SVG in docs/pictures/, which figures.py writes.

python benchmarks/concept_figures.py    writes those that differ in their last digits between processors

Measured figures come from benchmarks/figures/. Everything else is computed here, from fixed seeds. Colours are of
middle brightness, to be read on white and on black.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from channel_plot import INK, LINES
from harness import FIGURES, ROOT, recorded
from pareto_plot import text

from ptqc.formats.levels import fit

sys.path.insert(0, str(ROOT / "examples"))
from three_layers import BITS, LAYERS, best, every_plan

PICTURES = ROOT / "docs" / "pictures"
BLUE, ORANGE, RED, GREEN, VIOLET = "#3d8bd9", "#e08a1e", "#e5484d", "#3f9d63", "#9b6bd3"
LEFT, RIGHT, ABOVE, BELOW = 64, 18, 30, 44
# Of the page of budgets: what the frontier is drawn with.
LIMIT = 5_500


# Ticks below it are powers of ten.
SMALL = 1e-3
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """From low to high, in its unit; log: in decades."""

    low: float
    high: float
    label: str
    ticks: Sequence[float]
    log: bool = False
    percent: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies, 0 to 1."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)

    def name(self, value: float) -> str:
        """Of a tick."""
        if self.percent:
            return f"{100 * value:g} %"
        if self.log and value < SMALL:
            return "10" + str(round(math.log10(value))).translate(RAISED)
        return f"{value:,g}"


@dataclass(frozen=True)
class Frame:
    """A panel with two axes. left, top: of the whole panel, labels included."""

    across: Axis
    up: Axis
    title: str
    left: float = 0
    top: float = 0
    width: float = 420
    height: float = 230

    def x(self, value: float) -> float:
        """Where a value lies."""
        return self.left + LEFT + self.width * self.across.share(value)

    def y(self, value: float) -> float:
        """Where a value lies."""
        return self.top + ABOVE + self.height * (1 - self.up.share(value))

    def axes(self) -> Iterator[str]:
        """Lines, ticks and names."""
        left, foot = self.left + LEFT, self.top + ABOVE + self.height
        for value in self.up.ticks:
            yield f'<path d="M{left} {self.y(value):.1f}h{self.width}" stroke="{LINES}"/>'
            yield text(left - 6, self.y(value) + 4, self.up.name(value), "end", INK)
        yield f'<path d="M{left} {foot}h{self.width}" stroke="{INK}"/>'
        for value in self.across.ticks:
            yield f'<path d="M{self.x(value):.1f} {foot}v4" stroke="{INK}"/>'
            yield text(self.x(value), foot + 17, self.across.name(value), "middle", INK)
        yield text(left + self.width / 2, foot + 35, self.across.label, "middle", INK)
        x, y = self.left + 13, self.top + ABOVE + self.height / 2
        yield f'<g transform="rotate(-90 {x} {y})">{text(x, y, self.up.label, "middle", INK)}</g>'
        yield text(left + self.width / 2, self.top + 17, self.title, "middle", INK)

    def line(self, points: Iterable[tuple[float, float]], color: str, dash: str = "") -> str:
        """Through these points."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        style = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{style}/>'

    def dots(self, points: Iterable[tuple[float, float]], color: str, radius: float = 3.5) -> Iterator[str]:
        """One at each point."""
        for x, y in points:
            yield f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" fill="{color}"/>'

    @property
    def size(self) -> tuple[float, float]:
        """Right and bottom edge."""
        return self.left + LEFT + self.width + RIGHT, self.top + ABOVE + self.height + BELOW


def drawing(name: str, size: tuple[float, float], body: Iterable[str]) -> str:
    """The file. name: what it shows, for readers who do not see it."""
    style = 'font-family="sans-serif" font-size="12" role="img"'
    inside = "\n".join((f"<title>{name}</title>", *body))
    wide, tall = (math.ceil(edge) for edge in size)
    view = f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view} {style}>\n{inside}\n</svg>\n'


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> Iterator[str]:
    """One line for each colour and what it means."""
    for row, (color, meaning) in enumerate(entries):
        yield f'<path d="M{x} {y + 18 * row}h16" stroke="{color}" stroke-width="4"/>'
        yield text(x + 22, y + 18 * row + 4, meaning, "start", INK)


# quantization.md


def number_line() -> str:
    """Five values and the eight codes of 3 bits for the range from -1 to 2.5: scale 0.5, zero point 2."""
    values, scale, zero = (-0.87, -0.18, 0.41, 1.12, 2.3), 0.5, 2
    x = lambda value: 50 + (value + 1.2) * 150  # noqa: E731
    body = [text(20, 24, "real values x", "start", INK), text(20, 176, "codes q, 3 bits", "start", INK)]
    body.append(f'<path d="M{x(-1.15)} 50H{x(2.65)}M{x(-1.15)} 128H{x(2.65)}" stroke="{INK}"/>')
    for code in range(8):
        real = (code - zero) * scale
        body.append(f'<path d="M{x(real):.1f} 122v12" stroke="{BLUE}" stroke-width="3"/>')
        body.append(text(x(real), 150, f"{code}", "middle", BLUE))
        body.append(text(x(real), 116, f"{real:g}", "middle", INK))
    for value in values:
        code = min(max(round(value / scale) + zero, 0), 7)
        real = (code - zero) * scale
        body.append(f'<path d="M{x(value):.1f} 54L{x(real):.1f} 100" stroke="{ORANGE}" stroke-dasharray="3 3"/>')
        body.append(f'<circle cx="{x(value):.1f}" cy="50" r="4.5" fill="{ORANGE}"/>')
        body.append(text(x(value), 40, f"{value:g}", "middle", ORANGE))
    body.append(f'<path d="M{x(1):.1f} 190H{x(1.5):.1f}M{x(1):.1f} 185v10M{x(1.5):.1f} 185v10" stroke="{INK}"/>')
    body.append(text(x(1.58), 194, "scale s = 0.5", "start", INK))
    body.append(f'<path d="M{x(0):.1f} 158v26" stroke="{INK}"/>')
    body.append(text(x(0), 200, "zero point z = 2", "middle", INK))
    return drawing("Real values and the codes that they are rounded to", (640, 215), body)


# budgets.md

COLORS = dict(zip((layer.name for layer in LAYERS), (BLUE, ORANGE, GREEN), strict=True))
LOSSES = [10.0**exponent for exponent in range(-6, 0)]


def options() -> str:
    """What each layer of the worked example may take."""
    across = Axis(0, 8_500, "bytes of the layer", range(0, 8_001, 2_000))
    frame = Frame(across, Axis(2e-6, 0.1, "predicted loss, nat", LOSSES[1:], log=True), "options of each layer")
    body = list(frame.axes())
    for layer in LAYERS:
        points = [(layer.bytes_in(bits), layer.loss_in(bits)) for bits in BITS]
        body += [frame.line(points, COLORS[layer.name]), *frame.dots(points, COLORS[layer.name])]
    body += legend([(COLORS[layer.name], f"{layer.name}: 2, 4, 8 bits") for layer in LAYERS], 180, 200)
    return drawing("Bytes and loss of each layer in 2, 4 and 8 bits", frame.size, body)


def frontier() -> str:
    """All plans of the worked example, those that nothing beats, and the answer within the limit."""
    plans = [(costs["bytes"], costs["loss"]) for _, costs in every_plan()]
    beaten = {p for p in plans if any(q[0] <= p[0] and q[1] < p[1] for q in plans)}
    edge = sorted(set(plans) - beaten)
    steps = [edge[0], *(point for (_, a), (x, b) in pairwise(edge) for point in ((x, a), (x, b)))]
    across = Axis(2_400, 10_500, "bytes of the file", range(3_000, 10_001, 1_000))
    frame = Frame(across, Axis(1e-5, 0.2, "predicted loss, nat", LOSSES[1:], log=True), "all 27 plans", width=520)
    chosen = best(LIMIT)[1]
    body = [*frame.axes(), frame.line(steps, BLUE), *frame.dots(beaten, INK, 3), *frame.dots(edge, BLUE, 4)]
    body.append(frame.line([(LIMIT, 1e-5), (LIMIT, 0.2)], RED, "5 4"))
    body += frame.dots([(chosen["bytes"], chosen["loss"])], RED, 6)
    entries = ((BLUE, "frontier"), (INK, "beaten by another plan"), (RED, f"limit of {LIMIT:,} bytes, and its answer"))
    body += legend(entries, 290, 200)
    return drawing("Bytes and loss of all plans of the worked example", frame.size, body)


# codebooks.md


def levels() -> str:
    """Eight uniform levels, eight of a codebook, and 64 pairs of levels, of the same weights."""
    rng = np.random.default_rng(0)
    weights = rng.laplace(size=(1, 1, 6_000)).astype(np.float32) / np.sqrt(2)
    ones = np.ones((1, 1, 6_000), np.float32)
    values = weights.reshape(-1)
    step = min(np.linspace(0.3, 1.2, 181), key=lambda s: float(((_even(values, s) - values) ** 2).sum()))
    panels = (
        ("int3: 8 even levels", step * (np.arange(8) - 3.5)),
        ("codebook3: 8 free levels", _fitted(weights, ones)),
    )
    body: list[str] = []
    for place, (title, grid) in enumerate(panels):
        body += _histogram(values, grid, title, 12 + 250 * place)
    pairs, scale = fit(weights, ones, 6, 2)
    body += _scatter(values.reshape(-1, 2)[:1_200], pairs.values * float(scale.reshape(-1)[0]), 512)
    return drawing("Even levels, levels of a codebook, and pairs of levels", (760, 290), body)


def _even(values: np.ndarray, step: float) -> np.ndarray:
    return np.asarray((np.clip(np.floor(values / step), -4, 3) + 0.5) * step)


def _fitted(weights: np.ndarray, ones: np.ndarray) -> np.ndarray:
    codebook, scale = fit(weights, ones, 3, 1)
    return np.asarray(codebook.values.reshape(-1) * float(scale.reshape(-1)[0]))


def _histogram(values: np.ndarray, grid: np.ndarray, title: str, left: float) -> Iterator[str]:
    counts, edges = np.histogram(values, 56, (-4, 4))
    x = lambda value: left + (value + 4) * 28.5  # noqa: E731
    yield text(left + 114, 20, title, "middle", INK)
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        tall = 190 * count / counts.max()
        box = f'x="{x(low):.1f}" y="{235 - tall:.1f}" width="{x(high) - x(low):.1f}" height="{tall:.1f}"'
        yield f'<rect {box} fill="{BLUE}" fill-opacity="0.45"/>'
    for level in grid:
        yield f'<path d="M{x(level):.1f} 40V244" stroke="{ORANGE}" stroke-width="2"/>'
    error = ((grid[np.abs(values[:, None] - grid).argmin(1)] - values) ** 2).mean() / (values**2).mean()
    yield f'<path d="M{left} 235h228" stroke="{INK}"/>'
    yield text(left + 114, 262, "value of a weight", "middle", INK)
    yield text(left + 114, 280, f"SQNR {decibels(error):.1f} dB", "middle", INK)


def _scatter(points: np.ndarray, codebook: np.ndarray, left: float) -> Iterator[str]:
    at = lambda point: (left + (point[0] + 4) * 28.5, 40 + (4 - point[1]) * 25)  # noqa: E731
    yield text(left + 114, 20, "pairs6: 64 free pairs", "middle", INK)
    dots = "".join("M{:.0f} {:.0f}h0".format(*at(point)) for point in points if np.abs(point).max() < 4)
    yield f'<path d="{dots}" stroke="{BLUE}" stroke-opacity="0.5" stroke-width="2.4" stroke-linecap="round"/>'
    for x, y in (at(point) for point in codebook if np.abs(point).max() < 4):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="{ORANGE}"/>'
    nearest = codebook[((points[:, None] - codebook) ** 2).sum(-1).argmin(1)]
    error = ((nearest - points) ** 2).mean() / (points**2).mean()
    yield text(left + 114, 262, "first weight →, second weight ↑", "middle", INK)
    yield text(left + 114, 280, f"SQNR {decibels(error):.1f} dB", "middle", INK)


# reading-results.md


def divergence() -> str:
    """Loss of the outputs and changed answers, of every measured classifier (benchmarks/figures/accuracy.json)."""
    rows = [row for row in _rows("accuracy") if row.get("kl_nat") and row.get("top1_agreement")]
    points = [(row["kl_nat"], max(1 - row["top1_agreement"], 5e-4)) for row in rows]
    ticks = [10.0**e for e in range(-5, 1)]
    up = Axis(4e-4, 0.4, "answers that change", (0.001, 0.01, 0.1), log=True, percent=True)
    frame = Frame(Axis(2e-5, 1, "loss, nat (log scale)", ticks[1:], log=True), up, "every file measured", width=480)
    body = [*frame.axes(), frame.line([(0.02, 4e-4), (0.02, 0.4)], RED, "5 4"), *frame.dots(points, BLUE)]
    body.append(text(frame.x(0.02) - 8, frame.y(4e-4) - 8, "0.02 nat", "end", RED))
    return drawing("Loss in nats against the share of answers that change", frame.size, body)


BOUNDS = (0.001, 0.005, 0.02, 0.1)


def answers() -> str:
    """The same files by their loss, as a table."""
    rows = [row for row in _rows("accuracy") if row.get("kl_nat") and row.get("top1_agreement")]
    lines = ["| loss, nat | files | answers that change | change of top-1 accuracy, points |", "|---|---|---|---|"]
    for low, high in pairwise((0.0, *BOUNDS, math.inf)):
        some = [row for row in rows if low <= row["kl_nat"] < high]
        changed = [100 - 100 * row["top1_agreement"] for row in some]
        scores = [row["difference"] for row in some if row["unit"] == "top-1 %"]
        name = f"up to {high:g}" if not low else f"{low:g} to {high:g}" if high < math.inf else f"more than {low:g}"
        cells = f"{min(changed):.1f} to {max(changed):.1f} % | {min(scores):+.1f} to {max(scores):+.1f}"
        lines.append(f"| {name} | {len(some)} | {cells} |")
    return "\n".join(lines)


# reconstruction.md


def errors() -> dict[str, list[float]]:
    """Relative squared error of the output of one layer, by bits, rounded in three ways."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((64, 64)) @ np.diag(np.geomspace(1, 0.03, 64)) @ rng.standard_normal((64, 64)) / 64
    x = rng.standard_normal((4_096, 64)) @ mixing
    second = x.T @ x / len(x)
    weight = rng.standard_normal((32, 64)) / 8
    result: dict[str, list[float]] = {"round to nearest": [], "GPTQ": []}
    for bits in range(2, 7):
        scale = _scale(weight, bits)
        for name, rounded in (
            ("round to nearest", _nearest(weight, scale, bits)),
            ("GPTQ", gptq(weight, second, scale, bits)),
        ):
            change = rounded - weight
            result[name].append(
                float(np.einsum("ri,ij,rj", change, second, change) / np.einsum("ri,ij,rj", weight, second, weight))
            )
    return result


def _nearest(weight: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    reach = 2 ** (bits - 1)
    return np.asarray((np.clip(np.floor(weight / scale), -reach, reach - 1) + 0.5) * scale)


def _scale(weight: np.ndarray, bits: int) -> np.ndarray:
    """The scale of each row with the least squared error."""
    tried = np.abs(weight).max(1, keepdims=True) / 2 ** (bits - 1) * np.linspace(0.4, 1.1, 36)[:, None, None]
    lost = [((_nearest(weight, scale, bits) - weight) ** 2).sum(1) for scale in tried]
    return np.asarray(tried[np.argmin(lost, 0), np.arange(len(weight))])


def gptq(weight: np.ndarray, second: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """The formula of docs/concepts/reconstruction.md, column by column."""
    damped = second + 0.01 * np.trace(second) / len(second) * np.eye(len(second))
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, rounded = weight.copy(), np.empty_like(weight)
    for j in range(len(second)):
        rounded[:, j] = _nearest(left[:, j : j + 1], scale, bits)[:, 0]
        left[:, j:] -= np.outer((left[:, j] - rounded[:, j]) / factor[j, j], factor[j, j:])
    return rounded


def decibels(error: float) -> float:
    """The SQNR of a relative squared error."""
    return -10 * math.log10(error)


def rounding() -> str:
    """What GPTQ gains over rounding to nearest, on one layer with correlated inputs."""
    noise, bits = errors(), range(2, 7)
    curves = [[decibels(value) for value in values] for values in noise.values()]
    across = Axis(1.8, 6.2, "bits of a weight", bits)
    frame = Frame(
        across, Axis(0, 50, "SQNR of the layer's output, dB", range(0, 51, 10)), "one layer, correlated inputs"
    )
    body = list(frame.axes())
    for values, color in zip(curves, (ORANGE, BLUE), strict=True):
        points = list(zip(bits, values, strict=True))
        body += [frame.line(points, color), *frame.dots(points, color)]
    body += legend(((BLUE, "GPTQ"), (ORANGE, "round to nearest")), 90, 50)
    return drawing("Rounding to nearest and GPTQ, by bits", frame.size, body)


def _rows(name: str) -> list[Mapping[str, Any]]:
    return [*recorded(FIGURES / f"{name}.json")]


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "number_line": number_line,
    "budget_options": options,
    "budget_frontier": frontier,
    "loss_and_answers": divergence,
}
# Their last digits depend on how a processor adds up.
FITTED: Mapping[str, Callable[[], str]] = {"codebooks": levels, "gptq_gain": rounding}


def main() -> None:
    for name, draw in FITTED.items():
        (PICTURES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
