"""A compile in a few lines for the terminal."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptqc.artifact.report.budgets import (
    buffers_in_words,
    caches_in_words,
    constants_in_words,
    flash_in_words,
    judged_budget,
    loss_bound,
    loss_in_words,
    memory_in_short,
    memory_in_words,
    on_judges,
    ram_in_words,
    shown,
    with_activations,
)
from ptqc.artifact.report.markup import safe, unbroken
from ptqc.artifact.report.rows import ReportFacts, labelled_notes
from ptqc.artifact.report.scores import divergence_in_words, graded, least_agreement, scores_of
from ptqc.artifact.report.verdict import is_busy, is_faster, times_smaller, verdict_line
from ptqc.artifact.results import budgets_of, c_sources
from ptqc.codegen.onnxruntime.matmul_nbits import FUSED_FROM
from ptqc.formats import Format, mean_bits
from ptqc.losses.base import UNITS
from ptqc.passes.allocate.constraints.criteria import SAME
from ptqc.runtime.foreign import RuntimeCheck
from ptqc.utils.text import differences_end_to_end, facts, magnitude, number, percent, shorten, visible

Document = Mapping[str, Any]

WIDTH, LABEL = 100, 12
LISTED = 8  # formats, operators or outputs that are named
NAME_LENGTH = 60
# Figures that a line about the whole model has already.
SAID = (["same top class", "SQNR"], ["SQNR"], ["SQNR", "variance"])
PROVEN = 1e-4  # a gap below this is the solver's tolerance


def summarize(manifest: Document, times: Document) -> str:
    """Verdict, size, agreement, score, latency, what computes in float, time and memory, and all warnings."""
    lines = [_verdict(manifest, times), *_size(manifest), *_quality(manifest), *_accuracy(manifest)]
    lines += [*_speed(manifest, times), *_time(manifest), *_memory(manifest), *_caches(manifest)]
    lines += [*_targets(manifest), *_microcontroller(manifest), *_warnings(manifest)]
    return "\n".join(_line(label, content) for label, content in lines)


def _verdict(manifest: Document, times: Document) -> tuple[str, str]:
    if manifest.get("unfit"):
        return "NOT FIT", f"for use: {visible(manifest['unfit'][0])}"
    if manifest.get("cut_short"):
        return "CUT SHORT", "by the time limit: without it, the divergence may be several times smaller"
    return "verdict", verdict_line(manifest, times)


def _line(label: str, content: str) -> str:
    """Label and content; what does not fit goes on under the content."""
    return textwrap.fill(f"{label:<{LABEL}}{content}", WIDTH, subsequent_indent=" " * LABEL, break_on_hyphens=False)


def _size(manifest: Document) -> Iterator[tuple[str, str]]:
    before, after, limit = manifest["source"]["bytes"], manifest["file"]["bytes"], manifest["allocation"]["limit"]
    budget = f", {100 * after / limit:.2f} % of the budget of {manifest['budget']}" if manifest["budget"] else ""
    yield "size", f"{before:,} -> {after:,} bytes: {100 * after / before:.2f} % of the original{budget}"
    formats: Mapping[str, int] = manifest["weights_by_format"]
    if formats:
        bits = mean_bits((Format.parse(form), count) for form, count in formats.items())
        yield "weights", f"{bits:.2f} bits on average: {_counted({_with_bits(f): n for f, n in formats.items()})}"
    yield "plan", _plan(manifest["allocation"], manifest["activation_loss"])
    if together := with_activations(manifest["allocation"]):
        yield "together", f"weights and activations: {together}"
    if own := manifest["file"].get("runtime_operators"):
        yield "runs in", f"ONNX Runtime alone, with operators of its own: {visible(', '.join(own))}"
    if manifest.get("options", {}).get("operators") == "dequantize":
        oldest = visible(manifest["file"]["oldest_onnxruntime"])
        yield "runs in", f"ONNX Runtime {oldest} and newer, where float matmuls stay packed from {FUSED_FROM} on"


def _targets(manifest: Document) -> Iterator[tuple[str, str]]:
    for name, document in manifest.get("targets", {}).items():
        if "missing" in document:
            yield name, f"not built: {document['missing']}"
        elif "libraries" not in document and name not in c_sources(manifest):
            yield name, visible(", ".join(f"{what} {value}" for what, value in facts(document))) or "built"
            for check in document.get("runtimes", {}).values():
                yield name, visible(str(RuntimeCheck(**check)))
        for library in document.get("libraries", ()):
            steps = f"{sum(library['steps'].values())} steps of {library['kernels']} kernels"
            size = f"{library['bytes']:,} bytes beside {document['weights_bytes']:,} of weights"
            yield name, f"native library for {library['isa']}, {size}, {steps}; {_verified(library['verification'])}"
        for archive in document.get("static", {}).get("archives", ()):
            yield name, f"{archive['file']}, {archive['bytes']:,} bytes; {_equal(archive['verification'])}"


def _verified(checked: Document) -> str:
    if "missing" in checked:
        return f"NOT VERIFIED: {checked['missing']}"
    rounded = checked.get("end_to_end_rounded")
    chained = differences_end_to_end(
        sum(checked["end_to_end_different"].values()), None if rounded is None else sum(rounded.values())
    )
    where = f" (run in {checked['emulator']})" if "emulator" in checked else ""
    return f"{checked['integers_compared']:,} integers equal those of the ONNX file layer by layer, {chained}{where}"


def _equal(checked: Mapping[str, Document]) -> str:
    """Of a static library, by instruction set."""
    missing = [f"{isa} NOT VERIFIED: {one['missing']}" for isa, one in checked.items() if "missing" in one]
    equal = {isa: one["numbers_compared"] for isa, one in checked.items() if "missing" not in one}
    verified = f"{sum(equal.values()):,} numbers equal those of the shared libraries ({', '.join(equal)})"
    return "; ".join([*([verified] if equal else []), *missing])


def _with_bits(form: str) -> str:
    """A format with its bits per weight where its name does not say them: "pairs8 (4 bits)"."""
    bits = f"{Format.parse(form).bits_per_weight:g}"
    return form if form.endswith(bits) else f"{form} ({bits} bits)"


def _counted(counts: Mapping[str, int]) -> str:
    """The largest counts: "219,136 int4, 14,896 int5"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = len(ordered) if len(ordered) <= LISTED + 1 else LISTED  # a single one takes no more room than its count
    unnamed = ordered[named:]
    more = f" and {sum(count for _, count in unnamed):,} of {len(unnamed)} other kinds" if unnamed else ""
    return ", ".join(f"{count:,} {visible(what)}" for what, count in ordered[:named]) + more


