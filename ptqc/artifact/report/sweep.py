"""The measured frontier: a table for the terminal, and the plots of loss and of time against size."""

import math
from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, dot, label, path, svg, table
from ptqc.artifact.report.plots import HEIGHT, RIGHT, TOP, WIDTH, PlotAxes, loss_axis, size_axis
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import number, percent
from ptqc.utils.text import table as text_table


def has_sweep(facts: ReportFacts) -> bool:
    """Whether a frontier was measured."""
    return facts.sweep is not None


def sweep_text(document: Document) -> str:
    """One line for each size."""
    unit = document["unit"]
    head = ("bytes", "of float", "predicted", f"measured {unit}", "same top class", "SQNR dB", "ms")
    rows = [tuple(_told(document, point)) for point in document["points"]]
    lines = [text_table(head, rows), "", f"the float model takes {document['float_ms']:.3f} ms ({document['runtime']})"]
    if len(rows) < document["asked"]:
        lines.append(f"there was time for {len(rows)} of {document['asked']} points")
    return "\n".join(lines)


def _told(document: Document, point: Document) -> Iterator[str]:
    yield f"{point['bytes']:,}"
    yield percent(point["bytes"] / document["original_bytes"])
    yield number(point["predicted"])
    yield number(point["loss"])
    yield "–" if point["top1_agreement"] is None else f"{100 * point['top1_agreement']:.1f} %"
    yield f"{point['sqnr_db']:.1f}"
    yield f"{point['ms']:.3f}"


def sweep_plots(facts: ReportFacts) -> str:
    """Loss against size as measured and as predicted, then every point with its time."""
    document = facts.sweep
    assert document is not None
    measured, predicted = (_curve(document, key) for key in ("loss", "predicted"))
    here = facts.size, float(facts.manifest["results"]["loss"])
    axes = _axes([*measured, *predicted, here])
    drawing = svg(WIDTH, HEIGHT, "measured loss against size", _shapes(facts, axes, measured, predicted))
    return drawing + _table(document)


def _curve(document: Document, key: str) -> list[tuple[int, float]]:
    return [(int(point["bytes"]), float(point[key])) for point in document["points"]]


def _axes(points: list[tuple[int, float]]) -> PlotAxes:
    sizes = [size for size, _ in points]
    margin = 0.04 * (max(sizes) - min(sizes)) or 0.1 * max(sizes)
    exponents = [math.log10(loss) for _, loss in points if loss > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    room = high - low or 3.0
    return PlotAxes(max(0.0, min(sizes) - margin), max(sizes) + margin, low - 0.1 * room, high + 0.1 * room)


def _shapes(
    facts: ReportFacts, axes: PlotAxes, measured: list[tuple[int, float]], predicted: list[tuple[int, float]]
) -> Iterator[str]:
    yield from loss_axis(axes, f"loss ({facts.unit})")
    yield from size_axis(axes, facts.original)
    yield path([(axes.x(size), axes.y(loss)) for size, loss in predicted], "grid")
    yield path([(axes.x(size), axes.y(loss)) for size, loss in measured], "curve")
    for size, loss in measured:
        yield dot(axes.x(size), axes.y(loss), 3.5, "point", f"{size:,} bytes: {number(loss)} {facts.unit} measured")
    lost = float(facts.manifest["results"]["loss"])
    told = f"this file: {facts.size:,} bytes, {number(lost)}"
    yield dot(axes.x(facts.size), axes.y(lost), 7, "here", told)
    yield label(WIDTH - RIGHT, TOP + 10, f"line with dots: measured; thin line: predicted; ring: {told}", "tick", "end")


def _table(document: Document) -> str:
    head = [">bytes", ">of float", ">predicted", ">measured", ">same top class", ">SQNR (dB)", ">ms"]
    keys = ("bytes", "bytes", "predicted", "loss", "top1_agreement", "sqnr_db", "ms")
    rows = []
    for point in document["points"]:
        values = [-1.0 if point[key] is None else float(point[key]) for key in keys]
        rows.append("".join(cell(told, value) for told, value in zip(_told(document, point), values, strict=True)))
    return table(head, rows, "sortable")
