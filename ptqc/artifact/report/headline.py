"""The figures at the top."""

from collections.abc import Iterator
from dataclasses import dataclass

from ptqc.artifact.report.markup import safe
from ptqc.artifact.report.rows import ReportFacts
from ptqc.artifact.report.scores import scores_of
from ptqc.utils.text import number, percent

PROVEN = 1e-4  # a gap below this is the solver's tolerance


@dataclass(frozen=True)
class HeadlineFigure:
    """One headline figure."""

    title: str
    value: str
    more: str


def cards(facts: ReportFacts) -> str:
    """All headline figures."""
    figures = list(_figures(facts))
    shown = "".join(
        f'<div class="card"><dt>{safe(figure.title)}</dt><dd><div class="big">{safe(figure.value)}</div>'
        f'<div class="more">{safe(figure.more)}</div></dd></div>'
        for figure in figures
    )
    columns = "cards three" if len(figures) % 3 == 0 else "cards"
    return f'<dl class="{columns}">{shown}</dl>'


def _figures(facts: ReportFacts) -> Iterator[HeadlineFigure]:
    yield _size(facts)
    yield from _score(facts)
    yield _agreement(facts)
    yield _loss(facts)
    yield _bits(facts)
    yield _kernels(facts)
    yield _checked(facts)
    yield _gap(facts)
    yield _price(facts)


def _size(facts: ReportFacts) -> HeadlineFigure:
    allocation, budget = facts.manifest["allocation"], facts.manifest["budget"]
    used = f"; {100 * facts.size / allocation['limit']:.2f} % of the budget of {budget}" if budget else "; no budget"
    share = f"{100 * facts.size / facts.original:.2f} %"
    return HeadlineFigure("size, of the original", share, f"{facts.original:,} → {facts.size:,} bytes{used}")


def _score(facts: ReportFacts) -> Iterator[HeadlineFigure]:
    scores = scores_of(facts.manifest["results"])
    if scores is not None:
        more = f"{scores.before} in float; {scores.difference}".replace("-", "−")
        yield HeadlineFigure(scores.title, scores.after, more)


def _agreement(facts: ReportFacts) -> HeadlineFigure:
    results = facts.manifest["results"]
    sqnr, agreement = f"{results['sqnr_db']:.1f} dB", results["top1_agreement"]
    samples = f"on {results['held_back_samples']:,} held-back samples"
    if agreement is None:
        return HeadlineFigure("signal to quantization noise", sqnr, f"outputs against the float model, {samples}")
    return HeadlineFigure("same top class as float", f"{100 * agreement:.1f} %", f"{samples}; SQNR {sqnr}")


def _loss(facts: ReportFacts) -> HeadlineFigure:
    results = facts.manifest["results"]
    more = f"{results['loss_unit']}, measured; predicted {number(facts.loss)} for weights, "
    return HeadlineFigure(
        "loss of the outputs",
        number(results["loss"]),
        f"{more}{number(facts.manifest['activation_loss'])} for activations",
    )


def _bits(facts: ReportFacts) -> HeadlineFigure:
    formats = sorted({row.chosen.form for row in facts.rows}, key=lambda form: (form.bits_per_weight, str(form)))
    return HeadlineFigure(
        "bits per weight", f"{facts.bits_per_weight:.2f}", ", ".join(map(str, formats)) or "no weights"
    )


def _kernels(facts: ReportFacts) -> HeadlineFigure:
    integer = facts.manifest["verification"]["integer_nodes"]
    floats = sum(facts.manifest["float_operators"].values())
    more = "confirmed in ONNX Runtime's optimized graph; " + ("see below" if floats else "nothing computes in float")
    return HeadlineFigure("kernels, integer / float", f"{integer:,} / {floats:,}", more)


def _checked(facts: ReportFacts) -> HeadlineFigure:
    found = facts.manifest["verification"]
    more = f"equal to the reference in {found['codes_compared']:,} numbers, of {found['kernels_compared']:,} kernels"
    return HeadlineFigure("kernels checked", "bit-exact" if found["codes_compared"] else "none", more)


def _gap(facts: ReportFacts) -> HeadlineFigure:
    allocation = facts.manifest["allocation"]
    if allocation["status"] == "given":
        return HeadlineFigure("plan", "given", "not chosen by the solver, so nothing is proven about it")
    if allocation["gap"] <= PROVEN:
        return HeadlineFigure("plan", "optimal", "proven: no other mix of formats in this size has less predicted loss")
    return HeadlineFigure(
        "plan, proven gap", percent(allocation["gap"]), "no plan of this size is better by more than this"
    )


def _price(facts: ReportFacts) -> HeadlineFigure:
    allocation = facts.manifest["allocation"]
    price, loss = allocation["price_of_one_percent"], allocation["loss"]
    title = "one more percent of the original"
    if allocation["status"] == "given":
        return HeadlineFigure(title, "–", "not computed for a given plan")
    if price <= 0:
        return HeadlineFigure(title, "no gain", "no plan of that size has less predicted loss")
    share = f", {percent(price / loss)} of the predicted loss" if loss else ""
    return HeadlineFigure(title, f"−{number(price)}", f"{allocation['unit']}{share}")
