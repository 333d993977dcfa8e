"""Every benchmark that documents take figures from, piece by piece, each of less than an hour.

python benchmarks/all.py [--list] [--only TEXT] [--again] [--minutes 170]
                         [--same-as COMMIT] [--peers FOLDER] [--llama FOLDER] [--cmsis-nn CHECKOUT]

A piece is one call of a benchmark. It runs if it never ran to its end, or if something has changed since that it
depends on: the benchmark, the code that it measures (comments aside), the networks of the project. What ended is noted
at once, so a run that is cut off loses one piece at most. --minutes: after which no piece is started. Pieces that need
what is not at hand are listed with the reason. --same-as: what was measured on the code of that commit stands, since
this code writes the same files, as same_bytes.py shows; the state names both commits.

The state is in figures/all.json: for each piece its commit, date, seconds and result. Benchmarks put rows into the data
files that `figures.py` writes documents from.
"""

import argparse
import ast
import hashlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import harness
from figures import WITHOUT
from harness import FIGURES, RESULTS, ROOT, Column, git, number
from wild_list import listed as foreign_models

STATE, LOGS = FIGURES / "all.json", RESULTS / "all"
# Where artifacts are, in commands: the same in every checkout.
BUILT = RESULTS.relative_to(ROOT)
PASSED, FAILED, STOPPED = "passed", "FAILED", "STOPPED"
LONGEST = 3600  # seconds
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Code by what depends on it.
COMPILE = (
    *("ptqc/api.py", "ptqc/compiler.py", "ptqc/options.py", "ptqc/budget.py", "ptqc/calibration", "ptqc/execution"),
    *("ptqc/formats", "ptqc/frontend", "ptqc/ir", "ptqc/losses", "ptqc/solver", "passes", "codegen/onnxruntime"),
)
CPU = (*COMPILE, "codegen/cpu", "codegen/kernels", "codegen/program", "ptqc/runtime")
CUDA = (*COMPILE, "codegen/cuda", "codegen/kernels", "codegen/program")
FOREIGN = (*COMPILE, "codegen/qdq", "codegen/litert", "codegen/foreign")
MICRO = (*COMPILE, "codegen/c", "codegen/program")
WILD = ("benchmarks/wild", "benchmarks/wild_judges.py", "benchmarks/wild_list.py", "benchmarks/wild_environments.py")
EXPORTED = ("benchmarks/exported_models.py", "benchmarks/wild_environments.py")
COMMON = ("benchmarks/harness.py", "benchmarks/tasks.py", "benchmarks/agreement.py", "models")
NETWORKS = (
    *("cifar10_resnet20", "cifar10_resnet56", "digits_resnet_dw", "espcn_x3_224", "mlperftiny_ad_autoencoder"),
    *("mlperftiny_ic_resnet8", "mlperftiny_kws_dscnn", "mlperftiny_vww_mbv1_025_96", "mobilenet_v1_075_224"),
    *("mobilenetv2_imagenette", "resnet50v2_c4_imagenette", "silero_vad_16k", "squeezenet1_1", "stories260K"),
    "yolox_nano_416",
)
TINY = ("mlperftiny_ad_autoencoder", "mlperftiny_ic_resnet8", "mlperftiny_kws_dscnn", "mlperftiny_vww_mbv1_025_96")
# Networks whose latencies are predicted, and those for which budgets of loss are judged.
PREDICTED = (
    *("cifar10_resnet20", "mlperftiny_ic_resnet8", "mlperftiny_vww_mbv1_025_96", "mobilenet_v1_075_224"),
    *("squeezenet1_1", "yolox_nano_416"),
)
JUDGED = (
    *("cifar10_resnet20", "digits_resnet_dw", "espcn_x3_224", *TINY, "mobilenetv2_imagenette", "silero_vad_16k"),
    *("squeezenet1_1", "stories260K", "tiny_gru_tagger"),
)
# Networks that are compiled without trellis and entropy codes, too, which they are tried with.
COMPARED = (
    *("cifar10_resnet20", "cifar10_resnet56", "digits_resnet_dw", "mlperftiny_ad_autoencoder"),
    *("mlperftiny_vww_mbv1_025_96", "mobilenet_v1_075_224", "mobilenetv2_imagenette", "silero_vad_16k"),
    *("squeezenet1_1", "stories260K", "yolox_nano_416"),
)
# Recipes of other tools by network: all of them for small ones, on which those that search end in minutes.
FEW_RECIPES = "onnxruntime:int8,onnxruntime:int4-weights,aimet:w8a8,aimet:w4a8,quark:int8,nncf:int8,modelopt:int8"
BESIDE = {
    **dict.fromkeys(("mlperftiny_ic_resnet8", "mlperftiny_kws_dscnn"), ""),
    **dict.fromkeys(("cifar10_resnet20", "squeezenet1_1", "mobilenetv2_imagenette"), f" --recipes {FEW_RECIPES}"),
}
# Networks that are compiled with 8 bits everywhere, and those that are compiled without data.
EVEN = (
    *("cifar10_resnet20", "cifar10_resnet56", "mobilenet_v1_075_224", "mobilenetv2_imagenette"),
    *("resnet50v2_c4_imagenette", "squeezenet1_1"),
)
DRAWN = ("cifar10_resnet20", "mlperftiny_ic_resnet8", "mlperftiny_vww_mbv1_025_96")
TIMED = (
    *("mlperftiny_kws_dscnn", "cifar10_resnet20", "mobilenetv2_imagenette", "squeezenet1_1", "yolox_nano_416"),
    "resnet50v2_c4_imagenette",
)


