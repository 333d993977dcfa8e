"""The sections of the targets. Native library: its kernels, its bytes, how weights are stored, what was compared."""

import statistics
from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, details, name, safe, table
from ptqc.artifact.report.microcontroller import arena_picture, board_table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.runtime.foreign import RuntimeCheck
from ptqc.utils import text

OPEN_NAMES = 8


def has_native(facts: ReportFacts) -> bool:
    """Whether there is a native library, or should be."""
    return bool(_native(facts))


def native_tables(facts: ReportFacts) -> str:
    """One part for each target with native libraries."""
    return "\n".join(_target(title, document) for title, document in _native(facts).items())


def has_others(facts: ReportFacts) -> bool:
    """Whether a target built something else."""
    return bool(_others(facts))


def other_tables(facts: ReportFacts) -> str:
    """What each target that builds something else says of it."""
    tables = []
    for title, document in _others(facts).items():
        rows = [f'<th scope="row">{safe(what)}</th><td>{safe(value)}</td>' for what, value in text.facts(document)]
        tables.append(table([title, "value"], rows, "facts"))
        if "arena" in document:
            tables += [_compared(document["verification"]), board_table(document), arena_picture(document)]
    return "\n".join(tables)


def _compared(checked: Document) -> str:
    return (
        f"<p>Compared on {checked['samples']:,} samples, compiled by {safe(checked['compiler'])}: "
        f"{checked['integers_compared']:,} integers, {checked['integers_different']:,} of them different.</p>"
    )


def has_runtimes(facts: ReportFacts) -> bool:
    """Whether what a target built ran in runtimes, or should."""
    return any("runtimes" in document for document in _others(facts).values())


def runtime_table(facts: ReportFacts) -> str:
    """Files of the artifact in each runtime side by side."""
    checks = [
        (title, document["bytes"], RuntimeCheck(**check))
        for title, document in _others(facts).items()
        for check in document.get("runtimes", {}).values()
    ]
    packed = next((check for _, _, check in checks if check.packed_loss is not None), None)
    if packed is not None:
        own = RuntimeCheck("ONNX Runtime", "the packed file", packed.packed_loss, unit=packed.unit)
        checks.insert(0, ("model.onnx", facts.size, own))
    rows = (_runtime(*each) for each in checks)
    return table(["file", ">bytes", "runtime", ">divergence", "on integers", "note"], rows)


def _runtime(file: str, size: int, check: RuntimeCheck) -> str:
    loss = cell("not run") if check.loss is None else cell(f"{check.loss:.3g} {safe(check.unit)}", check.loss)
    texts = "".join(cell(safe(text)) for text in (check.placement, check.note))
    return f"{cell(safe(file))}{cell(f'{size:,}', size)}{cell(safe(check.title))}{loss}{texts}"


def _native(facts: ReportFacts) -> dict[str, Document]:
    targets = facts.manifest.get("targets", {})
    return {title: document for title, document in targets.items() if "libraries" in document or "missing" in document}


def _others(facts: ReportFacts) -> dict[str, Document]:
    return {
        title: document for title, document in facts.manifest.get("targets", {}).items() if title not in _native(facts)
    }


def _target(title: str, document: Document) -> str:
    if "missing" in document:
        return f"<p>{safe(title)}: not built: {safe(document['missing'])}</p>"
    weights = f"<p>{document['weights_bytes']:,} bytes of weights, packed, for all libraries.</p>"
    libraries = "\n".join(_library(title, library) for library in document["libraries"])
    return weights + libraries + (_static(document["static"]) if "static" in document else "")


def _library(title: str, document: Document) -> str:
    rows = (f'<th scope="row">{safe(what)}</th><td>{text}</td>' for what, text in _facts(document))
    return table([title, "value"], rows, "facts") + _families(document) + _differing(document)


