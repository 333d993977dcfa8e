"""A compile in a few lines for the terminal, and a table per layer for `ptqc explain`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]


def summarize(manifest: Document, times: Document) -> str:
    """Size, loss, agreement, score, latency, what computes in float, time and memory."""
    return "\n".join([*_size(manifest), *_quality(manifest), *_speed(manifest, times), *_warnings(manifest)])


def _size(manifest: Document) -> Iterator[str]:
    origin, file, allocation = manifest["source"], manifest["file"], manifest["allocation"]
    budget = f"budget {manifest['budget']}, " if manifest["budget"] else ""
    share = 100 * file["bytes"] / origin["bytes"]
    yield f"size        {origin['bytes']:,} -> {file['bytes']:,} bytes ({share:.2f} % of the original; {budget}"
    yield (
        f"            {100 * file['bytes'] / allocation['limit']:.1f} % of the limit used)"
        if manifest["budget"]
        else ("            no limit)")
    )
    counts = Counter(manifest["weights_by_format"])
    yield "weights     " + ", ".join(f"{n:,} as {form}" for form, n in sorted(counts.items(), key=lambda i: -i[1]))
    yield (
        f"plan        predicted loss {allocation['loss']:.3g} {allocation['unit']}, "
        f"proven within {100 * allocation['gap']:.2g} % of the best; "
        f"1 % more of the size would take off {allocation['price_of_one_percent']:.2g}"
    )


def _quality(manifest: Document) -> Iterator[str]:
    results = manifest["results"]
    agreement = results["top1_agreement"]
    same = f"same top class in {100 * agreement:.1f} %, " if agreement is not None else ""
    yield (
        f"agreement   {same}SQNR {results['sqnr_db']:.1f} dB, loss {results['loss']:.3g} {results['loss_unit']} "
        f"(on {results['held_back_samples']} held-back samples)"
    )
    if results["float_score"] is not None:
        change = results["compiled_score"] - results["float_score"]
        yield f"score       {results['float_score']:.2f} -> {results['compiled_score']:.2f} ({change:+.2f})"


def _speed(manifest: Document, times: Document) -> Iterator[str]:
    before, after = times["float_ms"], times["compiled_ms"]
    word = f"{before / after:.2f} times as fast" if after <= before else f"SLOWER by {after / before:.2f} times"
    yield f"latency     {before:.3f} -> {after:.3f} ms per run in ONNX Runtime: {word}"
    nodes = manifest["verification"]["integer_nodes"]
    floats = manifest["float_operators"]
    named = ", ".join(f"{n} {op}" for op, n in sorted(floats.items(), key=lambda i: -i[1]))
    yield f"kernels     {nodes} integer; float: {named or 'none'}"
    yield f"took        {times['seconds']:.1f} s, {times['peak_memory_mb']:,.0f} MB at most"


def _warnings(manifest: Document) -> Iterator[str]:
    for note in manifest["notes"]:
        if note["level"] == "warning":
            where = f" {note['subject']}:" if note["subject"] else ""
            yield f"WARNING    {where} {note['message']}"


def explain(manifest: Document, plan: Document, sensitivity: Document) -> str:
    """One line per layer and constant: format, kernel, bytes, predicted loss; then the notes."""
    rows = [("weight or layer", "elements", "format", "compute", "bytes", "predicted loss")]
    measured = {entry["weight"]: entry for entry in sensitivity["weights"]}
    for entry in plan["weights"]:
        found = measured[entry["weight"]]
        chosen = next(c for c in found["candidates"] if c["format"] == entry["format"])
        layers = entry["layers"] or {entry["weight"]: "float"}
        for layer, compute in layers.items():
            loss = f"{chosen['loss']:.2e}"
            rows.append((layer, f"{found['elements']:,}", entry["format"], compute, f"{chosen['bytes']:,}", loss))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    notes = [f"[{n['step']}] {n['subject']}: {n['message']}" for n in manifest["notes"]]
    return "\n".join([*lines, "", *notes])
