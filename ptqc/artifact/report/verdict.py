"""The first screen: what came out, in a sentence, and its size and time beside the float model's."""

from collections.abc import Callable, Iterator, Sequence

from ptqc.artifact.report.markup import safe
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.artifact.report.scores import scores_of
from ptqc.notes import Level
from ptqc.utils.text import magnitude, number, percent

EQUAL = 0.05  # within this of each other two files are called equally fast


def verdict(facts: ReportFacts) -> str:
    """What it is, how much smaller and faster, what was lost, and whether anything speaks against shipping it."""
    doubts = _doubts(facts)
    kind = "look" if doubts else "fine"
    said = f"{_smaller(facts)} {_lost(facts)} {doubts or _ready(facts)}"
    return f'<div class="verdict {kind}"><p>{safe(said)}</p>\n{"".join(_bars(facts))}</div>\n'


def is_busy(speed: Document) -> bool:
    """Whether what was measured spreads too far to say which of the two files is faster."""
    low, high = speed["low"], speed["high"]
    return bool(low <= 1 <= high and max(high, 1 / low) > 1 + EQUAL)


def is_faster(speed: Document) -> bool | None:
    """Which of two files is faster; None where that is not known, or within what chance changes from run to run."""
    ratio, low, high = (float(speed[name]) for name in ("times_as_fast", "low", "high"))
    if low > 1 and ratio > 1 + EQUAL:
        return True
    return False if high < 1 and 1 / ratio > 1 + EQUAL else None


def _smaller(facts: ReportFacts) -> str:
    times = facts.original / facts.size
    sizes = f"{magnitude(facts.size)}B instead of {magnitude(facts.original)}B"
    size = f"{number(times)} times smaller ({sizes})" if times >= 1 else f"larger than the float model ({sizes})"
    return f"This file is {size}{_faster(facts.times.get('speed'))}."


def _faster(speed: Document | None) -> str:
    if speed is None or is_busy(speed):
        return "; how fast it is could not be measured here"
    ratio, faster = float(speed["times_as_fast"]), is_faster(speed)
    if faster is None:
        return " and as fast in ONNX Runtime"
    return (
        f" and {ratio:.2g} times as fast in ONNX Runtime"
        if faster
        else f", but takes {1 / ratio:.2g} times as long in ONNX Runtime"
    )


def _lost(facts: ReportFacts) -> str:
    results = facts.manifest["results"]
    scores, agreement = scores_of(results), results["top1_agreement"]
    count = results["held_back_samples"]
    samples = "one held-back sample" if count == 1 else f"{count:,} held-back samples"
    if scores is not None:
        what = "" if scores.title == "score" else f" ({scores.title})"
        return f"On your labelled data it scores {scores.after}{what}, where the float model scores {scores.before}."
    if agreement is not None:
        return f"On {samples} it gives the float model's top class {percent(agreement)} of the time."
    return f"On {samples}, quantization error is {results['sqnr_db']:.0f} dB below the signal."


def _doubts(facts: ReportFacts) -> str:
    """What to look at before it is shipped; empty where there is nothing."""
    low = [f for output in facts.manifest["results"].get("outputs", ()) for f in output["figures"] if f["low"]]
    warned = len(facts.warnings)
    if unfit := facts.manifest.get("unfit"):
        return f"It is not fit for use: {unfit[0]}."
    if not (low or warned):
        return ""
    what = [*(figure["text"] for figure in low[:2]), *([_counted(warned)] if warned else [])]
    return f"Look at this before you ship it: {'; '.join(what)}."


def _counted(warnings: int) -> str:
    return "the warning below" if warnings == 1 else f"the {warnings} warnings below"


def _ready(facts: ReportFacts) -> str:
    labelled = facts.manifest["results"]["compiled_score"] is not None
    if not facts.manifest["verification"]["integer_nodes"]:
        return "Every check passed. It computes in float, so it is smaller and not faster."
    more = "" if labelled else "; a score on labelled data of your own would be the last word"
    return f"Every check passed, and nothing speaks against shipping it{more}."


def _bars(facts: ReportFacts) -> Iterator[str]:
    yield _pair("size", [("float", facts.original), ("compiled", facts.size)], lambda size: f"{magnitude(size)}B")
    times = [("float", facts.times.get("float_ms")), ("compiled", facts.times.get("compiled_ms"))]
    known = [(label, float(ms)) for label, ms in times if ms is not None]
    if len(known) == len(times):
        yield _pair("time of one sample, one thread", known, lambda ms: f"{number(ms)} ms")


def _pair(title: str, bars: Sequence[tuple[str, float]], told: Callable[[float], str]) -> str:
    """Bars of one kind under their title, the longest over the whole width."""
    longest = max(value for _, value in bars)
    rows = "".join(
        f'<li><span class="what">{safe(label)}</span><span class="track"><span class="fill {safe(label)}" '
        f'style="width:{100 * value / longest:.1f}%"></span></span><span class="value">{safe(told(value))}</span></li>'
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
    count = sum(note["level"] == Level.WARNING for note in manifest["notes"])
    if count:
        return f"{count} {'warning' if count == 1 else 'warnings'}"
    return "cut short by the time limit" if manifest.get("cut_short") else "ready to ship"
