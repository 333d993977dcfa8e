"""The first screen: what came out, in a sentence, and its size and time beside the float model's."""

from collections.abc import Callable, Iterator, Sequence

from ptqc.artifact.report.budgets import judged_budget, judged_loss, loss_bound
from ptqc.artifact.report.markup import safe, unbroken
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.artifact.report.scores import least_agreement, scores_of
from ptqc.artifact.results import c_sources
from ptqc.notes import Level
from ptqc.passes.allocate.constraints.criteria import SAME
from ptqc.utils.text import magnitude, number, percent

EQUAL = 0.05  # within this of each other two files are called equally fast


def verdict(facts: ReportFacts) -> str:
    """Whether it can be shipped, how much smaller and faster it is, and what was lost."""
    doubts = _doubts(facts.manifest)
    kind, title = ("look", readiness(facts.manifest)) if doubts else ("fine", "ready to ship")
    said = f"{_smaller(facts.manifest, facts.times)} {_lost(facts.manifest)} {doubts or _ready(facts.manifest)}"
    title = f"<strong>{safe(title[:1].upper() + title[1:])}.</strong>"
    return f'<div class="verdict {kind}"><p>{title} {unbroken(said)}</p>\n{"".join(_bars(facts))}</div>\n'


def verdict_line(manifest: Document, times: Document) -> str:
    """The same in one line, for a terminal."""
    results, speed = manifest["results"], times.get("latency")
    parts = [times_smaller(manifest)]
    if speed is not None and is_faster(speed) is not None and not c_sources(manifest):
        ratio = float(speed["speedup"])
        parts.append(f"{ratio:.2f}x as fast" if ratio > 1 else f"{1 / ratio:.2f}x as slow")
    scores, budget = scores_of(results), judged_budget(manifest)
    if scores is not None:
        parts.append(f"{scores.metric} {scores.difference}")
    if budget is not None:
        parts.append(f"top class {judged_loss(budget)}" if budget["unit"] == SAME else judged_loss(budget))
    elif scores is None:
        agreement = results["top1_agreement"]
        noise = f"quantization error {results['sqnr_db']:.0f} dB below the signal"
        parts.append(noise if agreement is None else f"same top class in {100 * agreement:.1f} % of samples")
    return f"{readiness(manifest)}: {', '.join(parts)}"


def is_busy(speed: Document) -> bool:
    """Whether what was measured spreads too far to say which of the two files is faster."""
    low, high = speed["low"], speed["high"]
    return bool(low <= 1 <= high and max(high, 1 / low) > 1 + EQUAL)


def is_faster(speed: Document) -> bool | None:
    """Which of two files is faster; None where that is not known, or within what chance changes from run to run."""
    ratio, low, high = (float(speed[name]) for name in ("speedup", "low", "high"))
    if low > 1 and ratio > 1 + EQUAL:
        return True
    return False if high < 1 and 1 / ratio > 1 + EQUAL else None


def _smaller(manifest: Document, times: Document) -> str:
    before, after = manifest["source"]["bytes"], manifest["file"]["bytes"]
    sizes = f"{magnitude(after)}B instead of {magnitude(before)}B, {percent(after / before)}"
    return f"This file is {times_smaller(manifest).replace('x ', '× ')} ({sizes}){_faster(times.get('latency'))}."


def times_smaller(manifest: Document) -> str:
    """How much smaller: "7.71x smaller"."""
    times = manifest["source"]["bytes"] / manifest["file"]["bytes"]
    return f"{number(times)}x smaller" if times >= 1 else "larger than the float model"


def _faster(speed: Document | None) -> str:
    if speed is None:
        return "; how fast it is could not be measured here"
    if is_busy(speed):
        between = f"{speed['low']:.2f} to {speed['high']:.2f} times as fast"
        return f"; times spread too far to say which is faster ({between})"
    ratio, faster = float(speed["speedup"]), is_faster(speed)
    if faster is None:
        return " and as fast in ONNX Runtime"
    return (
        f" and {number(ratio)}× as fast in ONNX Runtime"
        if faster
        else f", but takes {number(1 / ratio)} times as long in ONNX Runtime"
    )


