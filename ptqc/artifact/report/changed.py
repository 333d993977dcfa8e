"""The held-back samples with the largest divergence: pictures, boxes and texts, and what both models say of them."""

from collections.abc import Iterator, Sequence

from ptqc.artifact.report.markup import name, safe
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import number, percent

WHO = ("float", "compiled")


def has_changed(facts: ReportFacts) -> bool:
    """Whether any sample changed; older artifacts have none."""
    return bool(facts.changed and facts.changed["samples"])


def changed_samples(facts: ReportFacts) -> str:
    """A figure for each sample: those whose answer changed, then the others, each by divergence."""
    assert facts.changed is not None
    samples = facts.changed["samples"]
    changed = [sample for sample in samples if _answer_changed(sample)]
    same = [sample for sample in samples if not _answer_changed(sample)]
    shown = _figures(changed, facts.changed["unit"]) if changed else ""
    if changed and same:
        shown += "<h3>Largest divergence with the same answer</h3>"
    return _how_read(samples) + shown + (_figures(same, facts.changed["unit"]) if same else "")


def changed_title(facts: ReportFacts) -> str:
    """Whether any answer changed, where samples have answers."""
    assert facts.changed is not None
    samples = facts.changed["samples"]
    if any(map(_answer_changed, samples)):
        differing, count = facts.changed.get("differing", 0), facts.changed.get("of", 0)
        return safe(f"Samples that changed: {differing} of {count}") if differing else "Samples that changed"
    if any(sample["outputs"] or "text" in sample or "objects" in sample for sample in samples):
        return "Hardest samples: none changed its answer"
    return "Samples with the largest divergence"


def _answer_changed(sample: Document) -> bool:
    """Whether a top class, a token or an object of a sample is another one."""
    text, objects = sample.get("text", {"outputs": ()}), sample.get("objects", dict.fromkeys(WHO, ()))
    return (
        any(output["float"][0][0] != output["compiled"][0][0] for output in sample["outputs"])
        or any(output["differing"] for output in text["outputs"])
        or any(not one["matched"] for who in WHO for one in objects[who])
    )


def _figures(samples: Sequence[Document], unit: str) -> str:
    shown = "".join(_sample(sample, unit) for sample in samples)
    is_wide = any("objects" in sample or "text" in sample for sample in samples)
    return f'<div class="{"samples wide" if is_wide else "samples"}">{shown}</div>'


def _how_read(samples: Sequence[Document]) -> str:
    """How the boxes of a detector were understood, which no file says."""
    reading = next((sample["objects"]["read"] for sample in samples if "objects" in sample), None)
    if reading is None:
        return ""
    return (
        f"<p>Boxes were read as {safe(reading)}; those that overlap are shown once. "
        "Dashed boxes are found by one of the two models alone.</p>"
    )


def _sample(sample: Document, unit: str) -> str:
    whose, objects = sample["sample"], sample.get("objects")
    pictures = "".join(
        _pair(url, objects)
        if objects is not None and of == objects["input"]
        else f'<img src="{safe(url)}" alt="{safe(f"{of} of {whose}")}">'
        for of, url in sample["pictures"].items()
    )
    said = "".join(_said(output) for output in sample["outputs"])
    message = f"{name(whose)} divergence {number(sample['loss'])} {safe(unit)}"
    text = _text(sample["text"]) if "text" in sample else ""
    return f"<figure>{pictures}<figcaption>{message}</figcaption>{_counts(objects)}{text}{said}</figure>"


def _counts(objects: Document | None) -> str:
    """How many objects both find."""
    if objects is None:
        return ""
    lost, new = (sum(not one["matched"] for one in objects[who]) for who in WHO)
    both = len(objects["float"]) - lost
    return (
        f"<div>{both} of {len(objects['float'])} objects of the float model found again, {lost} lost, {new} new</div>"
    )


def _pair(url: str, objects: Document) -> str:
    """The picture twice, each time with the boxes of one model."""
    drawn = "".join(
        f'<div><div class="who">{who}</div>{_boxes(url, objects["size"], objects[who], who)}</div>' for who in WHO
    )
    return f'<div class="pair">{drawn}</div>'


def _boxes(url: str, size: Sequence[int], documents: Sequence[Document], who: str) -> str:
    width, height = 100.0, 100.0 * size[1] / size[0]
    result = ", ".join(f"class {one['label']} {percent(one['score'])}" for one in documents) or "nothing"
    extent = f'width="{width:.2f}" height="{height:.2f}"'
    picture = f'<image href="{safe(url)}" {extent} preserveAspectRatio="none"/>'
    shapes = "".join(_box(one, width, height) for one in documents)
    head = f'<svg viewBox="0 0 {width:.2f} {height:.2f}" role="img" aria-label="{safe(f"{who} finds: {result}")}">'
    return f"{head}{picture}{shapes}</svg>"


def _box(one: Document, width: float, height: float) -> str:
    left, top, right, bottom = (side * extent for side, extent in zip(one["box"], (width, height) * 2, strict=True))
    kind = "box" if one["matched"] else "box alone"
    caption = safe(f"{one['label']} · {percent(one['score'])}")
    return (
        f'<rect x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{bottom - top:.2f}" class="{kind}"/>'
        f'<text x="{left + 0.8:.2f}" y="{max(top + 4.2, 4.2):.2f}" class="boxed">{caption}</text>'
    )


def _text(text: Document) -> str:
    """The tokens, those marked at which an output changed, and what it was and is there."""
    marked = {place for output in text["outputs"] for place, *_ in output["changed"]}
    shown = "".join(_token(piece, place in marked) for place, piece in enumerate(text["tokens"]))
    return f'<p class="tokens">{shown.lstrip()}</p>{"".join(map(_changes, text["outputs"]))}'


def _token(piece: str, is_marked: bool) -> str:
    words = safe(piece)
    return f"<mark>{words}</mark>" if is_marked else words


def _changes(output: Document) -> str:
    message = f"another token or class at {safe(output['differing'])} of {safe(output['of'])} positions"
    if not output["changed"]:
        return f"<div>{name(output['output'])}: the same at all {safe(output['of'])} positions</div>"
    rows = "".join(
        f'<tr><th scope="row">{safe(place)}</th><td>{safe(before)}</td><td>{safe(after)}</td></tr>'
        for place, before, after in output["changed"]
    )
    head = (
        '<thead><tr><th scope="col">position</th><th scope="col">float</th><th scope="col">compiled</th></tr></thead>'
    )
    return f"<div>{name(output['output'])}: {message}</div><table>{head}<tbody>{rows}</tbody></table>"


def _said(output: Document) -> str:
    same = output["float"][0][0] == output["compiled"][0][0]
    heading = name(output["output"]) + (safe(f" at {output['place']}") if output["place"] else "")
    verdict = "the same class" if same else "another class"
    head = '<thead><tr><th scope="col">model</th><th scope="col">class (probability)</th></tr></thead>'
    return f"<div>{heading}: {verdict}</div><table>{head}<tbody>{''.join(_rows(output))}</tbody></table>"


def _rows(output: Document) -> Iterator[str]:
    words = output.get("words", {})
    for who in WHO:
        classes = ", ".join(f"{words.get(str(label), label)} ({percent(share)})" for label, share in output[who])
        yield f'<tr><th scope="row">{who}</th><td>{_together(classes)}</td></tr>'


def _together(classes: str) -> str:
    """Markup that breaks no line before a unit."""
    return safe(classes).replace(" %", "&nbsp;%").replace(" (", "&nbsp;(")
