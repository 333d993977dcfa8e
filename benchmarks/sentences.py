"""Sentences of README.md and docs/ that state figures: what the data files in benchmarks/figures say in their place.

`figures.py` writes them. Pages have no marks for these: a sentence is found by its words, and a figure is `{}` there.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from charts import rows
from harness import Row

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
MORE_WORDS = ("thirteen", "fourteen", "fifteen", "sixteen")
# Packed files that load in less of the int8 file's time than this are counted apart.
LEAST_TIME = 3.0
FIGURE = r"([-+]?\w[\w.,]*)"
INT8, INT4, OPENVINO, HTP, LITERT = "int8", "int4-weights", "OpenVINO", "Qualcomm HTP", "LiteRT"


@dataclass(frozen=True)
class Sentence:
    """words: with `{}` for each figure. figures: what the data say, in order."""

    document: str
    words: str
    figures: Callable[[], Sequence[str]]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in self.words.split("{}"))
        return re.compile(FIGURE.join(parts))

    def stated(self, text: str) -> list[str] | None:
        """The figures in a document; None where it has no such sentence."""
        found = self._pattern.search(text)
        return None if found is None else list(found.groups())

    def place(self, text: str, figure: int) -> slice:
        """Where a figure stands in a document that has the sentence."""
        found = self._pattern.search(text)
        assert found is not None
        return slice(*found.span(figure + 1))

    def written(self, text: str) -> str:
        """A document with the figures of the data in this sentence, wrapped as it was."""
        found = self._pattern.search(text)
        if found is None:
            return text
        end, parts = found.start(), list[str]()
        for place, figure in enumerate(self.figures(), 1):
            parts += [text[end : found.start(place)], figure]
            end = found.end(place)
        return text[: found.start()] + "".join(parts) + text[end:]


def word(count: int) -> str:
    """A small count as a sentence has it."""
    known = (*WORDS, *MORE_WORDS)
    return known[count] if count < len(known) else str(count)


def spread(values: Sequence[float], digits: int = 0) -> tuple[str, str]:
    """The least and the largest."""
    return f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"


def of_int8(key: str) -> list[float]:
    """Of packed files at every budget, load time or memory as a multiple of the int8 file's."""
    return [row[key] for row in rows("loading") if row["file"] == "packed"]


def expanded() -> tuple[str, str]:
    """Networks at 13 %, and those whose expanded file loads faster than the int8 file."""
    times = [row["load_of_int8"] for row in rows("loading") if (row["file"], row["budget"]) == ("expanded", "13%")]
    return word(len(times)), word(sum(time < 1 for time in times))


def packed() -> tuple[str, ...]:
    """Memory and time of packed files; one network has a large float embedding and is left out of the time."""
    slow = [time for time in of_int8("load_of_int8") if time >= LEAST_TIME]
    few = {row["task"] for row in rows("loading") if row["file"] == "packed" and row["load_of_int8"] < LEAST_TIME}
    return (*spread(of_int8("memory_of_int8")), word(len(few)), *spread(slow))


def in_runtime(name: str) -> list[Row]:
    """Rows of a runtime, all of its releases."""
    return [row for row in rows("runtimes") if row["runtime"].startswith(name)]


def diverged(name: str) -> tuple[str, str]:
    """What outputs diverge in a runtime, as a multiple of the packed file's divergence."""
    return spread([row["ratio"] for row in in_runtime(name)], 2)


def shares(name: str) -> tuple[str, str, str]:
    """Bytes of the file as percent of the float model's, but for the smallest network; and those of that one."""
    *others, largest = sorted({row["task"]: row["share_of_float"] for row in in_runtime(name)}.values())
    return (*spread([100 * share for share in others]), f"{100 * largest:.0f}")


def on_npu() -> tuple[str, str]:
    """Percent of the operators that Vela puts on the NPU."""
    return spread([100 * row["npu_share"] for row in in_runtime(LITERT)])


def peer(task: str, name: str) -> Row:
    """One row of the comparison with other tools."""
    (found,) = (row for row in rows("peers") if (row["task"], row["peer"].split()[-1]) == (task, name))
    return found


def lost(task: str, name: str) -> tuple[str, str, str]:
    """Percent of the bytes, and the points that another tool and ptqc lose in these."""
    row = peer(task, name)
    return f"{100 * row['share']:.1f}", f"{-row['difference']:.1f}", f"{-row['ptqc_difference']:.1f}"


def at_4_bits() -> tuple[str, str, str]:
    """The points that recipes with 4-bit weights lose, but for those that search, and the most that ptqc loses."""
    found = [row for row in rows("peers") if row["peer"] in (f"onnxruntime {INT4}", "aimet w4a8")]
    least, most = spread([-row["difference"] for row in found])
    return least, most, word(round(max(-row["ptqc_difference"] for row in found)))


def with_seqmse() -> tuple[str, str]:
    """The points that AIMET loses on ResNet-8 with two kinds of scales."""
    first, second = (peer("mlperftiny_ic_resnet8", name)["difference"] for name in ("w4a8-seqmse", "w4a8"))
    return f"{-first:.1f}", f"{-second:.1f}"