def _lost(manifest: Document) -> str:
    results = manifest["results"]
    scores, agreement = scores_of(results), results["top1_agreement"]
    count = results["held_back_samples"]
    samples = "one held-back sample" if count == 1 else f"{count:,} held-back samples"
    said = []
    if scores is not None:
        metric = "the score" if scores.metric == "score" else scores.metric
        said.append(f"On your labelled data, {metric} is {scores.after}; {scores.before} for the float model.")
    if (budget := judged_budget(manifest)) is not None:
        what = "Top class: " if budget["unit"] == SAME else "Loss: "
        said.append(f"{what}{judged_loss(budget)}, {loss_bound(budget)}.")
    if said:
        return " ".join(said)
    if agreement is not None:
        bound = least_agreement(results)
        more = f" ({bound})" if bound else ""
        return f"On {samples}, its top class is the float model's in {percent(agreement)}{more}."
    return f"On {samples}, quantization error is {results['sqnr_db']:.0f} dB below the signal."


def _doubts(manifest: Document) -> str:
    """What to look at before it is shipped; empty where there is nothing."""
    low = [f for output in manifest["results"].get("outputs", ()) for f in output["figures"] if f["low"]]
    warned = _warning_count(manifest)
    if unfit := manifest.get("unfit"):
        return f"It is not fit for use: {unfit[0]}."
    if not (low or warned):
        return ""
    what = [*(figure["text"] for figure in low[:2]), *([_counted(warned)] if warned else [])]
    return f"Look at this before you ship it: {'; '.join(what)}."


def _counted(warnings: int) -> str:
    return "the warning below" if warnings == 1 else f"the {warnings} warnings below"


def _ready(manifest: Document) -> str:
    if not manifest["verification"]["integer_nodes"]:
        return "Every check passed. It computes in float, so it is smaller and not faster."
    is_labelled = manifest["results"]["compiled_score"] is not None
    more = "" if is_labelled else " Score it on labelled data of your own as well."
    return f"Every check passed, without warnings.{more}"


def _bars(facts: ReportFacts) -> Iterator[str]:
    yield _pair("size", [("float", facts.original), ("compiled", facts.size)], lambda size: f"{magnitude(size)}B")
    latency = facts.times.get("latency")
    if latency is not None:
        times = [(label, float(latency[f"{label}_ms"])) for label in ("float", "compiled")]
        yield _pair("time of one sample, one thread", times, lambda ms: f"{number(ms)} ms")


def _pair(title: str, bars: Sequence[tuple[str, float]], text: Callable[[float], str]) -> str:
    """Bars of one kind under their title, the longest over the whole width."""
    longest = max(value for _, value in bars)
    rows = "".join(
        f'<li><span class="what">{safe(label)}</span><span class="track"><span class="fill {safe(label)}" '
        f'style="width:{100 * value / longest:.1f}%"></span></span><span class="value">{safe(text(value))}</span></li>'
        for label, value in bars
    )
    return f'<div class="bars"><div class="title">{safe(title)}</div><ul>{rows}</ul></div>'


# The same in a few words, for Python.


def in_short(manifest: Document) -> str:
    """Bytes, share of the float model, and whether it can be shipped."""
    before, after = manifest["source"]["bytes"], manifest["file"]["bytes"]
    return f"{after:,} bytes ({percent(after / before)} of the float model), {readiness(manifest)}"


def readiness(manifest: Document) -> str:
    """Whether a file can be shipped."""
    if manifest.get("unfit"):
        return "not fit for use"
    if count := _warning_count(manifest):
        return f"{count} {'warning' if count == 1 else 'warnings'}"
    return "cut short by the time limit" if manifest.get("cut_short") else "ready to ship"


def _warning_count(manifest: Document) -> int:
    return sum(note["level"] == Level.WARNING for note in manifest["notes"])
