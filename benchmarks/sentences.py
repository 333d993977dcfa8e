"""Sentences of README.md and docs/ that state figures: what the data files in benchmarks/figures say in their place.

`figures.py` writes them. Pages have no marks for these: a sentence is found by its words, and a figure is `{}` there.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from charts import KERNELS, at_13, rows
from harness import ROOT, Row

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

    def span(self, text: str) -> tuple[int, int] | None:
        """Where the sentence is in a document."""
        match = self._pattern.search(text)
        return None if match is None else match.span()

    def stated(self, text: str) -> list[str] | None:
        """The figures in a document; None where it has no such sentence."""
        match = self._pattern.search(text)
        return None if match is None else list(match.groups())

    def place(self, text: str, figure: int) -> slice:
        """Where a figure stands in a document that has the sentence."""
        match = self._pattern.search(text)
        assert match is not None
        return slice(*match.span(figure + 1))

    def written(self, text: str) -> str:
        """A document with the figures of the data in this sentence, wrapped as it was."""
        match = self._pattern.search(text)
        if match is None:
            return text
        end, parts = match.start(), list[str]()
        for place, figure in enumerate(self.figures(), 1):
            parts += [text[end : match.start(place)], figure]
            end = match.end(place)
        return text[: match.start()] + "".join(parts) + text[end:]


def word(count: int) -> str:
    """A small count as a sentence has it."""
    known = (*WORDS, *MORE_WORDS)
    return known[count] if count < len(known) else str(count)


def spread(values: Sequence[float], digits: int = 0) -> tuple[str, str]:
    """The least and the largest."""
    return f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"


def loaded(file: str) -> list[Row]:
    """Rows of a kind of file, of networks that ONNX Runtime's tool makes an int8 file of."""
    return [row for row in rows("loading") if row["file"] == file and row["load_of_int8"] is not None]


def of_int8(key: str) -> list[float]:
    """Of packed files at every budget, load time or memory as a multiple of the int8 file's."""
    return [row[key] for row in loaded("packed")]


def expanded() -> tuple[str, str]:
    """Networks at 13 %, and those whose expanded file loads faster than the int8 file."""
    times = [row["load_of_int8"] for row in loaded("expanded") if row["budget"] == "13%"]
    return word(len(times)), word(sum(time < 1 for time in times))


def packed() -> tuple[str, ...]:
    """Memory and time of packed files; one network has a large float embedding and is left out of the time."""
    slow = [time for time in of_int8("load_of_int8") if time >= LEAST_TIME]
    few = {row["task"] for row in loaded("packed") if row["load_of_int8"] < LEAST_TIME}
    return (*spread(of_int8("memory_of_int8")), word(len(few)), *spread(slow))


def in_runtime(name: str) -> list[Row]:
    """Rows of a runtime, all of its releases."""
    return [row for row in rows("runtimes") if row["runtime"].startswith(name)]


def networks_in(name: str) -> str:
    """The number of networks that were run in a runtime."""
    return word(len({row["task"] for row in in_runtime(name)}))


def diverged(name: str) -> tuple[str, str]:
    """What outputs diverge in a runtime, as a multiple of the packed file's divergence."""
    return spread([row["ratio"] for row in in_runtime(name)], 2)


def shares(name: str) -> tuple[str, str, str]:
    """Bytes of the file as percent of the float model's, but for the smallest network; and those of that one."""
    *others, largest = sorted({row["task"]: row["share_of_float"] for row in in_runtime(name)}.values())
    return (*spread([100 * share for share in others]), f"{100 * largest:.0f}")


def on_integers() -> tuple[str, str]:
    """The relative error of YOLOX-nano at 25 % with all activations as integers, and as compiled by default."""
    (integers,) = (row for row in in_runtime("ONNX Runtime, packed") if row["task"] == "yolox_nano_416")
    (usual,) = accuracy("yolox_nano_416", "25%")
    return f"{integers['relative_error']:.2f}", f"{usual['relative_error']:.3f}"


def on_npu() -> tuple[str, str]:
    """Percent of the operators that Vela puts on the NPU."""
    return spread([100 * row["npu_share"] for row in in_runtime(LITERT)])


