"""The sections of the targets. Native library: its kernels, its bytes, how weights are stored, what was compared."""

import statistics
from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, details, name, safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils import text

OPEN_NAMES = 8


def has_native(facts: ReportFacts) -> bool:
    """Whether there is a native library, or should be."""
    return bool(_native(facts))


def native_tables(facts: ReportFacts) -> str:
    """One part for each target with native libraries."""
    return "\n".join(_target(title, found) for title, found in _native(facts).items())


def has_others(facts: ReportFacts) -> bool:
    """Whether a target built something else."""
    return bool(_others(facts))


def other_tables(facts: ReportFacts) -> str:
    """What each target that builds something else says of it."""
    tables = []
    for title, found in _others(facts).items():
        rows = [f'<th scope="row">{safe(what)}</th><td>{safe(value)}</td>' for what, value in text.facts(found)]
        tables.append(table([title, ""], rows, "facts"))
    return "\n".join(tables)


def _native(facts: ReportFacts) -> dict[str, Document]:
    targets = facts.manifest.get("targets", {})
    return {title: found for title, found in targets.items() if "libraries" in found or "missing" in found}


def _others(facts: ReportFacts) -> dict[str, Document]:
    return {title: found for title, found in facts.manifest.get("targets", {}).items() if title not in _native(facts)}


def _target(title: str, found: Document) -> str:
    if "missing" in found:
        return f"<p>{safe(title)}: not built: {safe(found['missing'])}</p>"
    weights = f"<p>{found['weights_bytes']:,} bytes of weights, packed, for all libraries.</p>"
    return weights + "\n".join(_library(title, library) for library in found["libraries"])


def _library(title: str, found: Document) -> str:
    rows = (f'<th scope="row">{safe(what)}</th><td>{told}</td>' for what, told in _facts(found))
    return table([title, ""], rows, "facts") + _families(found) + _differing(found)


def _facts(found: Document) -> Iterator[tuple[str, str]]:
    yield "instruction set", f"{safe(found['isa'])}: {safe(', '.join(found['cpu_features']))}"
    yield "library", f"{found['bytes']:,} bytes, and {found['constant_bytes']:,} of the weights"
    yield "weights of fewer than 8 bits", f"packed in the file, {safe(found['low_bit_weights'])}"
    if "loaded_bytes" in found:
        yield "memory of the weights", f"{found['loaded_bytes']:,} bytes, unpacked"
    yield "memory of a run", f"{found['workspace_bytes']:,} bytes for each sample, beside the outputs"
    if "tuned" in found:
        yield "tuned", _tuned(found["tuned"])
    yield from _verified(found["verification"])
    rounded = found["roundings_of_float_parts"]
    shown = " ".join(name(value) for value in rounded[:OPEN_NAMES])
    rest = rounded[OPEN_NAMES:]
    more = details(f"and {len(rest):,} more", " ".join(map(name, rest))) if rest else ""
    yield "float parts rounded to codes", f"{shown}{more}" if rounded else "none"


def _tuned(found: Document) -> str:
    shares = found["of_first"]
    told = f"{len(shares):,} of {found['kernels']:,} kernels have loops cut otherwise than usual"
    return told + (f", and take {statistics.median(shares):.2f} of the time in the median" if shares else "")


def _verified(checked: Document) -> Iterator[tuple[str, str]]:
    if "missing" in checked:
        yield "compared", f"nothing: {safe(checked['missing'])}"
        return
    yield (
        "compared kernel by kernel",
        f"{checked['integers_compared']:,} integers, all equal to those of the ONNX file; "
        f"{checked['reals_compared']:,} floats, all within the tolerance",
    )
    differing = sum(checked["end_to_end_different"].values())
    yield "compared end to end", f"{checked['end_to_end_integers']:,} integers, {differing:,} of them different"


def _families(found: Document) -> str:
    counts = sorted(found["steps"].items(), key=lambda item: (-item[1], item[0]))
    total = sum(found["steps"].values())
    rows = (cell(f"<code>{safe(family)}</code>", family) + cell(f"{n:,}", n, n / total) for family, n in counts)
    lead = f"<p>{total:,} calls of {found['kernels']:,} kernels; layers of one shape share one.</p>"
    return lead + table(["family of kernels", ">calls"], rows, "sortable")


def _differing(found: Document) -> str:
    different = found["verification"].get("end_to_end_different")
    if not different:
        return ""
    lead = (
        "<p>Integers that differ from end to end, by tensor. Float parts are summed in another order, and a few of "
        "their results are rounded to the neighbouring code; with those codes replaced by the file's, no other "
        "integer differs:</p>"
    )
    rounded = found["verification"].get("end_to_end_rounded", {})
    rows = (
        cell(name(tensor), tensor)
        + cell(f"{count:,}", count)
        + cell(f"{rounded.get(tensor, 0):,}", rounded.get(tensor, 0))
        for tensor, count in sorted(different.items())
    )
    return lead + table(["tensor", ">different", ">rounded otherwise"], rows, "sortable")