def _plan(allocation: Document, activation_loss: float) -> str:
    """The divergence that was predicted for the whole file; the solver chooses weights alone."""
    weights, unit = allocation["loss"], allocation["unit"]
    predicted = f"predicted divergence {weights + activation_loss:.3g} {unit}"
    if activation_loss:
        predicted += f" (weights {weights:.3g}, activations {activation_loss:.3g})"
    if allocation["status"] == "given":
        return f"{predicted}; the plan was given, not chosen by the solver"
    gap = allocation["gap"]
    proof = "proven optimal" if gap <= PROVEN else f"within {100 * gap:.2g} % of the optimum"
    return "; ".join(filter(None, (predicted, proof, what_more_buys(allocation, activation_loss))))


def what_more_buys(allocation: Document, activation_loss: float) -> str:
    """What the next percent of the float file's size would do to the predicted divergence; empty if it is no limit."""
    price, total = allocation["price_of_one_percent"], allocation["loss"] + activation_loss
    if price is None:
        return ""
    gain = f"buy {100 * price / total:.2g} % less predicted divergence" if price > 0 and total else "gain nothing"
    return f"1 % more of the original's size would {gain}"


def _quality(manifest: Document) -> Iterator[tuple[str, str]]:
    results = manifest["results"]
    agreement, samples = results["top1_agreement"], f"{results['held_back_samples']:,} held-back samples"
    figures = f"SQNR {results['sqnr_db']:.1f} dB, {divergence_in_words(results)}"
    if agreement is None:
        yield "agreement", f"{figures}, on {samples}"
    else:
        bound = least_agreement(results)
        more = f" ({bound})" if bound else ""
        yield "agreement", f"same top class in {100 * agreement:.1f} % of {samples}{more}; {figures}"
    yield from _outputs(results.get("outputs", []))
    if fed := results.get("fed_back"):
        same = "" if fed["top1_agreement"] is None else f"same top class in {100 * fed['top1_agreement']:.1f} %, "
        loss = (
            f"divergence {fed['loss']:.3g} {fed['loss_unit']} ({fed['single_loss']:.3g} with the float model's states)"
        )
        yield "fed back", f"{same}{loss}, over {fed['runs']} runs in a row that read their own states"
    scores = scores_of(results)
    if scores is not None:
        yield "score", f"{scores.metric} {scores.before} -> {scores.after} ({scores.difference})"


