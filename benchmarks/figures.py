"""Tables, data files and charts of README.md, docs/ and notes/, written from the data files in benchmarks/figures.

python benchmarks/figures.py            writes every table anew, between its marks, and data files and charts
python benchmarks/figures.py --check    names what differs from the data, and ends with 1

`accuracy.py --record` puts its rows there, each with the commit and the machine of the measurement. No figure is
written by hand. A mark is a comment, `figures: NAME`, and the text ends at the next `end of figures`. Figures in
sentences have no mark: `sentences.py` knows the words around them. The rows of most
data files are in docs/data as CSV, too, and `charts.py` draws docs/pictures.
"""

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import agreement
import charts
import compile_time
import concept_figures
import sentences
import time_limits
from charts import rows
from harness import MISSING, ROOT, Column, Row, markdown, number, percent, significant
from loading import COLUMNS as LOADED
from packed_matmuls import COLUMNS as PACKED_MATMULS

MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(\n<!-- end of figures -->)", re.DOTALL)
DOCUMENTS = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("notes/*.md")))
DATA, PICTURES = ROOT / "docs" / "data", ROOT / "docs" / "pictures"
LARGE, SMALL = "25%", "13%"
# Budgets of which notes/formats.md says what the program picks, and how many formats it names.
PICKED, MOST_PICKED = ("13%", "10%", "8%"), 4
# Networks of choosing.md, from the smallest file to the largest.
TIMED = (
    "mlperftiny_kws_dscnn",
    "cifar10_resnet20",
    "cifar10_resnet56",
    "yolox_nano_416",
    "squeezenet1_1",
    "mobilenetv2_imagenette",
)
ACCURACY = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("bytes", "bytes", number(0)),
    Column("of float", "share_of_float", percent(2)),
    Column("of limit", "share_of_limit", percent(2)),
    Column("float", "float"),
    Column("score", "score", number(3)),
    *agreement.COLUMNS,
    Column("seconds", "took"),
    Column("peak MB", "peak_mb", number(0)),
    Column("code", "commit"),
)
LOADING = (*LOADED[:-2], Column("code", "commit"))
COMPAT = (
    Column("file", "task"),
    Column("budget", "budget"),
    Column("ONNX Runtime", "runtime"),
    Column("load ms", "load_ms", number(0)),
    Column("run ms", "run_ms", number(1)),
    Column("integer kernels", "integer_kernels", number(0)),
    Column("layers in float", "float_layers", number(0)),
    Column("not folded", "not_folded", number(0)),
    Column("relative difference", "relative_difference", significant(2)),
    Column("code", "commit"),
)
LATENCY = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("kernels", "kernels"),
    Column("threads", "threads"),
    Column("float ms", "float_ms", number(3)),
    Column("compiled ms", "compiled_ms", number(3)),
    Column("ratio", "ratio", number(2)),
    Column("from", "ratio_low", number(2)),
    Column("to", "ratio_high", number(2)),
    Column("load ms", "load_ms", number(0)),
    Column("code", "commit"),
)


CALIBRATION = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("calibration", "calibration"),
    Column("bytes", "bytes", number(0)),
    Column("score", "score", number(2)),
    *agreement.COLUMNS,
    Column("code", "commit"),
)


PRUNING = (
    Column("task", "task"),
    Column("channels", "order"),
    Column("bytes", "bytes", number(0)),
    Column("score", "score", number(2)),
    *agreement.COLUMNS,
    Column("code", "commit"),
)


FORMATS = (
    Column("network", "task"),
    Column("budget", "budget"),
    Column("measure", "measure"),
    Column("without", "without", significant(3)),
    Column("with", "with", significant(3)),
    Column("ratio", "ratio", number(2)),
    Column("score of float", "float_score", number(2)),
    Column("without", "score without", number(2)),
    Column("with", "score with", number(2)),
)
# What runs a QDQ model, as rows call it; the packed file in ONNX Runtime is what their losses are compared with.
PACKED, LITERT = "ONNX Runtime, packed", "LiteRT"
OF_FILE = ("bytes", "zipped", "samples", "loss, packed")
# What `--formats` was for the files that trellis codes are compared with.
WITHOUT = "int,codebook,pairs,sparse,sparsebook"


