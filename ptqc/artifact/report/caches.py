"""How a decoder keeps keys and values of earlier tokens: a line for the terminal, and the section of the report."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import visible

HEADER = ("cache", "form", "inputs", "bytes", "of float32", "loss alone")


def has_caches(facts: ReportFacts) -> bool:
    """Whether anything was asked of them; earlier versions did not tell."""
    return facts.manifest.get("caches") is not None


def caches_in_words(manifest: Document) -> str:
    """Bytes in all, forms, and what they lose."""
    found = manifest["caches"]
    counts: dict[str, int] = {}
    for cache in found["caches"]:
        counts[cache["form"]] = counts.get(cache["form"], 0) + 1
    kinds = ", ".join(f"{count} {visible(form)}" for form, count in counts.items())
    after, before = found["bytes"], found["float_bytes"]
    share = f"{before:,} -> {after:,} bytes for {found['places']} tokens: {100 * after / max(before, 1):.1f} %"
    limit = "" if found["limit_bytes"] is None else f", within the {found['limit_bytes']:,} of {found['budget']}"
    loss = "" if found["loss"] is None else f"; they lose {found['loss']:.3g} {found['unit']} in a step"
    return f"{share}{limit}; {kinds}{loss}"


def cache_table(facts: ReportFacts) -> str:
    """One row for each cache."""
    return table(HEADER, _rows(facts.manifest["caches"]))


def _rows(found: Document) -> Iterator[str]:
    for cache in found["caches"]:
        share = f"{100 * cache['bytes'] / max(cache['float_bytes'], 1):.1f} %"
        loss = "" if cache["loss"] is None else f"{cache['loss']:.3g} {found['unit']}"
        inputs = ", ".join(cache["inputs"])
        cells = (cache["form"], inputs, f"{cache['bytes']:,}", share, loss)
        yield f'<th scope="row">{safe(cache["name"])}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in cells)