def judged() -> tuple[str, str, str]:
    """Networks, and megabytes of the smallest and the largest."""
    sizes = {row["task"]: row["float_bytes"] / 1e6 for row in rows("accuracy")}
    return word(len(sizes)), f"{min(sizes.values()):.1f}", f"{max(sizes.values()):.0f}"


def beside_int8() -> tuple[str, ...]:
    """Seconds of ONNX Runtime's int8 and of ptqc, and percent by which ptqc's files are smaller."""
    found = [row for row in rows("peers") if row["peer"] == f"onnxruntime {INT8}"]
    smaller = [100 * (1 - row["ptqc_share"] / row["share"]) for row in found]
    times = (spread([row[key] for row in found]) for key in ("seconds", "ptqc_seconds"))
    return (*next(times), word(len(found)), *next(times), *spread(smaller))


def slower() -> tuple[str, str]:
    """Networks that are no faster than in float at 13 %, as tables round it, and all."""
    known = {row["task"] for row in rows("accuracy")}
    ratios = [row["ratio"] for row in rows("latency") if row["budget"] == "13%" and row["task"] in known]
    return word(sum(round(ratio, 2) >= 1 for ratio in ratios)).capitalize(), word(len(ratios))


def accuracy(task: str, *budgets: str) -> Iterator[Row]:
    """Rows of a network."""
    by_budget: Mapping[str, Row] = {row["budget"]: row for row in rows("accuracy") if row["task"] == task}
    return (by_budget[budget] for budget in budgets)


def mobilenet() -> tuple[str, ...]:
    """Points and percent of the same answers of a MobileNetV1 for 1,000 classes."""
    large, small = accuracy("mobilenet_v1_075_224", "25%", "13%")
    figures = ((f"{row['difference']:+.2f}", f"{100 * row['top1_agreement']:.1f}") for row in (large, small))
    return (*next(figures), *next(figures))


SENTENCES = (
    Sentence(
        "docs/deploy/expanding.md", "Of {} networks, {} loaded in less time than ONNX Runtime's own int8", expanded
    ),
    Sentence(
        "docs/deploy/expanding.md",
        "Packed files took {} to {} times the memory of that int8 file and, except for {} network, {} to {} times its",
        packed,
    ),
    Sentence("docs/deploy/qdq.md", "{} to {} % of the float32 file ({} % for a network", lambda: shares(OPENVINO)),
    Sentence("docs/deploy/litert.md", "{} to {} % of the float32 file ({} % for a network", lambda: shares(LITERT)),
    Sentence(
        "docs/deploy/qdq.md",
        "the QDQ model diverged {} to {} times as much as the packed file in OpenVINO, and {} to {} times in the HTP",
        lambda: (*diverged(OPENVINO), *diverged(HTP)),
    ),
    Sentence("docs/deploy/litert.md", "the outputs diverged {} to {} times as much", lambda: diverged(LITERT)),
    Sentence("docs/deploy/litert.md", "Vela put {} to {} % of the operators", on_npu),
    Sentence("docs/start/choosing.md", "but have {} to {} % of the float bytes", lambda: shares(OPENVINO)[:2]),
    Sentence("docs/start/faq.md", "larger: {} to {} % of the", lambda: shares(OPENVINO)[:2]),
    Sentence(
        "docs/start/faq.md",
        "SqueezeNet 1.1 at {} % of its bytes lost {} points of accuracy with ONNX Runtime's 4-bit weights, and {} with",
        lambda: lost("squeezenet1_1", INT4),
    ),
    Sentence(
        "docs/start/faq.md",
        "MobileNetV2 at {} % lost {} and {}. The",
        lambda: lost("mobilenetv2_imagenette", INT4),
    ),
    Sentence(
        "docs/start/choosing.md",
        "`quantize_static` took {} to {} s for {} networks. An earlier version of ptqc took {} to {} s for them, on a "
        "busier machine than above. ptqc's largest files were {} to {} % smaller",
        beside_int8,
    ),
    Sentence(
        "docs/results.md",
        "simple recipes of other tools lost {} to {} points on these networks, and ptqc at most {}:",
        at_4_bits,
    ),
    Sentence("docs/results.md", "SeqMSE lost {} points on ResNet-8, where min/max scales lost {}. Rows", with_seqmse),
    Sentence("docs/results.md", "{} networks with labelled evaluation data, from {} to {} MB", judged),
    Sentence("docs/results.md", "{} of the {} networks are no faster than in float", slower),
    Sentence(
        "docs/start/tutorial.md",
        "A MobileNetV1 for 1,000 classes changed by {} points at 25 % ({} % same answers) and by {} at 13 % ({} % same",
        mobilenet,
    ),
)


def written(document: str, text: str) -> str:
    """A document, by its path in the project, with the figures of the data in its sentences."""
    for sentence in (one for one in SENTENCES if one.document == document):
        text = sentence.written(text)
    return text


def outdated(document: str, text: str) -> Iterator[str]:
    """The sentences of a document whose figures differ from the data, or that it does not have."""
    for sentence in (one for one in SENTENCES if one.document == document):
        stated, measured = sentence.stated(text), list(sentence.figures())
        if stated != measured:
            yield f"{document}: {sentence.words!r} has {stated}, the data say {measured}"