def peer(task: str, name: str) -> Row:
    """One row of the comparison with other tools."""
    (match,) = (row for row in rows("peers") if (row["task"], row["peer"].split()[-1]) == (task, name))
    return match


def lost(task: str, name: str) -> tuple[str, str, str]:
    """Percent of the bytes, and the points that another tool and ptqc lose in these."""
    row = peer(task, name)
    return f"{100 * row['share_of_float']:.1f}", points(row["difference"]), points(row["ptqc_difference"])


def points(difference: float) -> str:
    """What a score lost."""
    return f"{0 - difference:.1f}"


def at_4_bits() -> tuple[str, str, str]:
    """The points that recipes with 4-bit weights lose, but for those that search, and the most that ptqc loses."""
    selected = [row for row in rows("peers") if row["peer"] in (f"onnxruntime {INT4}", "aimet w4a8")]
    least, most = spread([-row["difference"] for row in selected])
    return least, most, word(round(max(-row["ptqc_difference"] for row in selected)))


def with_seqmse() -> tuple[str, str]:
    """The points that AIMET loses on ResNet-8 with two kinds of scales."""
    first, second = (peer("mlperftiny_ic_resnet8", name)["difference"] for name in ("w4a8-seqmse", "w4a8"))
    return points(first), points(second)


def with_adaround() -> tuple[str, ...]:
    """Percent of the keyword network's bytes and the points that AIMET's AdaRound loses in these, and ptqc's."""
    row = peer("mlperftiny_kws_dscnn", "w4a8-adaround")
    shares = (f"{100 * row[key]:.1f}" for key in ("share_of_float", "ptqc_share_of_float"))
    return next(shares), points(row["difference"]), next(shares), points(row["ptqc_difference"])


def judged() -> tuple[str, str, str]:
    """Networks, and megabytes of the smallest and the largest."""
    sizes = {row["task"]: row["float_bytes"] / 1e6 for row in rows("accuracy")}
    return word(len(sizes)), f"{min(sizes.values()):.1f}", f"{max(sizes.values()):.0f}"


def beside_int8() -> tuple[str, ...]:
    """Seconds of ONNX Runtime's int8 and of ptqc, and percent by which ptqc's files are smaller."""
    selected = [row for row in rows("peers") if row["peer"] == f"onnxruntime {INT8}"]
    smaller = [100 * (1 - row["ptqc_share_of_float"] / row["share_of_float"]) for row in selected]
    theirs, ours = ([row[key] for row in selected] for key in ("seconds", "ptqc_seconds"))
    return (*spread(theirs, 1), word(len(selected)), *spread(ours), *spread(smaller))


def faster() -> tuple[str, ...]:
    """By instructions, networks that are faster than in float at 13 %, by the whole interval, and all."""
    known = {row["task"] for row in rows("accuracy")}
    counts = []
    for kernels in KERNELS:
        most = [row["ratio_high"] for task in known for row in at_13(task) if row["kernels"] == kernels]
        counts += [word(sum(ratio < 1 for ratio in most)), word(len(most))]
    return tuple(counts)


def accuracy(task: str, *budgets: str) -> Iterator[Row]:
    """Rows of a network."""
    by_budget: Mapping[str, Row] = {row["budget"]: row for row in rows("accuracy") if row["task"] == task}
    return (by_budget[budget] for budget in budgets)


def mobilenet() -> tuple[str, ...]:
    """Points and percent of the same answers of a MobileNetV1 for 1,000 classes."""
    large, small = accuracy("mobilenet_v1_075_224", "25%", "13%")
    figures = ((f"{row['difference']:+.2f}", f"{100 * row['top1_agreement']:.1f}") for row in (large, small))
    return (*next(figures), *next(figures))


def in_16_bits() -> tuple[str, ...]:
    """Percent of the products of YOLOX-nano in 16 bits, and its error in 8 bits and with these."""
    selected = [row for row in rows("widths") if (row["task"], row["runtime"]) == ("yolox_nano_416", "ONNX Runtime")]
    wide = {row["activations"]: row for row in selected}
    eight, limited = wide["8 bits"], wide["limit 0.02"]
    errors = (f"{row['relative_error']:.3g}" for row in (eight, limited))
    return f"{100 * limited['share_wide']:.0f}", *errors


