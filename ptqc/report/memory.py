"""What the file needs of memory when it is loaded and run: a line for the terminal, and the section of the report."""

from collections.abc import Iterator, Mapping
from typing import Any

from ptqc.report.markup import safe, table
from ptqc.report.rows import Document, ReportFacts
from ptqc.text import visible

MEGABYTE = 1e6
UNTOLD = "memory when loaded: not told, as an earlier version of ptqc compiled this"


def has_memory(facts: ReportFacts) -> bool:
    """Whether the compile told of memory; those of earlier versions did not."""
    return facts.manifest.get("memory") is not None


def memory_in_words(manifest: Document) -> str:
    """Weights and run, for ONNX Runtime and for each native library."""
    found = manifest.get("memory")
    if found is None:
        return UNTOLD
    libraries = "".join(
        f"; {visible(isa)} library {weights / MEGABYTE:.2f} MB and {run / MEGABYTE:.2f} MB"
        for isa, weights, run in _libraries(manifest)
    )
    weights, run = found["weights_bytes"] / MEGABYTE, _run_bytes(found) / MEGABYTE
    how = "predicted" if found["run_bytes"] is None else "measured"
    parts = f"weights {weights:.2f} MB, a run of one sample at most {run:.2f} MB"
    where = f"{how}; {found['runtime']}, one thread, beside the runtime itself"
    return f"memory when loaded: {weights + run:.2f} MB, of it {parts} ({where}){libraries}"


def memory_table(facts: ReportFacts) -> str:
    """Bytes of weights and of a run."""
    rows = (f'<th scope="row">{safe(what)}</th><td>{safe(told)}</td>' for what, told in _rows(facts.manifest))
    return table(["what", "value"], rows, "facts")


def _rows(manifest: Document) -> Iterator[tuple[str, str]]:
    found = manifest["memory"]
    measured = found["run_bytes"]
    yield "weights as they are loaded", f"{found['weights_bytes']:,} bytes"
    yield "a run of one sample, predicted from what lives at each step", f"{found['predicted_run_bytes']:,} bytes"
    told = "this release does not tell" if measured is None else f"{measured:,} bytes"
    yield "the same by the allocator of ONNX Runtime", told
    yield "in", f"{found['runtime']}, one thread"
    for isa, weights, run in _libraries(manifest):
        yield f"native library for {isa}", f"{weights:,} bytes of weights, {run:,} bytes for a run, beside its outputs"


def _run_bytes(found: Mapping[str, Any]) -> int:
    measured = found["run_bytes"]
    return int(found["predicted_run_bytes"] if measured is None else measured)


def _libraries(manifest: Document) -> Iterator[tuple[str, int, int]]:
    """Instruction set, bytes of the unpacked weights and of a run, of libraries that tell them."""
    for target in manifest.get("targets", {}).values():
        for library in target.get("libraries", ()):
            if "loaded_bytes" in library:
                yield library["isa"], library["loaded_bytes"], library["workspace_bytes"]