def _accuracy(manifest: Document) -> Iterator[tuple[str, str]]:
    result = manifest.get("loss_budget")
    if result is not None:
        yield "accuracy", loss_in_words(result)


def _outputs(outputs: Sequence[Document]) -> Iterator[tuple[str, str]]:
    """How each was judged, with its own figures where the line above says them of another."""
    for output in outputs[:LISTED]:
        is_said = len(outputs) == 1 and [figure["name"] for figure in output["figures"]] in SAID
        yield "output", judged_as(output) if is_said else f"{judged_as(output)}: {agreement(output)}"
    if len(outputs) > LISTED:
        yield "output", f"and {len(outputs) - LISTED} more, see the report"


def judged_as(output: Document) -> str:
    """What an output was compared as."""
    return f"{shorten(visible(output['name']), NAME_LENGTH)} compared as {output['judged_as']}"


def agreement(output: Document) -> str:
    """How an output agrees with the float model's."""
    figures = ", ".join(figure["text"] for figure in output["figures"])
    return f"{figures}, divergence {output['loss']:.3g} {output['loss_unit']}"


def _speed(manifest: Document, times: Document) -> Iterator[tuple[str, str]]:
    yield "latency", _latency(times)
    integer, floats = manifest["verification"]["integer_nodes"], manifest["float_operators"]
    in_float = f"in float: {_counted(floats)}" if floats else "none in float"
    # Artifacts of earlier versions count bfloat16 alone.
    rounded = manifest.get("rounded_activations", {"bfloat16": manifest.get("bfloat16_activations", 0)})
    more = "".join(f"; {count:,} activations in {form}" for form, count in rounded.items() if count)
    yield "kernels", f"{integer:,} integer, {in_float}{more}"
    yield "compiled in", f"{times['seconds']:.1f} s, with at most {times['peak_memory_mb']:,.0f} MB of memory"


def _memory(manifest: Document) -> Iterator[tuple[str, str]]:
    memory = manifest.get("memory")
    if memory is not None:  # artifacts of earlier versions have none
        is_limited = memory["limit_bytes"] is not None
        yield "memory", memory_in_words(manifest).partition(": ")[2] if is_limited else memory_in_short(memory)


def _microcontroller(manifest: Document) -> Iterator[tuple[str, str]]:
    """What C source takes, where it is, and what runs of it showed."""
    for name, source in c_sources(manifest).items():
        flash, ram = manifest.get("flash"), manifest.get("ram")
        yield "flash", constants_in_words(source) if flash is None else flash_in_words(flash)
        yield "RAM", buffers_in_words(source) if ram is None else ram_in_words(ram)
        yield from ((name, visible(line)) for line in _on_boards(source))
        files = sorted(file for file in manifest.get("files", ()) if file.startswith(f"{name}/"))
        yield name, f"{', '.join(map(visible, files))}: compile the .c file with the program, and include the .h file"


def _on_boards(source: Document) -> Iterator[str]:
    boards, checked = source.get("boards", {}), source["verification"]
    runs = {core: run for core, run in boards.items() if core != "missing" and "missing" not in run}
    if runs:
        counts = ", ".join(f"{run['instructions']:,} on an emulated {core}" for core, run in runs.items())
        what = "call" if "frames_per_call" in source else "run"
        yield f"instructions of a {what}: {counts} (cycles are more)"
    for core, run in ({"emulated boards": boards} if "missing" in boards else boards).items():
        if core not in runs:
            yield f"{core}: not run: {run['missing']}"
    where = "under sanitizers" if checked["sanitized"] else "without sanitizers, which the compiler lacks"
    yield f"{checked['integers_compared']:,} integers equal those of the ONNX file, by {checked['compiler']} {where}"


def _caches(manifest: Document) -> Iterator[tuple[str, str]]:
    if manifest.get("caches") is not None:
        yield "caches", caches_in_words(manifest)


def _time(manifest: Document) -> Iterator[tuple[str, str]]:
    latency = manifest.get("latency")
    if latency is not None:
        predicted, measured, real = (latency[f"{what}_ms"] for what in ("predicted", "measured", "float"))
        digits = ".3g" if measured is None else ".3f"
        known = "not measured," if measured is None else f"measured {measured:.3f} ms"
        message = f"predicted {predicted:{digits}} ms, {known} of the budget of {latency['budget']}"
        yield "time", f"{message} (float {real:{digits}} ms; {latency['runtime']})"