def row(name: str, task: str, budget: str) -> Row:
    """The one of a task at a budget."""
    (match,) = (row for row in rows(name) if (row["task"], row["budget"]) == (task, budget))
    return match


def tasks() -> list[str]:
    """Those with an accuracy, in order."""
    return list(dict.fromkeys(str(row["task"]) for row in rows("accuracy")))


def megabytes(size: float) -> str:
    """Bytes as a README has them."""
    return f"{size / 1e6:.2f} MB"


def accuracy() -> str:
    """Every row, with the commit that it was measured at."""
    return markdown([_whole(row) for row in rows("accuracy")], ACCURACY)


def _whole(row: Row) -> Row:
    seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f}"
    return {
        **row,
        "share_of_float": row["bytes"] / row["float_bytes"],
        "float": f"{row['float_score']:.3f} {row['unit']}",
        "took": f"{seconds} ({row['how']})",
    }


def latency() -> str:
    """Every row."""
    return markdown(rows("latency"), LATENCY)


def loading() -> str:
    """Every row: the files of a task, float and int8 first."""
    return markdown(rows("loading"), LOADING)


def compiling() -> str:
    """Every row: a network and a seed."""
    return markdown(rows("compile_time"), (*compile_time.COLUMNS[:-1], Column("code", "commit")))


def limited() -> str:
    """Every row: a network and a limit of time; where no file was delivered, with the error."""
    shown = [{"first_line": row.get("note"), **row} for row in rows("time_limits")]
    return markdown(shown, (*time_limits.COLUMNS[:-1], Column("code", "commit")))


def compat() -> str:
    """Every row: the releases that a file was loaded in, the installed one first."""
    return markdown(rows("compat"), COMPAT)


NETWORK_HEADS: tuple[str, ...] = ("network", "float file", "float score", "25 % of the bytes", "13 % of the bytes")
NETWORK_HEADS += tuple(f"time, {kernels}" for kernels in charts.KERNELS)
# Networks of the README.
SHOWN = (
    "mobilenetv2_imagenette",
    "resnet50v2_c4_imagenette",
    "squeezenet1_1",
    "yolox_nano_416",
    "mlperftiny_kws_dscnn",
)


def networks() -> str:
    """A row for each network: two budgets, and the time at the smaller one."""
    return _table(NETWORK_HEADS, [_of_network(task) for task in tasks()])


def readme() -> str:
    """The same of a few networks."""
    return _table(NETWORK_HEADS, [_of_network(task) for task in SHOWN])


def tutorial() -> str:
    """A network of ten classes at four budgets."""
    measured = [row("accuracy", "mobilenetv2_imagenette", budget) for budget in (LARGE, *SMALLER)]
    heads = ("size", "bytes", "same answer", "loss", f"top-1 accuracy, float {measured[0]['float_score']:.2f} %")
    lines = [
        (
            one["budget"].replace("%", " %"),
            f"{one['bytes']:,}",
            f"{100 * one['top1_agreement']:.1f} %",
            f"{one['kl_nat']:.2g} nat",
            f"{one['score']:.2f} % ({one['difference']:+.2f})",
        )
        for one in measured
    ]
    return _table(heads, lines)


def names() -> str:
    """What networks are called in pages, and in data files."""
    return _table(["in tables", "in data files"], [(name, f"`{task}`") for task, name in charts.NAMES.items()])


def _of_network(task: str) -> tuple[str, ...]:
    large, small = (row("accuracy", task, budget) for budget in (LARGE, SMALL))
    score = f"{large['float_score']:.2f} {large['unit']}"
    ratios = {row["kernels"]: f"{row['ratio']:.2f}" for row in charts.at_13(task)}
    times = (ratios.get(kernels, MISSING) for kernels in charts.KERNELS)
    return task, megabytes(large["float_bytes"]), score, _scored(large), _scored(small), *times