def _static(document: Document) -> str:
    """The static library: an archive for each kind of machine, and what its instruction sets were compared on."""
    rows = [f'<th scope="row">{safe(document["header"])}</th><td>{document["header_bytes"]:,} bytes</td>']
    for archive in document["archives"]:
        checks = "; ".join(f"{safe(isa)}: {safe(_equal(one))}" for isa, one in archive["verification"].items())
        size = f"{archive['bytes']:,} bytes"
        rows.append(f'<th scope="row">{safe(archive["file"])}</th><td>{size}; {checks}</td>')
    return table(["static library", "value"], rows, "facts")


def _equal(checked: Document) -> str:
    if "missing" in checked:
        return f"not compared: {checked['missing']}"
    where = f", run in {checked['emulator']}" if "emulator" in checked else ""
    return f"{checked['numbers_compared']:,} numbers equal those of the shared library{where}"


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    yield "instruction set", f"{safe(document['isa'])}: {safe(', '.join(document['cpu_features']))}"
    yield "library", f"{document['bytes']:,} bytes, and {document['constant_bytes']:,} of the weights"
    yield "weights of fewer than 8 bits", f"packed in the file, {safe(document['low_bit_weights'])}"
    if "loaded_bytes" in document:
        yield "memory of the weights", f"{document['loaded_bytes']:,} bytes, unpacked"
    yield "memory of a run", f"{document['workspace_bytes']:,} bytes for each sample, beside the outputs"
    if "tuned" in document:
        yield "tuned", _tuned(document["tuned"])
    if times := document.get("predicted_ms"):
        shown = ", ".join(f"{safe(core)} {text.number(time)} ms" for core, time in times.items())
        yield "predicted for one core, not measured", shown
    yield from _verified(document["verification"])
    rounded = document["roundings_of_float_parts"]
    shown = " ".join(name(value) for value in rounded[:OPEN_NAMES])
    hidden = rounded[OPEN_NAMES:]
    more = details(f"and {len(hidden):,} more", " ".join(map(name, hidden))) if hidden else ""
    yield "float parts rounded to codes", f"{shown}{more}" if rounded else "none"


def _tuned(document: Document) -> str:
    shares = document["of_first"]
    message = f"{len(shares):,} of {document['kernels']:,} kernels have loops cut otherwise than usual"
    return message + (f", and take {statistics.median(shares):.2f} of the time in the median" if shares else "")


def _verified(checked: Document) -> Iterator[tuple[str, str]]:
    if "missing" in checked:
        yield "compared", f"nothing: {safe(checked['missing'])}"
        return
    if "emulator" in checked:
        yield "ran in", f"the emulator {safe(checked['emulator'])}"
    yield (
        "compared kernel by kernel",
        f"{checked['integers_compared']:,} integers, all equal to those of the ONNX file; "
        f"{checked['reals_compared']:,} floats, all within the tolerance",
    )
    differing = sum(checked["end_to_end_different"].values())
    yield "compared end to end", f"{checked['end_to_end_integers']:,} integers, {differing:,} of them different"


def _families(document: Document) -> str:
    counts = sorted(document["steps"].items(), key=lambda item: (-item[1], item[0]))
    total = sum(document["steps"].values())
    rows = (cell(f"<code>{safe(family)}</code>", family) + cell(f"{n:,}", n, n / total) for family, n in counts)
    lead = f"<p>{total:,} calls of {document['kernels']:,} kernels; layers of one shape share one.</p>"
    return lead + table(["family of kernels", ">calls"], rows, "sortable")


def _differing(document: Document) -> str:
    different = document["verification"].get("end_to_end_different")
    if not different:
        return ""
    lead = (
        "<p>Integers that differ from end to end, by tensor. Float parts are summed in another order, and a few of "
        "their results are rounded to the neighbouring code; with those codes replaced by the file's, no other "
        "integer differs:</p>"
    )
    rounded = document["verification"].get("end_to_end_rounded", {})
    rows = (
        cell(name(tensor), tensor)
        + cell(f"{count:,}", count)
        + cell(f"{rounded.get(tensor, 0):,}", rounded.get(tensor, 0))
        for tensor, count in sorted(different.items())
    )
    return lead + table(["tensor", ">different", ">rounded otherwise"], rows, "sortable")
