"""The section of a latency budget: the whole run, then every operator as predicted and as measured."""

import math
from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, details, dot, label, name, path, safe, svg, table
from ptqc.artifact.report.plots import HEIGHT, RIGHT, TOP, WIDTH, PlotAxes, loss_axis, size_axis
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.artifact.results import budgets_of
from ptqc.passes.allocate.constraints.criteria import DROP, SAME
from ptqc.utils.text import number, percent, visible
from ptqc.utils.text import table as text_table

OPEN_ROWS = 300  # longer tables are collapsed


def has_latency(facts: ReportFacts) -> bool:
    """Whether the compile was given a latency."""
    return facts.manifest.get("latency") is not None


def latency_tables(facts: ReportFacts) -> str:
    """The whole, and the operators in execution order."""
    latency, together = facts.manifest["latency"], with_activations(facts.manifest["allocation"])
    figures = [*_whole(latency), *([("weights and activations together", together)] if together else [])]
    whole = (f'<th scope="row">{safe(what)}</th><td>{safe(value)}</td>' for what, value in figures)
    head = [">#", "operator", "type", "compute", ">predicted µs", ">measured µs", ">in float µs", ">on integers µs"]
    longest = max((entry["measured_us"] or 0.0 for entry in latency["operators"]), default=0.0)
    rows = [_operator(i + 1, entry, longest, facts.labels) for i, entry in enumerate(latency["operators"])]
    operators = table(head, rows, "sortable")
    shown = operators if len(rows) <= OPEN_ROWS else details(f"{len(rows):,} operators", operators)
    return table(["what", "value"], whole, "facts") + shown


def with_activations(allocation: Document) -> str:
    """What is proven of a choice of weights and activations together; empty where there was none."""
    result = allocation.get("with_activations")
    if not result:
        return ""
    is_optimal, loss = result["status"] == "optimal", result["loss"]
    proof = "proven optimal" if is_optimal else f"within {percent(result['gap'])} of the optimum"
    gains = ", ".join(
        f"1 % more {what} would " + (f"buy {100 * gain / loss:.2g} % less" if gain > 0 and loss else "gain nothing")
        for what, gain in result["prices_of_one_percent"].items()
    )
    return f"predicted divergence {loss:.3g} {allocation['unit']}; {proof}" + (f"; {gains}" if gains else "")


def _whole(document: Document) -> Iterator[tuple[str, str]]:
    conversions = document["conversions"]
    yield "budget", document["budget"]
    yield "predicted", f"{number(document['predicted_ms'])} ms"
    predicted = f"{conversions['tensors']:,} tensors: predicted {number(conversions['predicted_us'])} µs"
    if document["measured_ms"] is None:
        yield "measured", "nothing: the times are predicted from the figures of chips"
        yield "float network, predicted", f"{number(document['float_ms'])} ms"
        yield "predicted for", document["runtime"]
        yield "conversions between float and codes", predicted
    else:
        yield "measured", f"{number(document['measured_ms'])} ms"
        yield "float network, at the same time", f"{number(document['float_ms'])} ms"
        yield "measured in", document["runtime"]
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


# What the file needs of memory when it is loaded and run: a line for the terminal, and the section of the report.

MEGABYTE = 1e6
LOADING = "loading itself takes more: see `ptqc expand`"
UNTOLD = "memory when loaded: not recorded, since an earlier version of ptqc compiled this"


def has_memory(facts: ReportFacts) -> bool:
    """Whether the compile told of memory; those of earlier versions did not."""
    return facts.manifest.get("memory") is not None


def memory_in_words(manifest: Document) -> str:
    """Weights and run, for ONNX Runtime and for each native library."""
    memory = manifest.get("memory")
    if memory is None:
        return UNTOLD
    libraries = "".join(
        f"; {visible(isa)} library {weights / MEGABYTE:.2f} MB and {run / MEGABYTE:.2f} MB"
        for isa, weights, run in _libraries(manifest)
    )
    needed, weights = memory["needed_bytes"], memory["weights_bytes"]
    limit = memory["limit_bytes"]
    budget = "" if limit is None else f", {100 * needed / limit:.1f} % of the budget of {memory['budget']}"
    how = "predicted" if memory["run_bytes"] is None else "measured"
    parts = f"weights {weights / MEGABYTE:.2f} MB, a run of one sample at most {(needed - weights) / MEGABYTE:.2f} MB"
    where = f"{how}; {memory['runtime']}, one thread, beside the runtime itself"
    return f"memory when loaded: {needed / MEGABYTE:.2f} MB{budget}; {parts} ({where}){libraries}; {LOADING}"


