"""The original and the written file on one scale, and the written file enlarged with its parts."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, label, path, rect, svg, swatch, table
from ptqc.artifact.report.rows import Part, ReportFacts
from ptqc.utils.text import percent

WIDTH, BAR = 1040.0, 30.0
ORIGINAL_Y, COMPILED_Y, PARTS_Y = 22.0, 86.0, 150.0
LABEL_MARGIN = 16.0  # a part too narrow for its label has it in the legend only


def size_plot(facts: ReportFacts) -> str:
    """The drawing and its legend."""
    alt = f"{facts.original:,} bytes before, {facts.size:,} bytes after"
    return svg(WIDTH, PARTS_Y + BAR + 4, alt, _shapes(facts)) + _legend(facts)


def _shapes(facts: ReportFacts) -> Iterator[str]:
    scale = WIDTH / max(facts.original, facts.size, 1)
    yield label(0, ORIGINAL_Y - 7, f"original: {facts.original:,} bytes", "strong")
    yield from _bars(_original(facts), ORIGINAL_Y, scale)
    share = f"{100 * facts.size / facts.original:.2f} %"
    yield label(0, COMPILED_Y - 7, f"compiled, same scale: {facts.size:,} bytes, {share}", "strong")
    yield from _bars(facts.parts, COMPILED_Y, scale)
    right = facts.size * scale
    yield path([(0, COMPILED_Y + BAR), (right, COMPILED_Y + BAR), (WIDTH, PARTS_Y), (0, PARTS_Y)], "zoom")
    yield from _bars(facts.parts, PARTS_Y, WIDTH / max(facts.size, 1))


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
