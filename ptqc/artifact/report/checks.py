"""What was checked before the file was delivered, each as a line with its result."""

from collections.abc import Iterator

from ptqc.artifact.report.budgets import shown
from ptqc.artifact.report.markup import safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.artifact.report.targets import has_native
from ptqc.artifact.results import budgets_of
from ptqc.utils.text import number

NAMES = {"ram": "RAM", "loss": "accuracy"}
MET, MISSED, OPEN = "✓ passed", "✗ failed", "– open"


def check_table(facts: ReportFacts) -> str:
    """One row for each check."""
    rows = (
        f'<th scope="row">{safe(what)}</th><td class="mark">{result}</td><td>{safe(about)}</td>'
        for what, result, about in _checks(facts)
    )
    return table(["check", "result", "found"], rows, "stack")


def _checks(facts: ReportFacts) -> Iterator[tuple[str, str, str]]:
    manifest, checked = facts.manifest, facts.manifest["verification"]
    yield from _budgets(manifest)
    equal = (
        f"{checked['codes_compared']:,} values of {checked['kernels_compared']:,} kernels equal an integer reference"
    )
    yield (
        "integer kernels",
        *((MET, f"{equal}, bit for bit") if checked["codes_compared"] else (OPEN, "there are none")),
    )
    planned = checked.get("operators_as_planned")  # earlier versions did not count
    counted = "" if planned is None else f", of {planned:,} operators"
    yield "plan", MET, f"the file, read back, computes what was planned{counted}"
    difference = number(checked["output_difference"])
    yield "outputs", MET, f"those of the planned computation, up to a relative difference of {difference}"
    results = manifest["results"]
    low = [figure["text"] for output in results.get("outputs", ()) for figure in output["figures"] if figure["low"]]
    samples = f"on {results['held_back_samples']:,} held-back samples"
    yield "agreement", MISSED if low else MET, f"{', '.join(low) or 'no figure is low'} {samples}"
    if has_native(facts):
        yield from _libraries(manifest)
    unfit, is_cut = manifest.get("unfit"), manifest.get("cut_short")
    about = unfit[0] if unfit else "the time limit left steps out, see the notes" if is_cut else "no step was left out"
    yield "complete", MISSED if unfit else OPEN if is_cut else MET, about


def _budgets(manifest: Document) -> Iterator[tuple[str, str, str]]:
    for budget in budgets_of(manifest):
        if budget.unit == "bytes":
            about = f"{budget.value:,} of {budget.limit:,} bytes"
        elif budget.kind == "latency":
            how = "predicted" if manifest["latency"]["measured_ms"] is None else "measured"
            about = f"{number(budget.value or 0)} ms {how}, of {budget.budget}"
        else:
            lost, bound = (manifest["loss_budget"]["judged"][part] for part in ("lost", "bound"))
            worst = "" if bound is None else f", {shown(bound, budget.unit)} at worst"
            about = f"{shown(lost, budget.unit)}{worst}, of the budget of {budget.budget}"
        yield NAMES.get(budget.kind, budget.kind), MET if budget.kept else MISSED, about


def _libraries(manifest: Document) -> Iterator[tuple[str, str, str]]:
    for target, document in manifest["targets"].items():
        if "missing" in document:
            yield f"target {target}", OPEN, f"not built: {document['missing']}"
        for library in document.get("libraries", ()):
            checked = library["verification"]
            about = f"not verified: {checked['missing']}" if "missing" in checked else ""
            equal = f"{checked.get('integers_compared', 0):,} integers equal those of the ONNX file, kernel by kernel"
            yield f"library for {library['isa']}", OPEN if about else MET, about or equal
