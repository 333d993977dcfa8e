"""What other quantizers give at what bytes, and ptqc in no more bytes; all scored by stock ONNX Runtime.

python benchmarks/install_peers.py FOLDER
python benchmarks/peers.py --peers FOLDER [--tasks a,b] [--recipes onnxruntime:int8,aimet:w4a8] [--samples 256]
                           [--effort 0.1] [--out results.json] [--record]

--record puts the rows into figures/peers.json. It is refused where products of 8-bit numbers saturate: files of other
tools would score less than they do on most machines.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import agreement
import harness
import numpy as np
from accuracy import USUAL, build, infeasible, score_compiled, score_float
from compat import clean
from harness import RESULTS, Column, Feeds, Outcome, in_child, number, percent
from install_peers import interpreter
from tasks import Task, chosen

from ptqc.execution.saturation import saturates
from ptqc.utils.store import write_npz

SCRIPTS = Path(__file__).with_name("peer_recipes")
RECIPES = (
    "onnxsim:float",
    "onnxruntime:int8",
    "onnxruntime:int4-weights",
    "onnxruntime:matmul-int4",
    "aimet:w8a8",
    "aimet:w4a8",
    "aimet:w4a8-adaround",
    "aimet:w4a8-seqmse",
    "aimet:amp",
    "quark:int8",
    "quark:int8-adaround",
    "quark:int8-adaquant",
    "nncf:int8",
    "modelopt:int8",
)
COMPRESSED = 0.6  # of the float bytes: what is not even that much smaller says nothing about a budget
SCORING_THREADS = 1  # nothing is timed here, and threads that wait for one another make a busy machine busier
OF_PTQC = "ptqc_"
DIGITS = 6  # of figures, behind the point
ABSENT, FAILED = "not installed", "ptqc failed"


def file_columns(heading: str, prefix: str = "") -> tuple[Column, ...]:
    """Of a written file: its bytes, how good it is, and how long it took."""
    shown = (
        Column(heading, "bytes", number(0)),
        Column("of float", "share_of_float", percent(2)),
        agreement.DIFFERENCE,
        agreement.SAME_CLASS,
        agreement.DIVERGENCE,
        Column("seconds", "seconds", number(0)),
    )
    return tuple(replace(column, key=prefix + column.key) for column in shown)


COLUMNS = (
    Column("task", "task"),
    Column("peer", "peer"),
    *file_columns("bytes"),
    *file_columns("ptqc bytes", OF_PTQC),
    Column("note", "note"),
)


@dataclass(frozen=True)
class Setting:
    """A task with what every recipe is given, and the float model's score, which may be missing."""

    task: Task
    samples: Path
    real: Outcome
    arguments: argparse.Namespace

    def folder(self, name: str) -> Path:
        """Where a recipe's file is put, or ptqc's for the same bytes."""
        return Path(self.arguments.artifacts) / f"{self.task.name}-{harness.slug(name)}"


def pack(samples: Iterable[Feeds]) -> dict[str, np.ndarray]:
    """Samples as named arrays, which the recipes take apart again; shapes may differ between samples."""
    return {f"{number}:{name}": array for number, feeds in enumerate(samples) for name, array in feeds.items()}


def written_bytes(model: Path) -> int:
    """Bytes on disk of a model file and of the files that it keeps tensors in."""
    import onnx

    tensors = onnx.load(model, load_external_data=False).graph.initializer
    outside = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return model.stat().st_size + sum((model.parent / name).stat().st_size for name in outside)


def answer(stdout: str, stderr: str, code: int) -> dict[str, Any]:
    """What a recipe's process says on its last line, or why it says nothing; an error becomes the row's note."""
    try:
        document: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = " ".join(stderr.split())[-harness.LONGEST_ERROR :]
        return {"note": f"failed: ended with exit code {code}: {last}"}
    if "error" in document:
        document["note"] = f"failed: {document.pop('error')[: harness.LONGEST_ERROR]}"
    return document


def quantize(recipe: str, setting: Setting, target: Path) -> dict[str, Any]:
    """Run a recipe in its peer's environment."""
    peer, name = recipe.split(":")
    python = interpreter(setting.arguments.peers, peer)
    if not python.is_file():
        return {"note": ABSENT}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # an earlier run's file must not pass for this one's
    source = target.with_name("source.onnx")  # a copy: ModelOpt writes to the file that it is given
    shutil.copyfile(setting.task.path, source)
    script = SCRIPTS / f"{peer}_recipes.py"
    parameters = (source.absolute(), setting.samples, target.absolute(), setting.arguments.effort)
    command = [python.absolute(), "-W", "ignore", script, name, *parameters]
    limit = setting.arguments.timeout
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            env=clean(),
            cwd=target.parent,  # some peers write reports where they run
        )
    except subprocess.TimeoutExpired:
        return {"note": f"failed: stopped after {limit:g} s"}
    return answer(done.stdout, done.stderr, done.returncode)