def memory_in_short(memory: Document) -> str:
    """What the loaded file and a run of it need in ONNX Runtime."""
    needed, weights = memory["needed_bytes"], memory["weights_bytes"]
    return f"{needed / MEGABYTE:.2f} MB when loaded (weights {weights / MEGABYTE:.2f} MB); {LOADING}"


def memory_table(facts: ReportFacts) -> str:
    """Bytes of weights and of a run."""
    rows = (
        f'<th scope="row">{safe(what)}</th><td>{safe(result)}</td>' for what, result in _memory_rows(facts.manifest)
    )
    return table(["what", "value"], rows, "facts")


def _memory_rows(manifest: Document) -> Iterator[tuple[str, str]]:
    memory = manifest["memory"]
    measured = memory["run_bytes"]
    if memory["limit_bytes"] is not None:
        yield "budget", memory["budget"]
        yield "met", "yes" if all(budget.kept for budget in budgets_of(manifest) if budget.kind == "memory") else "no"
    yield "together", f"{memory['needed_bytes']:,} bytes"
    yield "weights as they are loaded", f"{memory['weights_bytes']:,} bytes"
    yield "a run of one sample, predicted from what lives at each step", f"{memory['predicted_run_bytes']:,} bytes"
    reported = "not reported by this release" if measured is None else f"{measured:,} bytes"
    yield "the same by the allocator of ONNX Runtime", reported
    yield "in", f"{memory['runtime']}, one thread"
    for isa, weights, run in _libraries(manifest):
        yield f"native library for {isa}", f"{weights:,} bytes of weights, {run:,} bytes for a run, beside its outputs"


def _libraries(manifest: Document) -> Iterator[tuple[str, int, int]]:
    """Instruction set, bytes of the unpacked weights and of a run, of libraries that tell them."""
    for target in manifest.get("targets", {}).values():
        for library in target.get("libraries", ()):
            if "loaded_bytes" in library:
                yield library["isa"], library["loaded_bytes"], library["workspace_bytes"]


# What a network in C takes of a microcontroller, where flash or memory is limited.

LISTED_VALUES = 3  # of those that are in memory at its peak


def has_microcontroller(facts: ReportFacts) -> bool:
    """Whether the compile was given a budget of flash or memory of a microcontroller."""
    return any(facts.manifest.get(kind) is not None for kind in ("flash", "ram"))


def flash_in_words(flash: Document) -> str:
    """All of it, and what it consists of."""
    parts = f"{flash['constant_bytes']:,} of weights and other constants, {flash['code_bytes']:,} of code and "
    parts += f"{flash['structure_bytes']:,} of descriptions of layers"
    return f"{_of_limit(flash)}: {parts}. Compiled by {flash['compiler']}, and without the C library"


def constants_in_words(source: Document) -> str:
    """Flash of C source where it is not limited: with its code where that was measured on an emulated board."""
    constants, m4 = source["constant_bytes"], source.get("boards", {}).get("cortex-m4", {})
    if "code_bytes" not in m4:
        return f"{constants:,} bytes of weights and other constants; code comes in addition"
    total = m4["code_bytes"] + m4["constant_bytes"]
    return f"{total:,} bytes on a Cortex-M4 with a floating-point unit, {constants:,} of them weights and constants"


def buffers_in_words(source: Document) -> str:
    """RAM of C source where it is not limited."""
    used = source["arena_bytes"] + source["input_and_output_bytes"] + source.get("state_bytes", 0)
    return f"{used:,} bytes: {_parts_of_ram(source)}"


def ram_in_words(ram: Document) -> str:
    """All of it, and where most is needed."""
    return f"{_of_limit(ram)}: {_parts_of_ram(ram)}. Most is needed for {_alive(ram)}"


def _parts_of_ram(document: Document) -> str:
    ends = document["input_and_output_bytes"]
    states = f"{document['state_bytes']:,} of earlier frames, " if "state_bytes" in document else ""
    return (
        f"{document['arena_bytes']:,} to work in, {states}{ends:,} of inputs and outputs; the stack comes in addition"
    )