@dataclass(frozen=True)
class Piece:
    """One call of a benchmark.

    command: the script and its arguments, with paths below the checkout. uses: files and folders whose change makes its
    figures old. needs: options of this script that it takes over. reads: artifacts that another piece leaves.
    """

    name: str
    command: str
    uses: tuple[str, ...] = COMPILE
    needs: tuple[str, ...] = ()
    reads: tuple[Path, ...] = ()

    @property
    def script(self) -> str:
        """The file of the benchmark."""
        return f"benchmarks/{shlex.split(self.command)[0]}"


def pieces() -> Iterator[Piece]:
    """All, those that most documents depend on first."""
    for task in NETWORKS:
        # The first is compiled, the others are resolved from it.
        budgets = "13%,25%,16%,10%,8%" if task.startswith("yolox") else "13%,25%,10%,8%"
        yield Piece(f"accuracy {task}", f"accuracy.py --tasks {task} --budgets {budgets} --record")
    for task in TIMED:
        for seed in (0, 1, 2):
            yield Piece(f"compile time {task} {seed}", f"compile_time.py --tasks {task} --seeds {seed} --record")
    for task in NETWORKS:
        artifacts = {budget: BUILT / f"{task}-{harness.slug(budget)}" for budget in ("25%", "13%")}
        both = " ".join(map(str, artifacts.values()))
        loading = f"loading.py --tasks {task} --artifacts {both} --record"
        yield Piece(f"loading {task}", loading, reads=tuple(artifacts.values()))
        for budget, artifact in artifacts.items():
            command = f"latency.py --tasks {task} --artifacts {artifact} --threads 1 --no-score --record {budget}"
            yield Piece(f"latency {task} {budget}", command, needs=("peers",), reads=(artifact,))
    for task in TINY:
        yield Piece(f"c {task}", f"c_networks.py --tasks {task} --budgets 25%,13%,10%,8bit --record", MICRO)
        yield Piece(f"cmsis-nn {task}", f"microcontroller.py --tasks {task} --record", MICRO, needs=("cmsis_nn",))
    yield Piece("frames", "c_frames.py --record", MICRO)
    for task in NETWORKS:
        yield Piece(f"runtimes {task}", f"runtimes.py --tasks {task} --record", FOREIGN)
    for task in ("cifar10_resnet20", "yolox_nano_416"):
        yield Piece(f"widths {task}", f"widths.py --tasks {task} --record", FOREIGN)
    yield Piece("releases", "compat.py --record")
    for task in TIMED:
        yield Piece(f"time limits {task}", f"time_limits.py --tasks {task} --record")
    for task in JUDGED:
        yield Piece(f"loss budgets {task}", f"loss_budgets.py --tasks {task} --record")
    for task, recipes in BESIDE.items():
        command = f"peers.py --tasks {task}{recipes} --timeout 420 --record"
        yield Piece(f"peers {task}", command, (*COMPILE, "benchmarks/peer_recipes"), needs=("peers",))
    for task in COMPARED:
        command = f"accuracy.py --tasks {task} --budgets 13%,10%,8% --formats {WITHOUT} --record-formats"
        yield Piece(f"formats {task}", command)
    for family in dict.fromkeys(model.family for model in foreign_models()[0]):
        command = f"wild.py build compile table --only {family} --record"
        yield Piece(f"wild {family}", command, (*COMPILE, *WILD))
    for task in PREDICTED:
        yield Piece(f"two budgets {task}", f"latency_budgets.py --tasks {task} --record", CPU)
    for task in DRAWN:
        for data in ("real", "synthetic"):
            command = f"accuracy.py --tasks {task} --artifacts {BUILT / data} --calibration {data}"
            yield Piece(f"calibration {task} {data}", f"{command} --record-calibration")
    even = {task: BUILT / "even" / f"{task}-8bit" for task in EVEN}
    for task, artifact in even.items():
        yield Piece(f"even {task}", f"even.py --tasks {task} --tune quick", CPU)
        command = f"latency.py --tasks {task} --artifacts {artifact} --samples 8 --no-score --record-native 8bit"
        yield Piece(f"native {task}", command, CPU, needs=("peers",), reads=(artifact,))
    yield Piece("matrices", "gemv.py --record", CPU)
    yield Piece("estimates", "estimates.py --record")
    yield Piece("parity", f"parity.py --artifacts {BUILT / 'even'} --record", CPU, reads=tuple(even.values()))
    yield Piece("exports", "exports.py --record", (*CPU, *EXPORTED))
    yield Piece("channels", "even_channels.py --record")
    yield Piece("caches", "kv_caches.py --record")
    yield Piece("packed matmuls", "packed_matmuls.py --record")
    for run in (1, 2, 3):
        command = f"decode.py --kv-cache float,float16,int8 --record {run}{' --again' if run > 1 else ''}"
        yield Piece(f"decoder {run}", command, CPU, needs=("llama",))
    built = BUILT / "cuda"
    yield Piece("cuda", f"cuda_verification.py --artifacts {BUILT} --built {built} --record", CUDA)
    yield Piece("scale", "scale.py --record")


