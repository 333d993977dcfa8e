"""What the file needs of memory when it is loaded and run: a line for the terminal, and the section of the report."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import visible

MEGABYTE = 1e6
UNTOLD = "memory when loaded: not recorded, since an earlier version of ptqc compiled this"


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
    needed, weights = found["needed_bytes"], found["weights_bytes"]
    limit = found["limit_bytes"]
    budget = "" if limit is None else f", {100 * needed / limit:.1f} % of the budget of {found['budget']}"
    how = "predicted" if found["run_bytes"] is None else "measured"
    parts = f"weights {weights / MEGABYTE:.2f} MB, a run of one sample at most {(needed - weights) / MEGABYTE:.2f} MB"
    where = f"{how}; {found['runtime']}, one thread, beside the runtime itself"
    return f"memory when loaded: {needed / MEGABYTE:.2f} MB{budget}; {parts} ({where}){libraries}"


def memory_table(facts: ReportFacts) -> str:
    """Bytes of weights and of a run."""
    rows = (f'<th scope="row">{safe(what)}</th><td>{safe(told)}</td>' for what, told in _rows(facts.manifest))
    return table(["what", "value"], rows, "facts")


def _rows(manifest: Document) -> Iterator[tuple[str, str]]:
    found = manifest["memory"]
    measured = found["run_bytes"]
    if found["limit_bytes"] is not None:
        yield "budget", found["budget"]
        yield "kept", "yes" if found["needed_bytes"] <= found["limit_bytes"] else "no"
    yield "together", f"{found['needed_bytes']:,} bytes"
    yield "weights as they are loaded", f"{found['weights_bytes']:,} bytes"
    yield "a run of one sample, predicted from what lives at each step", f"{found['predicted_run_bytes']:,} bytes"
    told = "this release does not tell" if measured is None else f"{measured:,} bytes"
    yield "the same by the allocator of ONNX Runtime", told
    yield "in", f"{found['runtime']}, one thread"
    for isa, weights, run in _libraries(manifest):
        yield f"native library for {isa}", f"{weights:,} bytes of weights, {run:,} bytes for a run, beside its outputs"


def _libraries(manifest: Document) -> Iterator[tuple[str, int, int]]:
    """Instruction set, bytes of the unpacked weights and of a run, of libraries that tell them."""
    for target in manifest.get("targets", {}).values():
        for library in target.get("libraries", ()):
            if "loaded_bytes" in library:
                yield library["isa"], library["loaded_bytes"], library["workspace_bytes"]