def _scored(row: Row) -> str:
    same = f", {100 * row['top1_agreement']:.1f} % same" if "top1_agreement" in row else ""
    return f"{row['score']:.2f} ({row['difference']:+.2f}){same}"


def times() -> str:
    """How long compiles took, in one sentence."""
    compiles = [row for row in rows("accuracy") if row["how"] == "compile" and row["seconds"] is not None]
    least, most = (choose(compiles, key=lambda row: row["seconds"]) for choose in (min, max))
    return f"A compile took between {_took(least)} and\n{_took(most)} on 2 cores."


def _took(row: Row) -> str:
    return f"{row['seconds']:.0f} s ({row['task']}, {megabytes(row['float_bytes'])})"


def pruning_orders() -> str:
    """Every row."""
    return markdown(rows("pruning_orders"), PRUNING)


def packed_matmuls() -> str:
    """Every row."""
    return markdown(rows("packed_matmuls"), PACKED_MATMULS)


def calibration() -> str:
    """Every row: a network and a budget, with its own samples and with drawn ones."""
    return markdown(rows("calibration"), CALIBRATION)


def formats() -> str:
    """Files with trellis codes and without, and geometric means over networks."""
    usual = {(row["task"], row["budget"]): row for row in rows("accuracy")}
    without = [row for row in rows("formats") if row["formats"] == WITHOUT]
    compared = [_compared(row, usual[row["task"], row["budget"]]) for row in without]
    compared.sort(key=lambda row: (-float(row["budget"][:-1]), row["measure"], row["task"]))
    means = []
    for budget, measure in dict.fromkeys((row["budget"], row["measure"]) for row in compared):
        ratios = [row["ratio"] for row in compared if (row["budget"], row["measure"]) == (budget, measure)]
        about = {"task": f"geometric mean of {len(ratios)}", "budget": budget, "measure": measure}
        means.append({**about, "ratio": geometric_mean(ratios)})
    return markdown([*compared, *means], FORMATS)


def _compared(without: Row, usual: Row) -> Row:
    """Two files of one network and budget."""
    measure, key = ("KL nat", "kl_nat") if usual.get("kl_nat") is not None else ("relative error", "relative_error")
    about = {name: usual[name] for name in ("task", "budget", "float_score")}
    about |= {"measure": measure, "without": without[key], "with": usual[key], "ratio": usual[key] / without[key]}
    return {**about, "score without": without["score"], "score with": usual["score"]}


def runtimes() -> str:
    """Losses of QDQ models in each runtime, beside that of the packed file in ONNX Runtime."""
    measured = _by_network()
    others = [name for name in _runtimes(measured) if name != PACKED and not name.startswith(LITERT)]
    lines = []
    for task, several in measured.items():
        left = max(several[name]["layers_not_on_integers"] for name in others if name in several)
        lines.append([task, *_of_file(several[PACKED], several[PACKED]), *_ratios(several, others), f"{left}"])
    return _table(["network", *OF_FILE, *others, "layers not on integers"], lines)


def tflite() -> str:
    """Losses of TFLite models, and the share of operators on an Ethos-U55."""
    measured = {task: several for task, several in _by_network().items() if any(map(_is_litert, several))}
    others = list(filter(_is_litert, _runtimes(measured)))
    lines = []
    for task, several in measured.items():
        first = several[others[0]]
        share = percent(1)(first["npu_share"])
        lines.append([task, *_of_file(first, several[PACKED]), *_ratios(several, others), share])
    return _table(["network", *OF_FILE, *others, "on Ethos-U55"], lines)


def scores() -> str:
    """Scores of QDQ models above that of the packed file, with paired standard errors."""
    return _scores(lambda runtime: not _is_litert(runtime))


def tflite_scores() -> str:
    """The same of TFLite models."""
    return _scores(_is_litert)