def peer_row(recipe: str, setting: Setting) -> dict[str, Any]:
    """A peer's file: how large, how good, how long it took."""
    target = setting.folder(recipe) / "model.onnx"
    row = {"task": setting.task.name, "peer": recipe.replace(":", " "), **quantize(recipe, setting, target)}
    if "seconds" not in row:
        return row
    if not target.is_file():
        return {**row, "note": "failed: no file was written"}
    return joined({**row, **sized(written_bytes(target), setting.task)}, scored(target, setting))


def ptqc_row(size: int, earlier: str | None, setting: Setting) -> dict[str, Any]:
    """ptqc in at most so many bytes: compiled, or resolved from what an earlier compile measured."""
    folder = str(setting.folder(f"ptqc-{size}"))
    arguments = setting.arguments
    built = in_child(build, setting.task.name, f"{size}B", folder, earlier, arguments, timeout=arguments.timeout)
    if built.value is None:
        return {"note": f"{FAILED}: {built.error}"}
    if "smallest" in built.value:
        whole = setting.task.path.stat().st_size
        return {"note": f"ptqc {infeasible(built.value['smallest'], whole, built.value['blockers'])}"}
    row = {"seconds": built.value["seconds"], **sized(built.value["bytes"], setting.task)}
    row |= scored(Path(folder) / "model.onnx", setting)
    note = {"note": f"ptqc {row.pop('note')}"} if "note" in row else {}
    return {OF_PTQC + key: value for key, value in row.items()} | {"ptqc_folder": folder} | note


def rounded(value: Any) -> Any:
    """A figure as data files have it."""
    return round(value, DIGITS) if isinstance(value, float) else value


def sized(size: int, task: Task) -> dict[str, Any]:
    """A file's bytes, and their share of the float file's."""
    return {"bytes": size, "share_of_float": size / task.path.stat().st_size}


def scored(model: Path, setting: Setting) -> dict[str, Any]:
    """A file's score and agreement with the float model, or why there is none."""
    outcome = in_child(score_compiled, setting.task.name, str(model), SCORING_THREADS)
    if outcome.value is None:
        return {"note": f"not scored: {outcome.error}"}
    known = {} if setting.real.value is None else {"difference": outcome.value["score"] - setting.real.value}
    return {**outcome.value, **known}


def measure(setting: Setting) -> list[dict[str, Any]]:
    """The rows of one task; peers with as many bytes get the same ptqc file beside them."""
    rows, beside, earlier = list[dict[str, Any]](), dict[int, dict[str, Any]](), None
    for recipe in setting.arguments.recipes.split(","):
        harness.say(f"{setting.task.name} {recipe}")
        row = peer_row(recipe, setting)
        if row.get("share_of_float", 1) < COMPRESSED:
            size = row["bytes"]
            if size not in beside:
                beside[size] = ptqc_row(size, earlier, setting)
                earlier = earlier or beside[size].get("ptqc_folder")
            row = joined(row, beside[size])
        rows.append({**row, "unit": setting.task.unit, "float_score": setting.real.value})
        harness.say(harness.markdown(rows[-1:], COLUMNS).splitlines()[-1])
    return rows


def joined(row: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    """Two parts of a row in one; both notes are kept."""
    notes = [part["note"] for part in (row, beside) if "note" in part]
    return {**row, **beside, **({"note": "; ".join(notes)} if notes else {})}


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="where install_peers.py put them")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="comma-separated PEER:RECIPE; default: all")
    parser.add_argument(
        "--effort", type=float, default=1, help="share of the optimizing steps that each peer recommends"
    )
    parser.add_argument("--artifacts", type=Path, default=RESULTS / "peers", help="where the written files are put")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one recipe or compile may take")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from, too")
    parser.set_defaults(**USUAL, target=None)
    arguments = parser.parse_args()
    if unknown := set(arguments.recipes.split(",")) - set(RECIPES):
        parser.error(f"unknown recipe {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    if arguments.record and saturates():
        parser.error("8-bit files of other tools saturate on this processor: record on one with VNNI")
    return arguments


def main() -> None:
    arguments = parse()
    facts, rows = harness.machine(), list[dict[str, Any]]()
    for task in chosen(arguments.tasks):
        with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as name:
            arguments.cache, samples = name, Path(name) / "samples.npz"
            write_npz(samples, pack(task.calibration(arguments.samples)))
            rows += measure(Setting(task, samples, in_child(score_float, task.name), arguments))
        harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)
    if any(FAILED in row.get("note", "") for row in rows):
        raise SystemExit("not recorded, as ptqc failed")
    if arguments.record:
        tried = [row for row in rows if row.get("note") != ABSENT]
        recorded = [{"budget": "", **{column.key: rounded(row.get(column.key)) for column in COLUMNS}} for row in tried]
        harness.record(harness.FIGURES / "peers.json", recorded, facts, "peer")


if __name__ == "__main__":
    main()
