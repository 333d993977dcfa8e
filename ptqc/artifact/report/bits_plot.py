"""Bits per layer in execution order, in as many rows as keep the bars wide enough to see and to point at."""

from collections.abc import Iterator, Sequence

from ptqc.artifact.report.markup import label, line, rect, safe, svg, swatch
from ptqc.artifact.report.rows import ReportFacts, Row
from ptqc.utils.text import number, percent, shorten, visible

WIDTH, LEFT = 1040.0, 34.0
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
    slot = min(WIDEST_SLOT, (WIDTH - LEFT) / count)
    body = [HATCH]
    for i in range(lines):
        part = rows[i * count : (i + 1) * count]
        body += _line(part, i * count, i * (height + MARGIN) + MARGIN, height, slot, facts)
    return svg(WIDTH, lines * (height + MARGIN) + MARGIN, "bits per layer in execution order", body) + _legend(facts)


HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="1.8" height="5" class="hatching"/></pattern></defs>'
)


def _line(rows: Sequence[Row], first: int, top: float, height: float, slot: float, facts: ReportFacts) -> Iterator[str]:
    bottom = top + height
    for bits in (2, 4, 6, 8):
        y = bottom - height * bits / FULL
        yield line(LEFT, y, LEFT + slot * len(rows), y, "grid")
        if height == HEIGHT_ONE or bits in (4, 8):
            yield label(LEFT - 8, y + 4, str(bits), "tick", "end")
    for i, row in enumerate(rows):
        yield from _bar(row, first + i + 1, LEFT + i * slot, bottom, height, slot, facts)
    yield label(LEFT, bottom + 14, f"{first + 1}", "tick")
    if len(rows) > 1:
        yield label(LEFT + slot * len(rows), bottom + 14, f"{first + len(rows)}", "tick", "end")


def _bar(
    row: Row, place: int, x: float, bottom: float, height: float, slot: float, facts: ReportFacts
) -> Iterator[str]:
    form = row.chosen.form
    tall = height * min(form.bits_per_weight, FULL) / FULL
    width = max(slot * 0.84, 1.0)
    title = f"{place}: {_names(row)}: {form}, {row.compute}, {row.elements:,} elements, loss {number(row.chosen.loss)}"
    yield rect(x, bottom - tall, width, tall, form.colour, f"{title} {facts.unit}")
    if row.in_float:
        yield rect(x, bottom - tall, width, tall, "hatched")
    if width >= 14:
        yield label(x + width / 2, bottom - tall - 4, f"{form.bits_per_weight:g}", "tick", "middle")


def _names(row: Row) -> str:
    shown = ", ".join(shorten(visible(name), 120) for name in row.names[:3])
    return f"{shown} and {len(row.names) - 3} more" if len(row.names) > 3 else shown


def _legend(facts: ReportFacts) -> str:
    total = sum(row.elements for row in facts.rows) or 1
    entries = []
    for form in sorted({row.chosen.form for row in facts.rows}, key=lambda form: (form.bits_per_weight, str(form))):
        rows = [row for row in facts.rows if row.chosen.form == form]
        share = percent(sum(row.elements for row in rows) / total)
        entries.append(
            f"<li>{swatch(form.colour)}{safe(form)}: {len(rows)} of {len(facts.rows)}, {share} of elements</li>"
        )
    if any(row.in_float for row in facts.rows):
        entries.append(f"<li>{swatch('hatch')}computes in float</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'
