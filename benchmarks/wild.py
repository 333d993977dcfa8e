"""Compile models that nobody of this project made, as a new user would, and see whether they answer as before.

python benchmarks/wild.py build compile table [--only a,b] [--work build/wild] [--budget 25%] [--timeout 300]
                                              [--out results.json] [--record]

Does the steps that are named: make the models, compile them, print what came of it. --only: models, or families.
--record puts the rows of the table into figures/wild.json.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import ROOT, Column, Feeds, number, percent
from peers import written_bytes
from wild_environments import DATA, fetch, python_of
from wild_judges import Judgement, as_array, judge
from wild_list import SCRIPTS, Model, chosen, listed

Row = dict[str, Any]

AGREES, DIFFERS, REFUSED, FAULT, SLOW, MISSING = "agrees", "DIFFERS", "refused", "FAULT", "TIMED OUT", "not built"
COMPILED, USAGE = 0, 2
REMEDIED, BUDGET = "remedied.onnx", "larger_budget"  # the file or the budget that the message of a refusal asks for
LONGEST_MESSAGE, LONGEST_SHOWN = 300, 160
LONGEST_BUILD = 1800  # seconds: some networks are trained, on one core
COLUMNS = (
    Column("model", "model"),
    Column("family", "family"),
    Column("weights", "weights"),
    Column("exporter", "exporter"),
    Column("opset", "opset"),
    Column("bytes", "float_bytes", number(0)),
    Column("of float", "share_of_float", percent(1)),
    Column("outputs", "outputs"),
    Column("verdict", "verdict"),
    Column("seconds", "seconds", number(0)),
    Column("of processor", "processor_seconds", number(0)),
    Column("note", "note", lambda text: textwrap.shorten(text, LONGEST_SHOWN, placeholder=" …")),
    Column("remedy", "remedy"),
)


# -- building


def build(model: Model, arguments: argparse.Namespace) -> str | None:
    """Make a model and its samples where they are not there yet; why they cannot be made, or None."""
    folder = arguments.work / "models" / model.name
    if (folder / "built").is_file():
        return None
    packages = arguments.work / "packages"
    missing = fetch(packages, [*DATA, *([model.package] if model.package else [])])
    python = python_of(arguments.environments, model.recipe)
    if missing or python is None:
        return missing or f"the environment for {model.recipe} could not be installed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        python,
        "-W",
        "ignore",
        SCRIPTS / "run.py",
        model.recipe,
        model.name,
        packages.absolute(),
        folder.absolute(),
    ]
    return _ran([str(part) for part in command], folder, LONGEST_BUILD)


def _ran(command: Sequence[str], folder: Path, limit: float) -> str | None:
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:g} s"
    if code == 0:
        (folder / "built").touch()
        return None
    return " ".join((folder / "log").read_text(encoding="utf-8", errors="replace").split())[-LONGEST_MESSAGE:]


# -- compiling


def compile_row(model: Model, arguments: argparse.Namespace) -> Row:
    """Compile a model and compare; where it is refused, do what the message says where the recipe could, and again."""
    folder, out = arguments.work / "models" / model.name, arguments.work / "compiled" / model.name
    row: Row = {"model": model.name, "family": model.family, "weights": model.weights}
    row |= {"exporter": model.exporter, "opset": model.opset, "expected_refusal": model.refused}
    if not (folder / "built").is_file():
        return {**row, "verdict": MISSING, "note": "wild.py build says why"}
    row |= attempt(model, folder / "model.onnx", out, arguments)
    if row["verdict"] == REFUSED:
        row |= remedied_row(model, folder, out.with_name(f"{model.name}-remedied"), arguments)
    return row


def remedied_row(model: Model, folder: Path, out: Path, arguments: argparse.Namespace) -> Row:
    """What comes of the remedy that a recipe stored, another file or a larger budget; nothing if it stored none."""
    path, budget = folder / REMEDIED, folder / BUDGET
    if path.is_file():
        row = attempt(model, path, out, arguments)
    elif budget.is_file():
        larger = {**vars(arguments), "budget": budget.read_text(encoding="utf-8")}
        row = attempt(model, folder / "model.onnx", out, argparse.Namespace(**larger))
    else:
        return {}
    return {"remedied": row, "remedy": row["verdict"]}


def attempt(model: Model, path: Path, out: Path, arguments: argparse.Namespace) -> Row:
    """Compile a file in a process of its own and compare what comes out on the samples that were kept aside."""
    row: Row = {"float_bytes": written_bytes(path)}
    out.parent.mkdir(parents=True, exist_ok=True)
    row |= run_compile(command(path, out, arguments), arguments)
    if "note" in row:
        row["note"] = row["note"].replace(f"{path.parent}/", "")
    if row["exit_code"] == COMPILED:
        size = (out / "model.onnx").stat().st_size
        row |= {"bytes": size, "share_of_float": size / row["float_bytes"], "warnings": warnings(out)}
        row |= agreement_row(model, path, out)
        if row["verdict"] == DIFFERS and row["warnings"]:
            row["note"] += f" (the compile warned: {'; '.join(dict.fromkeys(row['warnings']))})"
    return row


def command(path: Path, out: Path, arguments: argparse.Namespace) -> list[str]:
    """What a new user types: the model, its samples, a budget, and how pictures are prepared."""
    folder = path.parent
    calibration = next(path for path in (folder / "calibration.npz", folder / "calibration") if path.exists())
    argv = [str(path), "--calibration", str(calibration), "--budget", arguments.budget]
    options = folder / "options.json"
    argv += json.loads(options.read_text(encoding="utf-8")) if options.is_file() else []
    return [sys.executable, "-m", "ptqc", "compile", *argv, "-o", str(out), "--force"]


def run_compile(argv: Sequence[str], arguments: argparse.Namespace) -> Row:
    """Exit code, seconds, and where nothing was written the verdict and what was said; no earlier compile helps."""
    started, used = time.monotonic(), processor_seconds()
    limits = {"capture_output": True, "text": True, "timeout": arguments.timeout, "check": False}
    try:
        with tempfile.TemporaryDirectory(prefix="wild-cache-") as cache:
            environment = {**os.environ, "PTQC_CACHE": cache, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(argv, env=environment, **limits)
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "seconds": arguments.timeout, "verdict": SLOW, "note": "killed"}
    row: Row = {"exit_code": done.returncode, "seconds": time.monotonic() - started}
    row["processor_seconds"] = processor_seconds() - used
    row |= {"stdout": done.stdout, "stderr": done.stderr}
    if done.returncode != COMPILED:
        row["verdict"] = REFUSED if done.returncode == USAGE else f"{FAULT} (exit {done.returncode})"
        row["note"] = message(done.stderr)
    return row


def processor_seconds() -> float:
    """Time of the processor that all children that have ended took, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def message(stderr: str) -> str:
    """What a compile says when it ends without an artifact, in one line, from its own name on if that is there."""
    text = " ".join(stderr.split())
    return text[max(text.find("ptqc: "), 0) :][:LONGEST_MESSAGE]