def same() -> tuple[str]:
    """Percent of the predictions that each classifier keeps at 13 %, at least."""
    at_13 = (row for row in rows("accuracy") if row["budget"] == "13%" and "top1_agreement" in row)
    return (f"{int(100 * min(row['top1_agreement'] for row in at_13))}",)


def keywords() -> tuple[str]:
    """Kilobytes of the keyword network."""
    (row,) = accuracy("mlperftiny_kws_dscnn", "13%")
    return (f"{row['float_bytes'] / 1e3:.0f}",)


def on_avx512(row: Row) -> bool:
    """Whether a figure of speed is of a processor with AVX-512 VNNI."""
    return str(row["kernels"]) == "AVX-512 VNNI"


def beside_int8_files() -> tuple[str, str]:
    """The time of native libraries on one thread as a multiple of that of ONNX Runtime's int8 files."""
    return spread([row["native_of_int8"] for row in rows("native") if on_avx512(row) and row["threads"] == 1], 2)


def beside_llama() -> tuple[str, ...]:
    """The speed of libraries with caches in float16 and float32 as a multiple of llama.cpp's."""
    runs = [row for row in rows("decode") if row["what"].startswith("llama.cpp")]
    return (*spread([row["float16_of"] for row in runs], 2), *spread([row["library_of"] for row in runs], 2))


def predicted() -> tuple[str, ...]:
    """Of each engine, plans that were predicted closely, all that were timed, and the largest error in percent."""
    result = list[str]()
    for engine in ("cpu", "onnxruntime"):
        budgets = [row for row in rows("latency_budgets") if row["of"] == engine]
        result += [f"{sum(row[key] for row in budgets)}" for key in ("close", "choices")]
        result.append(f"{max(row['largest_error'] for row in budgets):.1f}")
    return tuple(result)


def bounded() -> tuple[str, ...]:
    """Files for a budget of loss, those that were shown to meet it, twice, and those of them that did not."""
    files = [row for row in rows("loss_budgets") if "kept_there" in row]
    shown = [row for row in files if row["shown"] == "yes"]
    missed = sum(row["kept_there"] != "yes" for row in shown)
    return f"{len(files)}", f"{len(shown)}", f"{len(shown)}", f"{missed}"


def of_others() -> tuple[str, ...]:
    """Models of others, and how many agree, do not agree, or were refused."""
    verdicts = [row["verdict"] for row in rows("wild")]
    return f"{len(verdicts)}", *(f"{verdicts.count(verdict)}" for verdict in ("agrees", "DIFFERS", "refused"))


def exported() -> tuple[str, ...]:
    """Transformers that compiled, and those with a library, and with one for texts of any length."""
    exports = rows("exports")
    counts = (sum(row[key] in (True, "yes") for row in exports) for key in ("library", "any_length"))
    return f"{sum(row['verdict'] == 'compiled' for row in exports)}", *map(str, counts)


def without_data() -> tuple[str, str]:
    """The divergence of files that were compiled without data, as a multiple of that of files compiled with data."""
    loss = {(row["task"], row["budget"], row["calibration"]): row["kl_nat"] for row in rows("calibration")}
    ratios = [kl / loss[task, budget, "real"] for (task, budget, data), kl in loss.items() if data == "synthetic"]
    return f"{min(ratios):.2g}", f"{max(ratios):.2g}"


def releases() -> list[str]:
    """Of ONNX Runtime, in which files were run."""
    parts = {tuple(map(int, row["runtime"].split(".")[:2])) for row in rows("compat")}
    return [".".join(map(str, pair)) for pair in sorted(parts)]


def billion() -> tuple[str, str]:
    """Minutes and GiB of the compile of 1.1 billion weights."""
    (row,) = (row for row in rows("large_models") if row["task"].startswith("1.1 billion"))
    return f"{row['seconds'] / 60:.0f}", f"{row['peak_mib'] / 1024:.1f}"


