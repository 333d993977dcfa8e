"""A budget of loss: a line for the terminal, and the section with every plan that was built."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.budget import DROP, SAME
from ptqc.utils.text import number


def has_loss_budget(facts: ReportFacts) -> bool:
    """Whether the compile was given a budget of loss."""
    return facts.manifest.get("loss_budget") is not None


def loss_in_words(found: Document) -> str:
    """What was asked, predicted, measured and shown, on one line."""
    judged, count = found["judged"], len(found["rounds"])
    plans = f"{count} {'plan' if count == 1 else 'plans'} built"
    first = f"{shown(judged['lost'], found['unit'])} on {judged['samples']:,} unseen samples"
    if not judged["samples"]:
        first = f"{shown(judged['lost'], found['unit'])} by the score, with no bound"
    elif found["unit"] == SAME:
        first += f", at least {shown(judged['bound'], SAME)} ({_certainty(found)})"
    else:
        first += f", at most {shown(judged['bound'], found['unit'])} ({_certainty(found)})"
    kept = "" if found["kept"] else "NOT SHOWN TO BE KEPT: "
    held = f"{shown(found['measured']['lost'], found['unit'])} on held-back samples"
    predicted = f"predicted {number(found['predicted'])} {found['predicted_unit']}"
    return f"{kept}{first}, of the budget of {found['budget']}; {held}, {predicted}; {plans}"


def shown(lost: float, unit: str) -> str:
    """What is lost, as a budget of this unit says it: of top classes, what is left."""
    if unit == SAME:
        return f"{100 * (1 - lost):.2f} % same"
    return f"{lost:+.2f} points lost" if unit == DROP else f"{number(lost)} {unit}"


def _certainty(found: Document) -> str:
    return f"{100 * found['confidence']:.0f} % sure, {found['judged']['method']}"


def loss_budget_table(facts: ReportFacts) -> str:
    """The budget, and the plans in the order in which they were built."""
    found = facts.manifest["loss_budget"]
    whole = (f'<th scope="row">{safe(what)}</th><td>{safe(told)}</td>' for what, told in _whole(found))
    unit = found["predicted_unit"]
    head = [">#", ">bytes", f">predicted ({unit})", ">held-back samples", ">judge", ">judge's bound", "delivered"]
    rows = (_round(found, number, one) for number, one in enumerate(found["rounds"]))
    return table(["what", "value"], whole, "facts") + table(head, rows)


def _whole(found: Document) -> Iterator[tuple[str, str]]:
    judged = found["judged"]
    yield "budget", found["budget"]
    yield "kept", "yes" if found["kept"] else "not shown"
    yield "judged on", f"{judged['samples']:,} unseen samples" if judged["samples"] else "the score"
    yield "bound", f"{_certainty(found)}, one-sided"
    if found["samples_needed"] is not None:
        yield "samples that would show it, if the rest is like these", f"about {found['samples_needed']:,}"


def _round(found: Document, place: int, one: Document) -> str:
    judged, unit = one["judged"], found["unit"]
    return "".join(
        [
            cell(str(place + 1), place),
            cell(f"{one['bytes']:,}", one["bytes"]),
            cell(number(one["predicted"]), one["predicted"]),
            cell(safe(shown(one["measured"]["lost"], unit)), one["measured"]["lost"]),
            *(_judged(judged, part, unit) for part in ("lost", "bound")),
            cell("yes" if place == found["delivered"] else ""),
        ]
    )


def _judged(judged: Document | None, part: str, unit: str) -> str:
    return cell("–", "") if judged is None else cell(safe(shown(judged[part], unit)), judged[part])