def warnings(out: Path) -> list[str]:
    """The notes of an artifact that are warnings."""
    notes = harness.manifest(out)["notes"]
    return [note["message"] for note in notes if note["level"] == "warning"]


# -- comparing


def agreement_row(model: Model, path: Path, out: Path) -> Row:
    """How each output agrees on data that no step saw, and the verdict."""
    outcome = harness.in_child(judged, model, str(path), str(out / "model.onnx"))
    if outcome.value is None:
        return {"verdict": DIFFERS, "note": f"the compiled file does not run: {outcome.error}"}
    judgements: list[Judgement] = outcome.value
    wrong = [f"{one.output}: {one}" for one in judgements if not one.agrees]
    row: Row = {"verdict": DIFFERS if wrong else AGREES, "outputs": ", ".join(map(str, judgements))}
    row["judgements"] = [{**vars(one), "agrees": one.agrees} for one in judgements]
    return {**row, "note": "; ".join(wrong)} if wrong else row


def judged(model: Model, path: str, compiled: str) -> list[Judgement]:
    """The judgements of all outputs; runs in a child."""
    samples = Path(path).with_name("evaluation")
    names, real = outputs(Path(path), samples)
    _, tested = outputs(Path(compiled), samples)
    return judge(model.outputs, names, real, tested)


