"""The tables: weights, the five that cost most, activations, notes, and what it takes to get the same file again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ptqc.artifact.report.markup import cell, details, name, safe, swatch, table, unbroken
from ptqc.artifact.report.rows import Choice, Document, ReportFacts, Row
from ptqc.artifact.report.summary import NAMED, NoteGroup, groups
from ptqc.artifact.results import budgets_of
from ptqc.formats import PORTABLE_BITS, Integer
from ptqc.utils.text import decibels, magnitude, number, percent

OPEN_ROWS = 300  # longer tables are collapsed
OPEN_SITES = 24


def worst_table(facts: ReportFacts) -> str:
    """The weights that cost most, each with what one step up would cost and bring."""
    if not facts.worst:
        return "<p>No weight costs any predicted divergence.</p>"
    rows = (
        cell(_names(row))
        + cell(_format(row.chosen))
        + cell(number(row.chosen.loss), row.chosen.loss)
        + _of_all(row.chosen.loss, facts.loss)
        + cell(unbroken(_remedy(row, facts)))
        for row in facts.worst
    )
    return _if_activations_cost_more(facts) + table(
        ["weight of", "format", ">predicted divergence", ">of all weights", "remedy"], rows, "stack"
    )


def _if_activations_cost_more(facts: ReportFacts) -> str:
    loss = facts.manifest["activation_loss"]
    if loss <= facts.loss:
        return ""
    return (
        f"<p>8-bit activations cost more than all weights together ({number(loss)} against {number(facts.loss)}): "
        'more bytes help little, see <a href="#activations">activations</a>.</p>'
    )


def _of_all(loss: float, total: float) -> str:
    return cell(percent(loss / total), loss, loss / total) if total > 0 else cell("", "")


def _remedy(row: Row, facts: ReportFacts) -> str:
    better, chosen = row.upgrade, row.chosen
    if better is None:
        return _no_upgrade(row, facts)
    extra, gain = better.bytes - chosen.bytes, chosen.loss - better.loss
    is_used = any(other.chosen.form == better.form for other in facts.rows)
    brings = "" if is_used else " with its unpacking"
    size = f"+{extra:,} B (+{100 * extra / facts.original:.2g} %)"
    return f"{better.form}: {size}{brings}, −{100 * gain / facts.loss:.2g} % divergence"


def _no_upgrade(row: Row, facts: ReportFacts) -> str:
    options, form = facts.manifest["options"], row.chosen.form
    widest = form == Integer(PORTABLE_BITS)
    if "integer" in row.compute and widest and 8 in options["bits"] and not options["allow_8bit"]:
        return "none: the widest for integer kernels; allow_8bit adds 8 bits"
    return f"none: no larger format loses less than {form}"


def layer_table(facts: ReportFacts) -> str:
    """Every weight; collapsed where there are many."""
    head = [
        ">#",
        "layer",
        ">weights",
        "format",
        "compute",
        ">bytes",
        ">predicted divergence",
        ">SQNR",
        ">MACs",
        ">bit flips",
    ]
    reasons = {note["subject"]: note["message"] for note in facts.float_notes}
    rows = [_layer(i + 1, row, facts, reasons) for i, row in enumerate(facts.rows)]
    result = table(head, rows, "sortable")
    shown = result if len(rows) <= OPEN_ROWS else details(f"{len(rows):,} rows", result)
    return f"<p>{safe(facts.energy.in_words())}</p>{shown}"


def _layer(place: int, row: Row, facts: ReportFacts, reasons: Mapping[str, str]) -> str:
    chosen, share = row.chosen, row.chosen.bytes / facts.size
    why = next((reasons[name] for name in row.names if name in reasons), "")
    compute = safe(row.compute)
    if row.in_float:
        compute = f'<span class="tag" title="{safe(why)}">{compute}</span>'
    flips = facts.energy.of_layers(row.layers)
    return "".join(
        [
            cell(str(place), place),
            cell(_names(row), row.names[0]),
            cell(f"{row.elements:,}", row.elements),
            cell(_format(chosen), f"{chosen.form.bits_per_weight:g}"),
            cell(compute, row.compute),
            cell(f"{chosen.bytes:,}", chosen.bytes, share / facts.largest_share),
            cell(number(chosen.loss), chosen.loss, chosen.loss / facts.largest_loss if facts.largest_loss else None),
            cell(decibels(chosen.error), -chosen.error),
            cell(magnitude(row.macs) if row.macs else "–", row.macs),
            cell("–" if flips is None else magnitude(flips), flips or 0),
        ]
    )


def _format(choice: Choice) -> str:
    return f'<span class="format">{swatch(choice.form.colour)}{safe(choice.form)}</span>'


def _names(row: Row) -> str:
    more = f' <span class="soft" title="{safe(", ".join(row.names))}">+{len(row.names) - 1}</span>'
    return name(row.names[0]) + (more if len(row.names) > 1 else "")


def activation_table(facts: ReportFacts) -> str:
    """Every site; collapsed where there are many."""
    sites, loss = facts.sensitivity["activations"], facts.manifest["activation_loss"]
    if not sites:
        return "<p>The model has no activation that an integer kernel could read.</p>"
    scales = {entry["site"]: entry for entry in facts.plan["activations"]}
    quantized = sum(site["quantized"] for site in sites)
    analysis = Counter(entry["format"] for entry in facts.plan["activations"] if "zero_point" not in entry)
    rounded = "".join(f" and {count:,} rounded to {safe(form)}" for form, count in analysis.items())
    message = (
        f"<p>{quantized:,} of {len(sites):,} activations are quantized to 8 bits{rounded}; together they cost "
        f"a divergence of {number(loss)} {safe(facts.unit)}.</p>"
    )
    largest = max(site["loss"] for site in sites)
    rows = [_site(i + 1, site, scales.get(site["site"]), largest, facts.labels) for i, site in enumerate(sites)]
    result = table([">#", "activation", "stored as", ">scale", ">zero point", ">divergence alone"], rows, "sortable")
    return message + (result if len(rows) <= OPEN_SITES else details(f"{len(rows):,} activations", result))


def _site(place: int, site: Document, analysis: Document | None, largest: float, labels: Document) -> str:
    shown = labels.get(site["site"], site["site"])
    stored = safe(analysis["format"]) if analysis else '<span class="tag">float</span>'
    entry, empty = analysis or {}, cell("", "")
    scale = cell(number(entry["scale"]), entry["scale"]) if "scale" in entry else empty
    zero = cell(safe(entry["zero_point"]), entry["zero_point"]) if "zero_point" in entry else empty
    loss = cell(number(site["loss"]), site["loss"], site["loss"] / largest if largest else None)
    return cell(str(place), place) + cell(name(shown), shown) + cell(stored, "") + scale + zero + loss


def note_list(notes: Sequence[Document], none: str) -> str:
    """Equal messages once, with the values they are about."""
    if not notes:
        return f"<p>{safe(none)}</p>"
    return f'<ul class="notes">{"".join(map(_group, groups(notes)))}</ul>'


def _group(group: NoteGroup) -> str:
    times = f' <span class="soft">× {group.count:,}</span>' if group.count > 1 else ""
    shown = " ".join(name(subject, 80) for subject in group.subjects[:NAMED])
    hidden = group.subjects[NAMED:]
    more = details(f"and {len(hidden):,} more", " ".join(name(s, 80) for s in hidden)) if hidden else ""
    about = f'<div class="subjects">{shown}{more}</div>' if shown else ""
    return f'<li><span class="step">{safe(group.step)}</span> {safe(group.message)}{times}{about}</li>'


def reproducibility_table(facts: ReportFacts) -> str:
    """Versions, hashes, options, and what the checks of the written file found."""
    manifest = facts.manifest
    groups: list[tuple[str, Any]] = [
        ("ptqc", manifest["ptqc"]),
        ("libraries", manifest["libraries"]),
        ("source", manifest["source"]),
        ("calibration", manifest["calibration"]),
        ("compiled", {key: facts.times[key] for key in ("date", "command", "host") if facts.times.get(key)}),
        ("budget", ", ".join(one.budget for one in budgets_of(manifest)) or "none"),
        ("options", manifest["options"]),
        ("written file", manifest["file"]),
        ("allocation", manifest["allocation"]),
        ("verification", manifest["verification"]),
        ("cpu", manifest["cpu"]),
        ("measurements", manifest["measurements"]),
    ]
    rows = (f'<th scope="row">{safe(title)}</th><td>{_value(value)}</td>' for title, value in groups)
    return table(["what", "value"], rows, "facts")


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(_pairs(value)) or "–"
    return f"<code>{safe(value)}</code>"


def _pairs(value: Mapping[str, object]) -> Iterator[str]:
    for key, item in sorted(value.items()):
        if isinstance(item, Mapping):
            shown = ", ".join(f"{k} {v}" for k, v in sorted(item.items())) or "–"
        elif isinstance(item, list | tuple):
            shown = ", ".join(map(str, item))
        else:
            shown = f"{item:,}" if isinstance(item, int) and not isinstance(item, bool) else str(item)
        yield f'<span class="soft">{safe(key.replace("_", " "))}</span> <code>{safe(shown)}</code>'