def _latency(times: Document) -> str:
    speed = times["latency"]
    if speed is None:
        return f"not measured: {times.get('latency_missing', 'for want of time or memory')}"
    text = f"{speed['float_ms']:.3f} -> {speed['compiled_ms']:.3f} ms"
    rows = "one sample" if speed["batch"] == 1 else f"a batch of {speed['batch']} as the model asks for"
    return f"{text}, {rows}, one thread, ONNX Runtime: {_faster(speed)}"


def _faster(speed: Document) -> str:
    """Which of the two is faster, as far as the spread of what was measured allows to say."""
    ratio, low, high = (speed[name] for name in ("speedup", "low", "high"))
    faster = is_faster(speed)
    if faster:
        return f"{ratio:.2f} times as fast ({low:.2f}-{high:.2f})"
    if faster is False:
        return f"SLOWER, {1 / ratio:.2f} times as long ({1 / high:.2f}-{1 / low:.2f})"
    if is_busy(speed):
        return f"the machine was too busy to say which is faster ({low:.2f}-{high:.2f} times as fast)"
    return f"equally fast ({low:.2f}-{high:.2f} times)"


def _warnings(manifest: Document) -> Iterator[tuple[str, str]]:
    """All of them; equal messages once, with the first of the values that they are about."""
    for group in groups([note for note in labelled_notes(manifest) if note["level"] == "warning"]):
        shown = [shorten(visible(subject), NAME_LENGTH) for subject in group.subjects[:NAMED]]
        if len(group.subjects) > NAMED:
            shown.append(f"{len(group.subjects) - NAMED:,} more")
        about = f"{', '.join(shown)}: " if shown else ""
        yield "WARNING", f"{about}{visible(group.message)}"


# The figures at the top.


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
        f'<div class="more">{unbroken(figure.more)}</div></dd></div>'
        for figure in figures
    )
    columns = "cards three" if len(figures) % 3 == 0 else "cards"
    return f'<dl class="{columns}">{shown}</dl>'


def _figures(facts: ReportFacts) -> Iterator[HeadlineFigure]:
    yield _headline_size(facts)
    yield from _score(facts)
    yield _agreement(facts)
    yield _divergence(facts)
    yield from _fed_back(facts)
    yield _bits(facts)
    yield _kernels(facts)
    yield _checked(facts)
    yield _gap(facts)
    if facts.manifest["allocation"]["price_of_one_percent"] is not None:
        yield _price(facts)


def _headline_size(facts: ReportFacts) -> HeadlineFigure:
    allocation, budget = facts.manifest["allocation"], facts.manifest["budget"]
    others = ", ".join(one.budget for one in budgets_of(facts.manifest) if one.kind != "size")
    used = f"; {100 * facts.size / allocation['limit']:.2f} % of the budget of {budget}" if budget else ""
    used += f"; budget: {others}" if others else "" if budget else "; no budget"
    smaller = times_smaller(facts.manifest).replace("x ", "× ")
    share = f"{percent(facts.size / facts.original)} of the original"
    return HeadlineFigure("size", smaller, f"{share}: {facts.original:,} → {facts.size:,} bytes{used}")


def _score(facts: ReportFacts) -> Iterator[HeadlineFigure]:
    scores = scores_of(facts.manifest["results"])
    if scores is not None:
        more = f"{scores.before} for the float model: {scores.difference}".replace("-", "−")
        yield HeadlineFigure(scores.metric, scores.after, f"on your labelled data; {more}")


def _agreement(facts: ReportFacts) -> HeadlineFigure:
    results = facts.manifest["results"]
    sqnr, agreement = f"{results['sqnr_db']:.1f} dB", results["top1_agreement"]
    samples = f"on {results['held_back_samples']:,} held-back samples"
    if (budget := judged_budget(facts.manifest)) is not None and budget["unit"] == SAME:
        same = shown(budget["judged"]["lost"], SAME).removesuffix(" same")
        return HeadlineFigure("same top class as the float model", same, f"{on_judges(budget)}, {loss_bound(budget)}")
    if agreement is None:
        return HeadlineFigure("signal to quantization noise", sqnr, f"{samples}; 6 dB more halve the error")
    bound = least_agreement(results)
    more = f"; {bound} (Clopper–Pearson)" if bound else ""
    return HeadlineFigure("same top class as the float model", f"{100 * agreement:.1f} %", f"{samples}{more}")