def outputs(path: Path, samples: Path) -> tuple[list[str], list[list[np.ndarray]]]:
    """Names of a model's outputs, and by output and sample what stock ONNX Runtime gives for it."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), harness.session_options(), providers=["CPUExecutionProvider"])
    answers = [[as_array(one) for one in session.run(None, feeds)] for feeds in feeds_of(samples)]
    return [output.name for output in session.get_outputs()], [list(column) for column in zip(*answers, strict=True)]


def feeds_of(folder: Path) -> Iterator[Feeds]:
    """The samples that a recipe stored, one by one."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as stored:
            yield {name: stored[name] for name in stored.files}


# -- the table


def tally(rows: Sequence[Mapping[str, Any]], least: Mapping[str, int]) -> list[str]:
    """How many of each family agree and how many have to, and how many of all, as lines of text."""
    lines = []
    for family, count in least.items():
        verdicts = [row["verdict"] for row in rows if row["family"] == family]
        agree = verdicts.count(AGREES)
        lines.append(
            f"{family}: {agree} of {len(verdicts)} agree, {count} have to{'' if agree >= count else ' (TOO FEW)'}"
        )
    verdicts = [row["verdict"] for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    return [*lines, f"all {len(rows)}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"]


def stored_rows(models: Sequence[Model], work: Path) -> list[Row]:
    """The rows of all models that were compiled, in the list's order."""
    paths = [work / "rows" / f"{model.name}.json" for model in models]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def store_row(row: Row, work: Path) -> None:
    """Keep a row for the table; another compile of the same model replaces it."""
    (work / "rows").mkdir(parents=True, exist_ok=True)
    (work / "rows" / f"{row['model']}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


def build_all(models: Sequence[Model], arguments: argparse.Namespace) -> None:
    for model in models:
        started = time.monotonic()
        missing = build(model, arguments)
        harness.say(f"{model.name}: {missing or 'built'} ({time.monotonic() - started:.0f} s)")


def compile_all(models: Sequence[Model], arguments: argparse.Namespace) -> None:
    for model in models:
        row = compile_row(model, arguments)
        store_row(row, arguments.work)
        harness.say(f"{model.name}: {row['verdict']} {row.get('outputs', '')} {row.get('note', '')}")


def print_table(models: Sequence[Model], arguments: argparse.Namespace) -> None:
    rows, facts = stored_rows(models, arguments.work), harness.machine()
    harness.write_results(arguments.out, rows, facts)
    if absent := [row["model"] for row in rows if row["verdict"] == MISSING]:
        raise SystemExit(f"not recorded, as these were not built: {', '.join(absent)}")
    if arguments.record:
        about = [column.key for column in COLUMNS if column.key != "model"]
        measured = [
            {"task": row["model"], "budget": arguments.budget, **{key: row[key] for key in about if key in row}}
            for row in rows
        ]
        harness.record(harness.FIGURES / "wild.json", measured, facts)
    harness.print_results(rows, COLUMNS, facts)
    print("", *tally(rows, listed()[1]), sep="\n")


STEPS = {"build": build_all, "compile": compile_all, "table": print_table}


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--only", help="models and families, separated by commas; default: all")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wild", help="where everything is kept")
    parser.add_argument("--environments", type=Path, help="where the exporters are installed; default: in --work")
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one compile may take")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/wild.json")
    arguments = parser.parse_args()
    arguments.environments = arguments.environments or arguments.work / "environments"
    return arguments


def main() -> None:
    arguments = parse()
    for step in arguments.steps:
        STEPS[step](chosen(arguments.only, listed()[0]), arguments)


if __name__ == "__main__":
    main()