def _scores(is_shown: Callable[[str], bool]) -> str:
    measured = _by_network()
    others = [name for name in _runtimes(measured) if name != PACKED and is_shown(name)]
    lines = []
    for task, several in measured.items():
        packed, shown = several[PACKED], [several.get(name) for name in others]
        if "score" in packed and any(shown):
            both = (f"{packed[key]:.2f}" for key in ("float_score", "score"))
            lines.append([task, packed["unit"], *both, *(_above(row, packed) for row in shown)])
    return _table(["network", "score", "float", "packed", *others], lines)


def _above(row: Row | None, packed: Row) -> str:
    if row is None:
        return "–"
    return f"{row['score_difference']:+.2f} ± {row['score_difference_se']:.2f}{_on_others(row, packed)}"


def _on_others(row: Row, packed: Row) -> str:
    """How many samples a row has if the others have another number; it is compared on its own ones."""
    return "" if row["samples"] == packed["samples"] else f" ({row['samples']} samples)"


def _is_litert(runtime: str) -> bool:
    return runtime.startswith(LITERT)


def _by_network() -> dict[str, dict[str, Row]]:
    """Rows by task and runtime."""
    measured: dict[str, dict[str, Row]] = {}
    for row in rows("runtimes"):
        measured.setdefault(row["task"], {})[row["runtime"]] = row
    return measured


def widths() -> str:
    """The loss by the share of products on 16 bits; behind that of ONNX Runtime, that of the emulator."""
    measured: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows("widths"):
        measured.setdefault((row["task"], row["activations"]), {})[row["runtime"]] = row
    lines = []
    for (task, activations), several in measured.items():
        here = several["ONNX Runtime"]
        there = [_loss(row) for row in several.values() if row is not here]
        share = percent(0)(here["share_wide"])
        lines.append([task, activations, share, f"{here['samples']}", _loss(here), *(there or ["–"])])
    return _table(["network", "activations", "multiplications on 16 bits", "samples", "ONNX Runtime", "HTP"], lines)


def _loss(row: Row) -> str:
    return f"{row['kl_nat']:.3g} nat" if row["kl_nat"] is not None else f"{row['relative_error']:.3g}"


def _runtimes(measured: Mapping[str, Mapping[str, Row]]) -> list[str]:
    return list(dict.fromkeys(name for several in measured.values() for name in several))


def _of_file(row: Row, packed: Row) -> list[str]:
    """What is said of a file, and the loss of the packed one."""
    is_kl = packed.get("kl_nat") is not None
    loss = significant(3)(packed["kl_nat" if is_kl else "relative_error"]) + (" nat" if is_kl else "")
    return [*(percent(1)(row[key]) for key in ("share_of_float", "share_zipped")), f"{row['samples']}", loss]


def _ratios(several: Mapping[str, Row], runtimes: Sequence[str]) -> list[str]:
    packed, shown = several[PACKED], [several.get(name) for name in runtimes]
    return [f"{row['ratio']:.2f}{_on_others(row, packed)}" if row else "–" for row in shown]


# Engines beside which docs/results.md shows native libraries, and the time that they take of it.
ENGINES = {"OpenVINO 2026.4.1, int8": "native_of_openvino_int8", "ONNX Runtime, int8": "native_of_int8"}


def native() -> str:
    """The least and the most time that libraries take of other engines' time, by instructions and threads."""
    measured = {engine: [(row, row[key]) for row in rows("native")] for engine, key in ENGINES.items()}
    one_row = [(row, row["native_of"]) for row in rows("gemv") if row["what"].startswith("MatMulNBits")]
    measured["ONNX Runtime's 4-bit matmul, one row"] = one_row
    columns = {(row["kernels"], row["threads"]): None for row, _ in one_row}
    lines = []
    for engine, ratios in measured.items():
        by_column = ([ratio for row, ratio in ratios if (row["kernels"], row["threads"]) == one] for one in columns)
        lines.append([engine, *(" to ".join(sentences.spread(some, 2)) if some else MISSING for some in by_column)])
    threads = {1: "one thread", 2: "two threads"}
    return _table(["compared with", *(f"{kernels}, {threads[count]}" for kernels, count in columns)], lines)


