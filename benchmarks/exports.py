"""Compile transformers as exporters and optimizers write them, and see whether they answer as before.

python benchmarks/exports.py [--only a,b] [--work build/exports] [--budget 25%] [--out results.json] [--list] [--record]

Weights are random; see exported_models.py, which runs in environments of its own below --work. --record puts the rows
into figures/exports.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
from exported_models import EXPORTS, OPTIMUM
from harness import ROOT, Column, number, percent
from wild import message, outputs, run_compile
from wild_environments import environment

RECIPES = Path(__file__).with_name("exported_models.py")
NOT_EXPORTED = "not exported"
FUSED = "com.microsoft"
ATTENTION = ("Attention", "RMSNormalization", "RotaryEmbedding")  # of opset 23
COLUMNS = (
    Column("export", "task"),
    Column("fused operators", "operators"),
    Column("of float", "share_of_float", percent(1)),
    Column("verdict", "verdict"),
    Column("cosine", "cosine", number(5)),
    Column("SNR dB", "snr", number(1)),
    Column("nodes on integers", "on_integers"),
    Column("library", "library"),
    Column("lengths", "lengths"),
    Column("of processor", "processor_seconds", number(0)),
    Column("note", "note"),
)


def rows_of(name: str, arguments: argparse.Namespace) -> list[harness.Row]:
    """The row of one export."""
    folder, out = arguments.work / "models" / name, arguments.work / "compiled" / name
    row: dict[str, Any] = {"task": name, "budget": arguments.budget}
    if (problem := build(name, folder, arguments.work / "environments")) is not None:
        return [{**row, "verdict": NOT_EXPORTED, "note": problem}]
    row["operators"] = special(folder / "model.onnx")
    out.parent.mkdir(parents=True, exist_ok=True)
    row |= run_compile(command(folder, out, arguments), arguments)
    if row["exit_code"] == 0:
        row |= compared(folder, out) | facts_of(out)
    return [row]


def build(name: str, folder: Path, environments: Path) -> str | None:
    """Export in a process of its own where that is not done yet; why it cannot be done, or None."""
    if (folder / "evaluation").is_dir():
        return None
    python = environment(environments, "optimum" if EXPORTS[name].exporter == OPTIMUM else "transformers")
    if python is None:
        return "its packages could not be installed"
    done = subprocess.run([python, RECIPES, name, folder], capture_output=True, text=True, check=False)
    return message(done.stderr[-harness.LONGEST_ERROR :]) if done.returncode else None


def special(path: Path) -> str:
    """The operators of ONNX Runtime's own and of newer opsets, with their numbers."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    counted = Counter(node.op_type for node in nodes if node.domain == FUSED or node.op_type in ATTENTION)
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


def command(folder: Path, out: Path, arguments: argparse.Namespace) -> list[str]:
    """A compile with a native library where one can be had."""
    options = ["compile", folder / "model.onnx", "--calibration", folder / "calibration", "--budget", arguments.budget]
    target = ["--target", "cpu", "--allow-missing-target"]
    return [sys.executable, "-m", "ptqc", *map(str, options), *target, "-o", str(out), "--force"]


def compared(folder: Path, out: Path) -> dict[str, Any]:
    """How the first output of the file agrees in stock ONNX Runtime, on rows that are no padding."""
    samples = folder / "evaluation"
    (real, *_), (compiled, *_) = (outputs(path, samples)[1] for path in (folder / "model.onnx", out / "model.onnx"))
    counted = [seen(path, array) for path, array in zip(sorted(samples.glob("*.npz")), real, strict=True)]
    a, b = (
        np.concatenate([array[mask].ravel() for array, mask in zip(arrays, counted, strict=True)]).astype(np.float64)
        for arrays in (real, compiled)
    )
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    snr = 10 * np.log10((a @ a) / ((a - b) @ (a - b)))
    return {"verdict": "compiled", "cosine": cosine, "snr": snr}


def seen(path: Path, output: np.ndarray) -> Any:
    """What selects the rows of an output that are of no padding."""
    with np.load(path) as feeds:
        mask = feeds.get("attention_mask")
    return mask == 1 if mask is not None and mask.shape == output.shape[:2] else slice(None)


def facts_of(out: Path) -> dict[str, Any]:
    """Size, kernels and what became of the library and of the axes that the model leaves open."""
    manifest = harness.manifest(out)
    share = manifest["file"]["bytes"] / manifest["source"]["bytes"]
    row: dict[str, Any] = {"share_of_float": share, "on_integers": manifest["verification"]["integer_nodes"]}
    document = manifest["targets"]["cpu"]
    if missing := document.get("missing"):
        return {**row, "library": "no", "note": missing}
    lengths = json.loads((out / "cpu" / "interface.json").read_text()).get("lengths", [])
    varying = ", ".join(length["name"] for length in lengths)
    about = {"lengths": varying, "any_length": bool(lengths), "note": document.get("fixed_sizes")}
    return {**row, "library": "yes", **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of exports, with commas between")
    parser.add_argument("--list", action="store_true", help="the names of all")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "exports")
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", action="store_true", help="put the rows into figures/exports.json")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(EXPORTS)
    if arguments.list:
        print("\n".join(names))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = harness.tabulate(names, rows_of, [arguments], COLUMNS, arguments.out)
    if failed := [row["task"] for row in rows if row["verdict"] == NOT_EXPORTED]:
        raise SystemExit(f"not recorded, as these were not exported: {', '.join(failed)}")
    if arguments.record:
        harness.record(harness.FIGURES / "exports.json", rows, harness.machine())


if __name__ == "__main__":
    main()