def simulated() -> tuple[str, str]:
    """Hours of 7 billion weights and days of 70 billion on two threads."""
    hours = {row["task"]: row["hours"] for row in rows("scale") if row["workers"] == "2 threads"}
    return f"{hours['7 B']:.0f}", word(round(hours["70 B"] / 24))


def on_workers() -> tuple[str, str]:
    """Hours of 70 billion weights on one worker, and those of reconstruction."""
    (row,) = (r for r in rows("scale") if (r["task"], r["workers"], r["room"]) == ("70 B", 1, "0.25 GiB"))
    return f"{row['hours']:.0f}", f"{row['reconstructing']:.0f}"


def beside_matmuls() -> tuple[str, str]:
    """The time of one row times a matrix as a multiple of that of ONNX Runtime's operator."""
    matmuls = (row for row in rows("gemv") if row["what"].startswith("MatMulNBits"))
    return spread([row["native_of"] for row in matmuls if on_avx512(row)], 2)


def caches() -> tuple[str, str]:
    """What a decoder loses where 25 % of the caches' bytes are chosen for, and where all caches have 4 bits."""
    loss = {row["budget"]: row["both"] for row in rows("kv_caches") if row["task"] == "stories260K"}
    return f"{loss['25%cache']:.3f}", f"{loss['int4']:.2f}"


def pruned() -> tuple[str, ...]:
    """Classifiers with pruned weights, and the points that they lose."""
    real = {row["task"]: row["float_score"] for row in rows("accuracy") if row["unit"] == "top-1 %"}
    selected = [row for row in rows("pruning_orders") if row["order"] == "for pruning" and row["task"] in real]
    return word(len(selected)).capitalize(), *spread([real[row["task"]] - row["score"] for row in selected], 1)


def behind(*families: str, without: str = "") -> tuple[str, str]:
    """By how many dB number formats are worse than ptqc's best at equal bits. without: a network that is left out."""
    with (ROOT / "docs" / "data" / "number_formats.csv").open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["format"].startswith(families)]
    columns = [name for name in table[0] if name not in ("format", "bits", "dB", without)]
    return spread([-float(row[name]) for row in table for name in columns if row[name]], 1)