def fingerprint(piece: Piece, commit: str = "") -> str:
    """What the figures of a piece follow from: its command and the contents of all files that it uses.

    commit: as they were there; default: as they are.
    """
    paths = sorted({*COMMON, *piece.uses, piece.script})
    listing = ("ls-tree", "-r", "--name-only", "-z", commit) if commit else ("ls-files", "-z")
    files = sorted(os.fsdecode(name) for name in git(*listing, "--", *paths).split(b"\0") if name)
    contents = (content(file, commit) for file in files)
    return hashlib.sha256("\n".join([piece.command, *contents]).encode()).hexdigest()[:16]


@cache
def content(file: str, commit: str = "") -> str:
    """The name of a file and a digest of it; of Python without comments and docstrings."""
    data = git("show", f"{commit}:{file}") if commit else (ROOT / file).read_bytes()
    if file.endswith(".py"):
        tree = ast.parse(data)
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        data = ast.unparse(tree).encode()
    return f"{file} {hashlib.sha256(data).hexdigest()}"


def vouched(all_pieces: Sequence[Piece], state: Mapping[str, Any], same: str, commit: str) -> dict[str, Any]:
    """The state with what was measured on the code of another commit, all of whose files have the same bytes."""
    passed = {piece.name: piece for piece in all_pieces if state.get(piece.name, {}).get("result") == PASSED}
    taken = {name for name, piece in passed.items() if state[name]["fingerprint"] == fingerprint(piece, same)}
    now = {name: {**state[name], "fingerprint": fingerprint(passed[name]), "same_bytes": commit} for name in taken}
    return {**state, **now}