def large_models() -> str:
    """Memory and time of compiles of models that are not read into memory."""
    lines = [
        [row["task"], f"{row['peak_mib']:,} MiB", f"{row['seconds'] / 60:.0f} minutes"] for row in rows("large_models")
    ]
    return _table(["model", "memory", "time"], lines)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return markdown([dict(zip(heads, line, strict=True)) for line in lines], [Column(head, head) for head in heads])


SMALLER = ("13%", "10%", "8%")


def smaller() -> str:
    """Scores below a quarter of the bytes: a row for each network, a column for each budget."""
    lines = []
    for task in tasks():
        measured = {row["budget"]: row for row in rows("accuracy") if row["task"] == task}
        if SMALLER[1] in measured:
            cells = (_change(measured[budget]) if budget in measured else "–" for budget in SMALLER)
            lines.append([task, measured[SMALL]["unit"], *cells])
    return _table(["network", "score", *(f"{budget[:-1]} % of the bytes" for budget in SMALLER)], lines)


def _change(row: Row) -> str:
    same = f", {100 * row['top1_agreement']:.1f} % same" if "top1_agreement" in row else ""
    return f"{row['difference']:+.2f}{same}"


# Recipes of other tools that docs/results.md shows, and what it calls them.
RECIPES = {
    "onnxruntime int8": "ONNX Runtime, int8",
    "onnxruntime int4-weights": "ONNX Runtime, int4 weights",
    "aimet w8a8": "AIMET, w8a8",
    "aimet w4a8": "AIMET, w4a8",
    "quark int8": "AMD Quark, int8",
    "nncf int8": "NNCF, int8",
    "modelopt int8": "NVIDIA ModelOpt, int8",
}


def peers() -> str:
    """What other tools lose, and ptqc in no more bytes."""
    by_peer = {(row["task"], row["peer"]): row for row in rows("peers")}
    lines = []
    for task, peer in ((task, peer) for task in charts.COMPARED for peer in RECIPES if (task, peer) in by_peer):
        row = by_peer[task, peer]
        ours = f"{row['ptqc_difference']:+.2f}, {100 * row['ptqc_top1_agreement']:.1f} % same"
        theirs = f"{row['difference']:+.2f}, {100 * row['top1_agreement']:.1f} % same"
        share, our_share = (percent(1)(row[key]) for key in ("share_of_float", "ptqc_share_of_float"))
        lines.append([task, RECIPES[peer], share, theirs, our_share, ours])
    return _table(["network", "tool", "bytes", "score", "ptqc: bytes", "ptqc: score"], lines)


def loading_short() -> str:
    """Load time and memory at 13 %, packed, expanded and as int8."""
    measured: dict[str, dict[str, Row]] = {}
    for row in rows("loading"):
        if row["budget"] in ("", SMALL):
            measured.setdefault(row["task"], {})[row["file"]] = row
    kinds = ("ONNX Runtime int8", "packed", "expanded")
    lines = [[task, *(_loaded(several.get(kind)) for kind in kinds)] for task, several in measured.items()]
    return _table(["network", *kinds], lines)


def _loaded(row: Row | None) -> str:
    return "–" if row is None else f"{row['load_ms']:.1f} ms, {row['memory_mb']:.1f} MB"


def other_runtimes() -> str:
    """How much more than the packed file the QDQ and TFLite models lose, by runtime."""
    measured = _by_network()
    others = [name for name in _runtimes(measured) if name not in (PACKED, "ONNX Runtime") and "reference" not in name]
    lines = [[task, *_ratios(several, others)] for task, several in measured.items()]
    return _table(["network", *others], lines)


BUDGET_NAMES = {"8bit": "8 bits", "8bit-plain": "8 bits, not packed"}
VECTOR_BOARD = "cortex-m55"