def _of_limit(document: Document) -> str:
    used, limit = document["used_bytes"], document["limit_bytes"]
    return f"{used:,} bytes, {100 * used / limit:.1f} % of the budget of {document['budget']}"


def _alive(ram: Document) -> str:
    parts = [f"{visible(what)} {size:,}" for what, size in ram["alive"][:LISTED_VALUES]]
    if more := len(ram["alive"]) - len(parts):
        parts.append(f"and {more} more")
    return f"{visible(ram['peak'])}: {', '.join(parts)}"


def microcontroller_table(facts: ReportFacts) -> str:
    """Flash and memory, each with its parts."""
    rows = (
        f'<th scope="row">{safe(what)}</th><td>{safe(result)}</td>'
        for what, result in _microcontroller_rows(facts.manifest)
    )
    return table(["what", "value"], rows, "facts")


def _microcontroller_rows(manifest: Document) -> Iterator[tuple[str, str]]:
    if (flash := manifest.get("flash")) is not None:
        yield "flash", _of_limit(flash)
        yield "constants", f"{flash['constant_bytes']:,} bytes"
        yield "code", f"{flash['code_bytes']:,} bytes by {flash['compiler']}, and without the C library"
        yield "descriptions of layers", f"{flash['structure_bytes']:,} bytes"
    if (ram := manifest.get("ram")) is not None:
        yield "memory", _of_limit(ram)
        yield "buffers", f"{ram['arena_bytes']:,} bytes"
        yield "inputs and outputs", f"{ram['input_and_output_bytes']:,} bytes"
        yield "most is needed while this is made", _alive(ram)


# A budget of loss: a line for the terminal, and the section with every plan that was built.


def has_loss_budget(facts: ReportFacts) -> bool:
    """Whether the compile was given a budget of loss."""
    return facts.manifest.get("loss_budget") is not None


# What plans were chosen by, where it is not counted on held-back samples alone.
HOW_CHOSEN = {SAME: "estimated from held-back samples", DROP: "when plans were compared"}


def loss_in_words(document: Document) -> str:
    """What was asked, predicted, measured and shown, on one line."""
    judged, count = document["judged"], len(document["rounds"])
    plans = f"{count} {'plan' if count == 1 else 'plans'} built"
    first = f"{shown(judged['lost'], document['unit'])} by the score, with no bound"
    if judged["samples"]:
        certainty = "" if judged["bound"] is None else f" ({_certainty(document)})"
        first = f"{judged_loss(document)}, {loss_bound(document)}{certainty}"
    warning = "" if document["kept"] else "NOT SHOWN TO BE MET: "
    how = HOW_CHOSEN.get(document["unit"], "on held-back samples")
    held = f"{shown(document['measured']['lost'], document['unit'])} {how}"
    predicted = f"predicted {number(document['predicted'])} {document['predicted_unit']}"
    return f"{warning}{first}, of the budget of {document['budget']}; {held}, {predicted}; {plans}"


def judged_budget(manifest: Document) -> Document | None:
    """The budget of loss that judging samples decided; None where none did."""
    budget: Document | None = manifest.get("loss_budget")
    return budget if budget is not None and budget["judged"]["samples"] else None


def judged_loss(document: Document) -> str:
    """What judging samples say: "99.60 % same on 945 judging samples"."""
    return f"{shown(document['judged']['lost'], document['unit'])} {on_judges(document)}"


def on_judges(document: Document) -> str:
    """What judged: "on 945 judging samples"."""
    return f"on {document['judged']['samples']:,} judging samples"


def loss_bound(document: Document) -> str:
    """What is lost at most, as judging samples show."""
    bound, unit = document["judged"]["bound"], document["unit"]
    if bound is None:
        return "too few for a bound"
    is_least = unit == SAME or (unit == DROP and bound < 0)
    return f"{'at least' if is_least else 'at most'} {shown(bound, unit)}"


def shown(lost: float | None, unit: str) -> str:
    """What is lost, as a budget of this unit says it: of top classes, what is left. Few samples bound nothing."""
    if lost is None:
        return "unknown"
    if unit == SAME:
        return f"{100 * (1 - lost):.2f} % same"
    if unit == DROP:
        return f"{abs(lost):.2f} points {'gained' if lost < 0 else 'lost'}"
    return f"{number(lost)} {unit}"


def _certainty(document: Document) -> str:
    return f"{100 * document['confidence']:.0f} % sure, {document['judged']['method']}"


