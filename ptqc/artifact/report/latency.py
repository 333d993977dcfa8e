"""The section of a latency budget: the whole run, then every operator as predicted and as measured."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, details, name, safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import number, percent

OPEN_ROWS = 300  # longer tables are collapsed


def has_latency(facts: ReportFacts) -> bool:
    """Whether the compile was given a latency."""
    return facts.manifest.get("latency") is not None


def latency_tables(facts: ReportFacts) -> str:
    """The whole, and the operators in execution order."""
    found, together = facts.manifest["latency"], with_activations(facts.manifest["allocation"])
    facts_told = [*_whole(found), *([("weights and activations together", together)] if together else [])]
    whole = (f'<th scope="row">{safe(what)}</th><td>{safe(told)}</td>' for what, told in facts_told)
    head = [">#", "operator", "type", "compute", ">predicted µs", ">measured µs", ">in float µs", ">on integers µs"]
    longest = max((entry["measured_us"] or 0.0 for entry in found["operators"]), default=0.0)
    rows = [_operator(i + 1, entry, longest, facts.labels) for i, entry in enumerate(found["operators"])]
    operators = table(head, rows, "sortable")
    shown = operators if len(rows) <= OPEN_ROWS else details(f"{len(rows):,} operators", operators)
    return table(["what", "value"], whole, "facts") + shown


def with_activations(allocation: Document) -> str:
    """What is proven of a choice of weights and activations together; empty where there was none."""
    found = allocation.get("with_activations")
    if not found:
        return ""
    proof = "proven best" if found["status"] == "optimal" else f"at most {percent(found['gap'])} from the best"
    gains = ", ".join(
        f"+1 % of {what}: -{gain:.2g}" if gain > 0 else f"+1 % of {what} gains nothing"
        for what, gain in found["prices_of_one_percent"].items()
    )
    return f"predicted loss {found['loss']:.3g} {allocation['unit']}, {proof}" + (f"; {gains}" if gains else "")


def _whole(found: Document) -> Iterator[tuple[str, str]]:
    conversions = found["conversions"]
    yield "budget", found["budget"]
    yield "predicted", f"{number(found['predicted_ms'])} ms"
    predicted = f"{conversions['tensors']:,} tensors: predicted {number(conversions['predicted_us'])} µs"
    if found["measured_ms"] is None:
        yield "measured", "nothing: the times are predicted from the figures of chips"
        yield "float network, predicted", f"{number(found['float_ms'])} ms"
        yield "predicted for", found["runtime"]
        yield "conversions between float and codes", predicted
    else:
        yield "measured", f"{number(found['measured_ms'])} ms"
        yield "float network, at the same time", f"{number(found['float_ms'])} ms"
        yield "measured in", found["runtime"]
        measured = f"measured {number(conversions['measured_us'])} µs"
        yield "conversions between float and codes", f"{predicted}, {measured}"


def _operator(place: int, entry: Document, longest: float, labels: Document) -> str:
    node = labels.get(entry["node"], entry["node"])
    measured = entry["measured_us"]
    compute = f'<span class="tag">{safe(entry["compute"])}</span>' if entry["compute"] == "float" else "integer"
    return "".join(
        [
            cell(str(place), place),
            cell(name(node), node),
            cell(safe(entry["operator"]), entry["operator"]),
            cell(compute, entry["compute"]),
            _time(entry["predicted_us"]),
            _time(measured) if not measured else cell(number(measured), measured, measured / longest),
            _time(entry["float_us"]),
            _time(entry["integer_us"]),
        ]
    )


def _time(microseconds: float | None) -> str:
    return cell("–", "") if microseconds is None else cell(number(microseconds), microseconds)
