"""Bits per layer in execution order, in as many rows as keep the bars wide enough to see and to point at."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptqc.artifact.report.markup import cell, dot, label, line, path, rect, safe, svg, swatch, table
from ptqc.artifact.report.rows import Part, ReportFacts, Row
from ptqc.utils.text import magnitude, number, percent, power, shorten, visible

BITS_WIDTH, BITS_LEFT = 1040.0, 34.0
PER_ROW, WIDEST_SLOT = 160, 44.0
HEIGHT_ONE, HEIGHT_MANY = 150.0, 62.0
MARGIN = 20.0
FULL = 8  # bits at full height; float layers are drawn at full height, too


def bits_plot(facts: ReportFacts) -> str:
    """The drawing and its legend."""
    rows = facts.rows
    if not rows:
        return "<p>No weight was found that could be packed.</p>"
    lines = -(-len(rows) // PER_ROW)
    count = -(-len(rows) // lines)
    height = HEIGHT_ONE if lines == 1 else HEIGHT_MANY
    slot = min(WIDEST_SLOT, (BITS_WIDTH - BITS_LEFT) / count)
    body = [HATCH]
    for i in range(lines):
        part = rows[i * count : (i + 1) * count]
        body += _line(part, i * count, i * (height + MARGIN) + MARGIN, height, slot, facts)
    drawing = svg(BITS_WIDTH, lines * (height + MARGIN) + MARGIN, "bits per weight by layer, in execution order", body)
    return drawing + _bits_legend(facts)


HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="1.8" height="5" class="hatching"/></pattern></defs>'
)


def _line(rows: Sequence[Row], first: int, top: float, height: float, slot: float, facts: ReportFacts) -> Iterator[str]:
    bottom = top + height
    for bits in (2, 4, 6, 8):
        y = bottom - height * bits / FULL
        yield line(BITS_LEFT, y, BITS_LEFT + slot * len(rows), y, "grid")
        if height == HEIGHT_ONE or bits in (4, 8):
            yield label(BITS_LEFT - 8, y + 4, str(bits), "tick", "end")
    for i, row in enumerate(rows):
        yield from _bar(row, first + i + 1, BITS_LEFT + i * slot, bottom, height, slot, facts)
    yield label(BITS_LEFT, bottom + 14, f"{first + 1}", "tick")
    if len(rows) > 1:
        yield label(BITS_LEFT + slot * len(rows), bottom + 14, f"{first + len(rows)}", "tick", "end")


def _bar(
    row: Row, place: int, x: float, bottom: float, height: float, slot: float, facts: ReportFacts
) -> Iterator[str]:
    form = row.chosen.form
    tall = height * min(form.bits_per_weight, FULL) / FULL
    width = max(slot * 0.84, 1.0)
    loss = f"divergence {number(row.chosen.loss)} {facts.unit}"
    title = f"{place}: {_names(row)}: {form}, {row.compute}, {row.elements:,} weights, {loss}"
    yield rect(x, bottom - tall, width, tall, form.colour, title)
    if row.in_float:
        yield rect(x, bottom - tall, width, tall, "hatched")
    if width >= 14:
        yield label(x + width / 2, bottom - tall - 4, f"{form.bits_per_weight:g}", "tick over", "middle")


def _names(row: Row) -> str:
    shown = ", ".join(shorten(visible(name), 120) for name in row.names[:3])
    return f"{shown} and {len(row.names) - 3} more" if len(row.names) > 3 else shown


# What formats are, by family.
FAMILIES = {
    "int": "integers with a scale per channel",
    "safe": "8-bit integers that saturate on no processor",
    "codebook": "indices of 4 to 16 levels per weight tensor, unevenly spaced",
    "pairs": "one index for two neighbouring weights: pairs8 stores 8 bits for two, 4 per weight",
    "tcq": "trellis codes: each weight's bits choose one step of a path through 256 states",
    "entropy": "integers of which frequent ones take fewer bits",
    "sparse": "a bit per weight marks zeros; the other weights are integers",
    "sparsebook": "a bit per weight marks zeros; the other weights are indices of levels",
    "twooffour": "two of each four neighbouring weights are zero",
    "palette": "indices of the few different values that the model has",
    "float": "floating point",
}


def _bits_legend(facts: ReportFacts) -> str:
    total = sum(row.elements for row in facts.rows) or 1
    entries = []
    for form in sorted({row.chosen.form for row in facts.rows}, key=lambda form: (form.bits_per_weight, str(form))):
        rows = [row for row in facts.rows if row.chosen.form == form]
        share = percent(sum(row.elements for row in rows) / total)
        counted = f"{len(rows)} of {len(facts.rows)} layers, {share} of the weights"
        entries.append(f"<li>{swatch(form.colour)}{safe(form)}: {form.bits_per_weight:g} bits; {counted}</li>")
    if any(row.in_float for row in facts.rows):
        entries.append(f"<li>{swatch('hatch')}computes in float</li>")
    families = sorted({row.chosen.form.family for row in facts.rows} & FAMILIES.keys())
    meaning = "".join(f"<li><b>{family}</b> {FAMILIES[family]}</li>" for family in families)
    lead = "<p>The colour is the number of stored bits per weight, whatever the format:</p>"
    return f'{lead}<ul class="legend">{"".join(entries)}</ul><ul class="meaning">{meaning}</ul>'


# The original and the written file on one scale, and the written file enlarged with its parts.

SIZE_WIDTH, BAR = 1040.0, 30.0
ORIGINAL_Y, COMPILED_Y, PARTS_Y = 22.0, 86.0, 150.0
LABEL_MARGIN = 16.0  # a part too narrow for its label has it in the legend only


def size_plot(facts: ReportFacts) -> str:
    """The drawing and its legend."""
    alt = f"{facts.original:,} bytes before, {facts.size:,} bytes after"
    return svg(SIZE_WIDTH, PARTS_Y + BAR + 4, alt, _size_shapes(facts)) + _legend(facts)


def _size_shapes(facts: ReportFacts) -> Iterator[str]:
    scale = SIZE_WIDTH / max(facts.original, facts.size, 1)
    yield label(0, ORIGINAL_Y - 7, f"original: {facts.original:,} bytes", "strong")
    yield from _bars(_original(facts), ORIGINAL_Y, scale)
    share = f"{100 * facts.size / facts.original:.2f} %"
    yield label(0, COMPILED_Y - 7, f"compiled, same scale: {facts.size:,} bytes, {share}", "strong")
    yield from _bars(facts.parts, COMPILED_Y, scale)
    right = facts.size * scale
    yield path([(0, COMPILED_Y + BAR), (right, COMPILED_Y + BAR), (SIZE_WIDTH, PARTS_Y), (0, PARTS_Y)], "zoom")
    yield from _bars(facts.parts, PARTS_Y, SIZE_WIDTH / max(facts.size, 1))


def _original(facts: ReportFacts) -> tuple[Part, ...]:
    weights = 4 * int(facts.manifest["source"]["weights"])
    if weights > facts.original:
        return (Part("float weights and graph", "float", facts.original),)
    return (
        Part("float32 weights", "float", weights),
        Part("graph and everything else", "graph", facts.original - weights),
    )


def _bars(parts: tuple[Part, ...], y: float, scale: float) -> Iterator[str]:
    x = 0.0
    for part in parts:
        width = part.bytes * scale
        yield rect(x, y, width, BAR, f"{part.kind} edge", f"{part.label}: {part.bytes:,} bytes")
        if 7.2 * len(part.label) + LABEL_MARGIN < width:
            yield label(x + width / 2, y + BAR / 2 + 4.5, part.label, "inside", "middle")
        x += width


def _legend(facts: ReportFacts) -> str:
    rows = (
        cell(swatch(part.kind) + part.label)
        + cell(f"{part.bytes:,}", part.bytes)
        + cell(percent(part.bytes / facts.size), part.bytes, part.bytes / facts.size)
        for part in facts.parts
    )
    return table(["part of the file", ">bytes", ">share"], rows, "narrow")


# Predicted loss of the best plan at each size, with this file marked.

WIDTH, HEIGHT = 1040.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 24.0, 24.0, 52.0
SMALLEST_PLAIN, LARGEST_PLAIN = 0.9e-3, 1.1e4  # else ticks are powers of ten
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
    return svg(WIDTH, HEIGHT, "predicted divergence against size", _shapes(facts, points, axes))


def _axes(points: list[tuple[int, float]]) -> PlotAxes:
    sizes = [size for size, _ in points]
    margin = 0.04 * (max(sizes) - min(sizes)) or 0.1 * max(sizes) or 1.0
    exponents = [math.log10(loss) for _, loss in points if loss > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    room = high - low or 3.0
    # More room below: the label of this file stands there.
    return PlotAxes(max(0.0, min(sizes) - margin), max(sizes) + margin, low - 0.16 * room, high + 0.06 * room)


def _shapes(facts: ReportFacts, points: list[tuple[int, float]], axes: PlotAxes) -> Iterator[str]:
    yield from loss_axis(axes, f"predicted divergence of the weights ({facts.unit}), lower is better")
    yield from size_axis(axes, facts.original)
    yield from _budget(facts, axes)
    yield path([(axes.x(size), axes.y(loss)) for size, loss in points], "curve")
    for size, loss in points:
        yield dot(axes.x(size), axes.y(loss), 3.5, "point", f"{size:,} bytes: {number(loss)} {facts.unit}")
    yield from _this_file(facts, axes)


def loss_axis(axes: PlotAxes, title: str) -> Iterator[str]:
    """Ticks and title of the divergences; all ticks are written alike."""
    ticks = _log_ticks(axes.low, axes.high)
    is_plain = bool(ticks) and min(ticks) >= SMALLEST_PLAIN and max(ticks) <= LARGEST_PLAIN
    for tick in ticks:
        y = axes.y(tick)
        yield line(LEFT, y, WIDTH - RIGHT, y, "grid")
        yield label(LEFT - 8, y + 4, f"{tick:g}" if is_plain else power(tick), "tick", "end")
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
        yield label(x, bottom + 35, percent(tick / original), "tick over", "middle")


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
        # The label of this file stands beside its dot, which may be at the top as well.
        y = HEIGHT - BOTTOM - 8 if axes.y(facts.loss) < TOP + 30 else TOP + 10
        yield label(x + 6 if right else x - 6, y, f"budget {budget}", "tick", "start" if right else "end")


def _this_file(facts: ReportFacts, axes: PlotAxes) -> Iterator[str]:
    x, y = axes.x(facts.size), axes.y(facts.loss)
    message = f"{facts.size:,} bytes, {number(facts.loss)}"
    yield dot(x, y, 7, "here", f"this file: {message} {facts.unit}")
    right = x < WIDTH / 2
    yield label(
        x + 13 if right else x - 13,
        y - 9 if right else y + 19,
        f"this file: {message}",
        "strong",
        "start" if right else "end",
    )