def loss_budget_table(facts: ReportFacts) -> str:
    """The budget, and the plans in the order in which they were built."""
    document = facts.manifest["loss_budget"]
    whole = (f'<th scope="row">{safe(what)}</th><td>{safe(value)}</td>' for what, value in _whole_loss(document))
    unit = document["predicted_unit"]
    head = [">#", ">bytes", f">predicted ({unit})", ">held-back samples", ">judge", ">judge's bound", "delivered"]
    rows = (_round(document, number, one) for number, one in enumerate(document["rounds"]))
    return table(["what", "value"], whole, "facts") + table(head, rows)


def _whole_loss(document: Document) -> Iterator[tuple[str, str]]:
    judged = document["judged"]
    yield "budget", document["budget"]
    yield "met", "yes" if document["kept"] else "not shown"
    yield "judged on", f"{judged['samples']:,} judging samples" if judged["samples"] else "the score"
    is_bounded = judged["bound"] is not None
    yield "bound", f"{_certainty(document)}, one-sided" if is_bounded else "none"
    if document["samples_needed"] is not None:
        yield "samples that would show it, if others are like these", f"about {document['samples_needed']:,}"


def _round(document: Document, place: int, one: Document) -> str:
    judged, unit = one["judged"], document["unit"]
    return "".join(
        [
            cell(str(place + 1), place),
            cell(f"{one['bytes']:,}", one["bytes"]),
            cell(number(one["predicted"]), one["predicted"]),
            cell(safe(shown(one["measured"]["lost"], unit)), one["measured"]["lost"]),
            *(_judged(judged, part, unit) for part in ("lost", "bound")),
            cell("yes" if place == document["delivered"] else ""),
        ]
    )


def _judged(judged: Document | None, part: str, unit: str) -> str:
    return cell("–", "") if judged is None else cell(safe(shown(judged[part], unit)), judged[part])


# How a decoder keeps keys and values of earlier tokens: a line for the terminal, and the section of the report.

HEADER = ("cache", "format", "inputs", "bytes", "of float32", "divergence alone")


def has_caches(facts: ReportFacts) -> bool:
    """Whether anything was asked of them; earlier versions did not tell."""
    return facts.manifest.get("caches") is not None


def caches_in_words(manifest: Document) -> str:
    """Bytes in all, forms, and what they lose."""
    caches = manifest["caches"]
    counts: dict[str, int] = {}
    for cache in caches["caches"]:
        counts[cache["form"]] = counts.get(cache["form"], 0) + 1
    kinds = ", ".join(f"{count} {visible(form)}" for form, count in counts.items())
    after, before = caches["bytes"], caches["float_bytes"]
    share = f"{before:,} -> {after:,} bytes for {caches['places']} tokens: {100 * after / max(before, 1):.1f} %"
    limit = "" if caches["limit_bytes"] is None else f", within the {caches['limit_bytes']:,} of {caches['budget']}"
    loss = "" if caches["loss"] is None else f"; divergence {caches['loss']:.3g} {caches['unit']} in a step"
    return f"{share}{limit}; {kinds}{loss}"


def cache_table(facts: ReportFacts) -> str:
    """One row for each cache."""
    return table(HEADER, _rows(facts.manifest["caches"]))


def _rows(document: Document) -> Iterator[str]:
    for cache in document["caches"]:
        share = f"{100 * cache['bytes'] / max(cache['float_bytes'], 1):.1f} %"
        loss = "" if cache["loss"] is None else f"{cache['loss']:.3g} {document['unit']}"
        inputs = ", ".join(cache["inputs"])
        cells = (cache["form"], inputs, f"{cache['bytes']:,}", share, loss)
        yield f'<th scope="row">{safe(cache["name"])}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in cells)


# How each output was judged.

HEAD = ["output", "compared as", ">divergence", "unit", "agreement with the float model"]


def has_outputs(facts: ReportFacts) -> bool:
    """Whether outputs were judged one by one, which artifacts of older versions were not."""
    return bool(facts.manifest["results"].get("outputs"))


def output_table(facts: ReportFacts) -> str:
    """One row per output, and one per group of its channels where there are several."""
    return table(HEAD, _output_rows(facts.manifest["results"]["outputs"]), "stack")