def microcontrollers() -> str:
    """The table of `c_networks` at two budgets."""
    heads = (
        "network",
        "budget",
        "flash, bytes",
        "of CMSIS-NN",
        "arena and stack",
        "M4: of CMSIS-NN",
        "M55: of CMSIS-NN",
    )
    lines = [(*line[:5], line[6], line[8]) for line in _c_networks() if line[1] in (LARGE, SMALL)]
    return _table(heads, lines)


def c_networks() -> str:
    """Networks in C on a Cortex-M4 and a Cortex-M55, beside the 8-bit kernels of CMSIS-NN."""
    heads = ("network", "budget", "flash, bytes", "of theirs", "arena and stack")
    cores = ("M4: instructions", "M4: of theirs", "M55: instructions", "M55: of theirs")
    return _table((*heads, *cores), _c_networks())


FRAME_NETWORKS = {"ds_cnn": "separable, without padding", "tcn": "causal, dilated"}


def c_frames() -> str:
    """Calls that take windows, and calls that take new frames."""
    lines = [
        (
            FRAME_NETWORKS[one["task"]],
            f"{one['frames']} {'frames' if one['frames'] > 1 else 'frame'}",
            *(f"{one[key]:,}" for key in ("memory_bytes", "cortex_m4", "cortex_m55")),
        )
        for one in rows("c_frames")
    ]
    return _table(("convolutions", "a call takes", "RAM, bytes", "M4: instructions", "M55: instructions"), lines)


def _c_networks() -> list[tuple[str, ...]]:
    lines = []
    for one in rows("c_networks"):
        if one["board"] != "cortex-m4":
            continue
        flash, memory = one["constant_bytes"] + one["code_bytes"], one["arena_bytes"] + one["stack_bytes"]
        peer, vectors = (_peer(one["task"], board) for board in (one["board"], VECTOR_BOARD))
        other = next(r for r in rows("c_networks") if _is_twin(r, one))
        theirs = peer["weight_bytes"] + peer["code_bytes"] if peer else None
        lines.append(
            (
                one["task"],
                str(BUDGET_NAMES.get(one["budget"], one["budget"])),
                f"{flash:,}",
                f"{flash / theirs:.2f}" if theirs else "",
                f"{memory:,}",
                f"{one['instructions']:,}",
                f"{one['instructions'] / peer['instructions']:.2f}" if peer else "",
                f"{other['instructions']:,}",
                f"{other['instructions'] / vectors['instructions']:.2f}" if vectors else "",
            )
        )
    networks = list(dict.fromkeys(line[0] for line in lines))
    return sorted(lines, key=lambda line: networks.index(line[0]))


def _is_twin(row: Row, one: Row) -> bool:
    """Whether a row is of the same network on the core with vectors."""
    return bool((row["task"], row["budget"], row["board"]) == (one["task"], one["budget"], VECTOR_BOARD))


def _peer(task: str, board: str) -> Row | None:
    """All layers of a network by CMSIS-NN, built alike."""
    same = task, board, "all", "-O2"
    return next((r for r in rows("cmsis_nn") if (r["task"], r["board"], r["layer"], r["optimization"]) == same), None)


def picks() -> str:
    """The formats that most weights have, by network and budget."""
    recorded = [row for row in rows("accuracy") if "weights_by_format" in row and row["budget"] in PICKED]
    cells: dict[str, dict[str, str]] = {}
    for row in recorded:
        numbers = row["weights_by_format"]
        most = sorted(numbers, key=lambda form: -numbers[form])[:MOST_PICKED]
        shares = (f"{form} {100 * numbers[form] / sum(numbers.values()):.0f} %" for form in most)
        cells.setdefault(row["task"], {"network": row["task"]})[row["budget"]] = ", ".join(shares)
    return markdown([*cells.values()], [Column(head, head) for head in ("network", *PICKED)])


def choosing() -> str:
    """How long a compile takes, and another budget."""
    heads = ("network", "float file", "compile", "peak memory", "another budget")
    timed = []
    for task in TIMED:
        both = (row("accuracy", task, budget) for budget in (LARGE, SMALL))
        compiled, other = sorted(both, key=lambda row: row["how"])  # compile, resolve
        seconds = (f"{row['seconds']:.0f} s" for row in (compiled, other))
        cells = task, megabytes(compiled["float_bytes"]), next(seconds), f"{compiled['peak_mb']:,.0f} MB", next(seconds)
        timed.append(dict(zip(heads, cells, strict=True)))
    return markdown(timed, [Column(head, head) for head in heads])


TEXTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "answers": concept_figures.answers,
    "c-frames": c_frames,
    "c-networks": c_networks,
    "calibration": calibration,
    "loading-short": loading_short,
    "microcontrollers": microcontrollers,
    "other-runtimes": other_runtimes,
    "peers": peers,
    "smaller": smaller,
    "latency": latency,
    "large-models": large_models,
    "loading": loading,
    "native": native,
    "networks": networks,
    "compile-time": compiling,
    "time-limits": limited,
    "compat": compat,
    "readme": readme,
    "times": times,
    "choosing": choosing,
    "pruning-orders": pruning_orders,
    "packed-matmuls": packed_matmuls,
    "formats": formats,
    "picks": picks,
    "runtimes": runtimes,
    "widths": widths,
    "scores": scores,
    "tflite": tflite,
    "tflite-scores": tflite_scores,
    "names": names,
    "tutorial": tutorial,
}
NAME = re.compile(rf"(?<![`\w])({'|'.join(map(re.escape, charts.NAMES))})(?![`\w])")


def text_of(name: str, document: str) -> str:
    """What stands between marks of this name. Pages for users call networks by their usual names, notes by the task."""
    text = TEXTS[name]()
    return text if document.startswith("notes/") else NAME.sub(lambda match: charts.NAMES[match[1]], text)


def written(document: str, text: str) -> str:
    """A document with what stands between marks as the data say."""
    return MARKED.sub(lambda match: match[1] + text_of(match[2], document) + match[4], text)


# Data files whose rows docs/data has as CSV.
TABLES = (
    *("accuracy", "c_frames", "c_networks", "calibration", "compat", "compile_time", "decode", "exports", "formats"),
    *("gemv", "kv_caches", "large_models", "latency", "latency_budgets", "loading", "loss_budgets", "native"),
    *("packed_matmuls", "peers", "runtimes", "scale", "time_limits", "widths", "wild"),
)


def table(name: str) -> str:
    """The rows of a data file as CSV: everything that is one value."""
    every = rows(name)
    keys = [key for key in dict.fromkeys(key for row in every for key in row) if not _is_nested(key, every)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([keys, *([row.get(key) for key in keys] for row in every)])
    return text.getvalue()


def _is_nested(key: str, every: Sequence[Row]) -> bool:
    return any(isinstance(row.get(key), dict | list) for row in every)


def files() -> dict[Path, str]:
    """All files that are written as a whole."""
    tables = {DATA / f"{name}.csv": table(name) for name in TABLES}
    concepts = {PICTURES / f"{name}.svg": draw() for name, draw in concept_figures.DRAWINGS.items()}
    return tables | concepts | {PICTURES / name: text for name, text in charts.drawn()}


def outdated() -> list[str]:
    """What differs from the data: documents and names of texts, and files."""
    differing = []
    for document in DOCUMENTS:
        whole, name_of_page = document.read_text(encoding="utf-8"), document.relative_to(ROOT).as_posix()
        for _, name, text, _ in MARKED.findall(whole):
            if text != text_of(name, name_of_page):
                differing.append(f"{name_of_page}: {name}")
        differing += sentences.outdated(name_of_page, whole)
    stale = (path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text)
    return [*differing, *(str(path.relative_to(ROOT)) for path in stale)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        differing = outdated()
        sys.exit(
            "\n".join(f"{what} differs from the data: run python benchmarks/figures.py" for what in differing) or 0
        )
    for document in DOCUMENTS:
        name_of_page = document.relative_to(ROOT).as_posix()
        text = sentences.written(name_of_page, document.read_text(encoding="utf-8"))
        document.write_text(written(name_of_page, text), encoding="utf-8")
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