SENTENCES = (
    Sentence("docs/results.md", "kept at least {} % of the predictions on every classifier", same),
    Sentence("docs/results.md", "The keyword network has only {} kB to begin with", keywords),
    Sentence(
        "docs/results.md",
        "at {} to {} times the speed of llama.cpp with caches in float16. With caches in float32 it ran at {} to {} "
        "times that speed",
        beside_llama,
    ),
    Sentence(
        "docs/results.md",
        "Predicted and measured time differed by less than 5 % for {} of {} plans in the native library (at most {} %) "
        "and for {} of {} in ONNX Runtime (at most {} %).",
        predicted,
    ),
    Sentence(
        "docs/results.md",
        "Of {} files compiled for such a budget, {} were shown to meet it on samples that played no part in the "
        "compile. Of these {}, {} did not meet it",
        bounded,
    ),
    Sentence(
        "docs/guides/choosing-a-budget.md",
        "Of {} files that were shown to meet their budget, {} missed it on the evaluation data",
        lambda: bounded()[2:],
    ),
    Sentence(
        "docs/results.md",
        "{} models that were chosen before the first was compiled: classifiers, detectors, segmentation, OCR, audio, "
        "text, time series, recommenders, scikit-learn. At 25 % of the bytes, {} agree with their float models, {} do "
        "not, and {} were refused",
        of_others,
    ),
    Sentence(
        "docs/results.md",
        "All {} transformers as PyTorch's and optimum's exporters write them compile at 25 %. A native library can be "
        "built for {}: for {} with any text",
        exported,
    ),
    Sentence(
        "docs/results.md",
        "outputs diverged {} to {} times as much as with real samples",
        without_data,
    ),
    Sentence(
        "docs/guides/calibration-data.md",
        "outputs diverged {} to {} times as much as with real samples",
        without_data,
    ),
    Sentence("docs/results.md", "the same integers in ONNX Runtime {}, {}, {} and {}, and", releases),
    Sentence("docs/results.md", "1.1 billion weights (2.2 GB) compiled in {} minutes with {} GiB", billion),
    Sentence("docs/contributing/scale.md", "1.1 billion weights need {} GiB and {} minutes", lambda: billion()[::-1]),
    Sentence(
        "docs/guides/large-models.md",
        "7 billion weights would take about {} hours on two threads, and 70 billion about {} days",
        simulated,
    ),
    Sentence("docs/contributing/scale.md", "it predicts {} hours on one worker and as many", lambda: on_workers()[:1]),
    Sentence("docs/contributing/scale.md", "the compile's own machine: {} of these hours", lambda: on_workers()[1:]),
    Sentence("docs/contributing/kernels.md", "and {} to {} of the time of ONNX Runtime's own 4-bit", beside_matmuls),
    Sentence("docs/guides/faster.md", "it took {} to {} of the time of ONNX Runtime's int8 files", beside_int8_files),
    Sentence(
        "docs/guides/decoders.md",
        "a small decoder lost {} nat over whole texts; packing all of its caches as `int4` lost {} (",
        caches,
    ),
    Sentence(
        "docs/guides/special-formats.md", "{} small classifiers lost {} to {} points at 14 % of the bytes", pruned
    ),
    Sentence(
        "docs/guides/special-formats.md", "integers lose less: {} to {} dB in weights", lambda: behind("FP8 E4M3")
    ),
    Sentence(
        "docs/reference/formats.md",
        "pairs of as many bits are {} to {} dB worse on five",
        lambda: behind("pairs", without="vww"),
    ),
    Sentence("docs/reference/formats.md", "FP8 loses {} to {} dB to it", lambda: behind("FP8 E")),
    Sentence(
        "docs/reference/formats.md",
        "lose {} to {} dB at equal bits on five",
        lambda: behind("NF4", "NVFP4", "MXFP4", without="vww"),
    ),
    Sentence(
        "docs/deploy/expanding.md", "Of {} networks, {} loaded in less time than ONNX Runtime's own int8", expanded
    ),
    Sentence(
        "docs/deploy/expanding.md",
        "Packed files took {} to {} times the memory of that int8 file and, except for {} network, {} to {} times its",
        packed,
    ),
    Sentence("docs/deploy/qdq.md", "{} to {} % of the float32 file ({} % for a network", lambda: shares(OPENVINO)),
    Sentence(
        "docs/deploy/qdq.md",
        "16 bits for {} % of the multiplications reduced the relative error from {} to {} (",
        in_16_bits,
    ),
    Sentence("docs/deploy/litert.md", "{} to {} % of the float32 file ({} % for a network", lambda: shares(LITERT)),
    Sentence(
        "docs/deploy/qdq.md",
        "On {} networks at 25 % with `--activations integer`, the QDQ model diverged {} to {} times as much as the "
        "packed file in OpenVINO, and {} "
        "to {} times in the HTP",
        lambda: (networks_in(OPENVINO), *diverged(OPENVINO), *diverged(HTP)),
    ),
    Sentence(
        "docs/deploy/litert.md",
        "On {} networks at 25 % with `--activations integer`, the outputs diverged {} to {} times as much",
        lambda: (networks_in(LITERT), *diverged(LITERT)),
    ),
    Sentence("docs/results.md", "(YOLOX-nano: a relative error of {} for {})", on_integers),
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
        "`quantize_static` took {} to {} s for {} networks, and ptqc {} to {} s. ptqc's largest files were {} to {} % "
        "smaller",
        beside_int8,
    ),
    Sentence(
        "docs/results.md",
        "simple recipes of other tools lost {} to {} points on these networks, and ptqc at most {}:",
        at_4_bits,
    ),
    Sentence("docs/results.md", "SeqMSE lost {} points on ResNet-8, where min/max scales lost {}.", with_seqmse),
    Sentence(
        "docs/results.md",
        "in {} % of the keyword network's bytes it lost {} points, and ptqc in {} % of them {};",
        with_adaround,
    ),
    Sentence("docs/results.md", "{} networks with labelled evaluation data, from {} to {} MB", judged),
    Sentence(
        "docs/results.md",
        "With AVX-512 VNNI {} of {} networks run faster than in float, with AVX2 {} of {}.",
        faster,
    ),
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