def flag(name: str) -> str:
    """The option of a command line by the name of its value."""
    return f"--{name.replace('_', '-')}"


def why_not(piece: Piece, state: Mapping[str, Any], arguments: argparse.Namespace) -> str | None:
    """Why a piece does not run now, if so."""
    missing = [flag(name) for name in piece.needs if getattr(arguments, name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    known = state.get(piece.name)
    if known and not arguments.again and (known["result"], known["fingerprint"]) == (PASSED, fingerprint(piece)):
        return f"done on {known['commit']}"
    absent = [str(path) for path in piece.reads if not (ROOT / path).exists()]
    return f"needs {', '.join(absent)}, which an earlier piece leaves" if absent else None


def run(piece: Piece, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one piece to its end, or for an hour."""
    LOGS.mkdir(parents=True, exist_ok=True)
    slug = harness.slug(piece.name)
    options = [part for name in piece.needs for part in (flag(name), str(getattr(arguments, name)))]
    out = LOGS / f"{slug}.json"
    script, *stated = shlex.split(piece.command)
    command = [sys.executable, str(ROOT / "benchmarks" / script), *stated, *options, "--out", str(out)]
    began, log = time.monotonic(), LOGS / f"{slug}.txt"
    code = harness.call(command, LONGEST, log)
    result = STOPPED if code is None else FAILED if code else PASSED
    row = {"piece": piece.name, "result": result, "seconds": round(time.monotonic() - began)}
    if result == PASSED:
        return row
    return {**row, "note": harness.describe(RuntimeError(harness.last_line(log)))}


def listed(all_pieces: Sequence[Piece], state: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print each piece with what is known of it."""
    for piece in all_pieces:
        known = state.get(piece.name, {})
        about = f"{known['result']} in {known['seconds']} s on {known['commit']}" if known else "never ran"
        reason = why_not(piece, state, arguments)
        print(f"{piece.name:45} {about}{'' if reason else ' -> to run'}{f' ({reason})' if reason else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the pieces and what is known of them")
    parser.add_argument("--only", default="", help="pieces whose name has this text")
    parser.add_argument("--again", action="store_true", help="pieces that are done, too")
    parser.add_argument("--minutes", type=float, default=170.0, help="after which no piece is started")
    parser.add_argument("--same-as", metavar="COMMIT", default="", help="whose files have the same bytes")
    parser.add_argument("--peers", type=Path, help="where install_peers.py put the other tools")
    parser.add_argument("--llama", type=Path, help="where llama-cpp-python and gguf are installed")
    parser.add_argument("--cmsis-nn", type=Path, help="a checkout of github.com/ARM-software/CMSIS-NN")
    arguments = parser.parse_args()
    state = {row["piece"]: row for row in (harness.recorded(STATE) if STATE.exists() else ())}
    selected = [piece for piece in pieces() if arguments.only in piece.name]
    if arguments.same_as:
        state = vouched(selected, state, arguments.same_as, harness.commit())
        harness.write_recorded(STATE, list(state.values()))
    if arguments.list:
        listed(selected, state, arguments)
        return
    facts, commit, began, rows = harness.machine(), harness.commit(), time.monotonic(), list[dict[str, Any]]()
    for piece in selected:
        if time.monotonic() - began > 60 * arguments.minutes:
            break
        if why_not(piece, state, arguments) is not None:
            continue
        harness.say(piece.name)
        about = {"commit": commit, "fingerprint": fingerprint(piece), "date": str(date.today())}
        rows.append({**run(piece, arguments), **about, "machine": harness.heading(facts)})
        state[piece.name] = rows[-1]
        harness.write_recorded(STATE, [state[each.name] for each in pieces() if each.name in state])
    columns = (Column("piece", "piece"), Column("result", "result"), Column("s", "seconds", number(0)))
    harness.print_results(rows, (*columns, Column("note", "note")), facts)
    sys.exit(any(row["result"] != PASSED for row in rows))


if __name__ == "__main__":
    main()