def _output_rows(outputs: list[Document]) -> Iterator[str]:
    for output in outputs:
        message = "; ".join(figure["text"] for figure in output["figures"])
        loss = cell(number(output["loss"]), output["loss"])
        yield (
            cell(name(output["name"])) + cell(safe(output["judged_as"])) + loss + _figures(output["loss_unit"], message)
        )
        if len(output["losses"]) > 1:
            for group, value in output["losses"].items():
                yield cell("") + cell(safe(group)) + cell(number(value), value) + _figures(output["units"][group], "")


def _figures(unit: str, text: str) -> str:
    return cell(safe(unit)) + cell(safe(text))


# The measured frontier: a table for the terminal, and the plots of loss and of time against size.


def has_sweep(facts: ReportFacts) -> bool:
    """Whether a frontier was measured."""
    return facts.sweep is not None


def sweep_text(document: Document) -> str:
    """One line for each size."""
    unit = document["unit"]
    head = ("bytes", "of float", "predicted", f"measured {unit}", "same top class", "SQNR dB", "ms")
    rows = [tuple(_cells(document, point)) for point in document["points"]]
    lines = [text_table(head, rows), "", f"the float model takes {document['float_ms']:.3f} ms ({document['runtime']})"]
    if len(rows) < document["asked"]:
        lines.append(f"there was time for {len(rows)} of {document['asked']} points")
    return "\n".join(lines)


def _cells(document: Document, point: Document) -> Iterator[str]:
    yield f"{point['bytes']:,}"
    yield percent(point["bytes"] / document["original_bytes"])
    yield number(point["predicted"])
    yield number(point["loss"])
    yield "–" if point["top1_agreement"] is None else f"{100 * point['top1_agreement']:.1f} %"
    yield f"{point['sqnr_db']:.1f}"
    yield f"{point['milliseconds']:.3f}"


def sweep_plots(facts: ReportFacts) -> str:
    """Loss against size as measured and as predicted, then every point with its time."""
    document = facts.sweep
    assert document is not None
    measured, predicted = (_curve(document, key) for key in ("loss", "predicted"))
    here = facts.size, float(facts.manifest["results"]["loss"])
    axes = _axes([*measured, *predicted, here])
    drawing = svg(WIDTH, HEIGHT, "measured divergence against size", _shapes(facts, axes, measured, predicted))
    return drawing + _table(document)


def _curve(document: Document, key: str) -> list[tuple[int, float]]:
    return [(int(point["bytes"]), float(point[key])) for point in document["points"]]


def _axes(points: list[tuple[int, float]]) -> PlotAxes:
    sizes = [size for size, _ in points]
    margin = 0.04 * (max(sizes) - min(sizes)) or 0.1 * max(sizes)
    exponents = [math.log10(loss) for _, loss in points if loss > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    room = high - low or 3.0
    return PlotAxes(max(0.0, min(sizes) - margin), max(sizes) + margin, low - 0.1 * room, high + 0.1 * room)


def _shapes(
    facts: ReportFacts, axes: PlotAxes, measured: list[tuple[int, float]], predicted: list[tuple[int, float]]
) -> Iterator[str]:
    yield from loss_axis(axes, f"divergence ({facts.unit}), lower is better")
    yield from size_axis(axes, facts.original)
    yield path([(axes.x(size), axes.y(loss)) for size, loss in predicted], "predicted")
    yield path([(axes.x(size), axes.y(loss)) for size, loss in measured], "curve")
    for size, loss in measured:
        yield dot(axes.x(size), axes.y(loss), 3.5, "point", f"{size:,} bytes: {number(loss)} {facts.unit} measured")
    lost = float(facts.manifest["results"]["loss"])
    message = f"this file: {facts.size:,} bytes, {number(lost)}"
    yield dot(axes.x(facts.size), axes.y(lost), 7, "here", message)
    yield label(
        WIDTH - RIGHT, TOP + 10, f"line with dots: measured; dashed: predicted; red dot: {message}", "tick", "end"
    )


def _table(document: Document) -> str:
    head = [">bytes", ">of float", ">predicted", ">measured", ">same top class", ">SQNR (dB)", ">ms"]
    keys = ("bytes", "bytes", "predicted", "loss", "top1_agreement", "sqnr_db", "milliseconds")
    rows = []
    for point in document["points"]:
        values = [-1.0 if point[key] is None else float(point[key]) for key in keys]
        rows.append("".join(cell(result, value) for result, value in zip(_cells(document, point), values, strict=True)))
    return table(head, rows, "sortable")
