"""The held-back samples that changed most: their pictures, and what the float and the compiled model say of them."""

from collections.abc import Iterator

from ptqc.report.markup import name, safe
from ptqc.report.rows import Document, ReportFacts
from ptqc.text import number, percent


def has_changed(facts: ReportFacts) -> bool:
    """Whether any sample changed; older artifacts have none."""
    return bool(facts.changed and facts.changed["samples"])


def changed_samples(facts: ReportFacts) -> str:
    """A figure for each sample, the one that changed most in front."""
    assert facts.changed is not None
    shown = "".join(_sample(sample, facts.changed["unit"]) for sample in facts.changed["samples"])
    return f'<div class="samples">{shown}</div>'


def _sample(sample: Document, unit: str) -> str:
    whose = sample["sample"]
    pictures = "".join(
        f'<img src="{safe(url)}" alt="{safe(f"{of} of {whose}")}">' for of, url in sample["pictures"].items()
    )
    said = "".join(_said(output) for output in sample["outputs"])
    told = f"{name(whose)} loss {number(sample['loss'])} {safe(unit)}"
    return f"<figure>{pictures}<figcaption>{told}</figcaption>{said}</figure>"


def _said(output: Document) -> str:
    same = output["float"][0][0] == output["compiled"][0][0]
    heading = name(output["output"]) + (safe(f" at {output['place']}") if output["place"] else "")
    verdict = "the same class" if same else "another class"
    head = '<thead><tr><th></th><th scope="col">class (probability)</th></tr></thead>'
    return f"<div>{heading}: {verdict}</div><table>{head}<tbody>{''.join(_rows(output))}</tbody></table>"


def _rows(output: Document) -> Iterator[str]:
    for who in ("float", "compiled"):
        classes = ", ".join(f"{label} ({percent(share)})" for label, share in output[who])
        yield f'<tr><th scope="row">{who}</th><td>{_together(classes)}</td></tr>'


def _together(classes: str) -> str:
    """Markup that breaks no line before a unit."""
    return safe(classes).replace(" %", "&nbsp;%").replace(" (", "&nbsp;(")