def _divergence(facts: ReportFacts) -> HeadlineFigure:
    results, title = facts.manifest["results"], "divergence from the float model"
    grade, unit = graded(results), results["loss_unit"]
    predicted = number(facts.loss + facts.manifest["activation_loss"])
    measured = f"{number(results['loss'])} {unit}"
    more = f"SQNR {results['sqnr_db']:.1f} dB; {predicted} was predicted"
    if not grade:
        return HeadlineFigure(title, measured, more)
    allowed = f"8-bit activations may cost {number(UNITS[unit].tolerance)} by default"
    return HeadlineFigure(title, grade, f"{measured}; {allowed}; {more}")


def _fed_back(facts: ReportFacts) -> Iterator[HeadlineFigure]:
    """Of models with states alone."""
    if fed := facts.manifest["results"].get("fed_back"):
        loss = f"{number(fed['loss'])} {fed['loss_unit']}"
        more = f"{fed['runs']} runs in a row; {number(fed['single_loss'])} with the states of the float model"
        same, title = fed["top1_agreement"], "reading its own states"
        if same is None:
            yield HeadlineFigure(f"divergence, {title}", loss, more)
        else:
            yield HeadlineFigure(f"same top class, {title}", f"{100 * same:.1f} %", f"divergence {loss} over {more}")


def _bits(facts: ReportFacts) -> HeadlineFigure:
    formats = sorted({row.chosen.form for row in facts.rows}, key=lambda form: (form.bits_per_weight, str(form)))
    listed = ", ".join(map(str, formats))
    more = f"32 for the float model; stored as {listed}" if formats else "no weights"
    return HeadlineFigure("bits per weight", f"{facts.bits_per_weight:.2f}", more)


def _kernels(facts: ReportFacts) -> HeadlineFigure:
    integer = facts.manifest["verification"]["integer_nodes"]
    floats = sum(facts.manifest["float_operators"].values())
    more = "see below for those in float" if floats else "nothing computes in float"
    title = "operators, integer / float"
    return HeadlineFigure(title, f"{integer:,} / {floats:,}", f"in the graph that ONNX Runtime runs; {more}")


def _checked(facts: ReportFacts) -> HeadlineFigure:
    result = facts.manifest["verification"]
    more = f"{result['codes_compared']:,} values of {result['kernels_compared']:,} kernels equal an integer reference"
    return HeadlineFigure("integer kernels", "bit-exact" if result["codes_compared"] else "none", more)


def _gap(facts: ReportFacts) -> HeadlineFigure:
    allocation, title = facts.manifest["allocation"], "choice of formats"
    if allocation["status"] == "given":
        return HeadlineFigure(title, "given", "not chosen by the solver, so nothing is proven about it")
    where = "flash" if facts.manifest.get("flash") and not facts.manifest["budget"] else "size"
    if allocation["gap"] <= PROVEN:
        return HeadlineFigure(title, "optimal", f"proven: no other mix in this {where} has less predicted divergence")
    more = f"no choice of this {where} has a predicted divergence that is lower by more than this"
    return HeadlineFigure(title, f"within {percent(allocation['gap'])}", more)


def _price(facts: ReportFacts) -> HeadlineFigure:
    allocation, title = facts.manifest["allocation"], "what 1 % more size would buy"
    price, total = allocation["price_of_one_percent"], facts.loss + facts.manifest["activation_loss"]
    if allocation["status"] == "given":
        return HeadlineFigure(title, "–", "not computed for a given plan")
    if price <= 0 or not total:
        return HeadlineFigure(title, "no gain", "no choice of that size has less predicted divergence")
    more = f"predicted divergence, for {magnitude(facts.original / 100)}B more"
    return HeadlineFigure(title, f"{100 * price / total:.2g} % less", more)


# Notes that say the same of several values, told once.

NAMED = 3  # names that are told before the others are counted, or folded away


@dataclass(frozen=True)
class NoteGroup:
    """A message of a step. count: of the notes that say it; subjects: the values that they are about."""

    step: str
    message: str
    count: int
    subjects: tuple[str, ...]


def groups(notes: Sequence[Mapping[str, Any]]) -> list[NoteGroup]:
    """In the order of the first note of each."""
    result: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        result.setdefault((note["step"], note["message"]), []).append(note["subject"])
    return [
        NoteGroup(step, message, len(subjects), tuple(filter(None, subjects)))
        for (step, message), subjects in result.items()
    ]
