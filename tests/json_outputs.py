"""One real document of every command that prints JSON, of a tiny network: for tests of schemas and of their pages."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from compiling import product, quick, residual, samples

from ptqc.cli.main import main

BUDGETS = ("--budget", "60%", "--budget", "50ms", "--budget", "40MBram", "--budget", "0.5nat")
CHECK = "import sys, onnx; sys.exit(47 if any(n.op_type == 'Gemm' for n in onnx.load(sys.argv[1]).graph.node) else 0)"


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Commands run in this folder, with a store of its own."""
    before, store = Path.cwd(), os.environ.get("PTQC_CACHE")
    os.chdir(folder)
    os.environ["PTQC_CACHE"] = str(folder / "cache")
    try:
        yield
    finally:
        os.chdir(before)
        if store is None:
            del os.environ["PTQC_CACHE"]
        else:
            os.environ["PTQC_CACHE"] = store


def printed(*words: str) -> dict[str, Any]:
    """The document that a command prints."""
    text = io.StringIO()
    with redirect_stdout(text):
        main([*words[:1], "--json", *words[1:]])
    document: dict[str, Any] = json.loads(text.getvalue())
    return document


def collect(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By command; an error is one of "error"."""
    onnx.save(residual(), folder / "net.onnx")
    inputs = samples(3, 8, 8, count=48)
    np.savez(folder / "data.npz", x=inputs)
    labels = np.random.default_rng(0).integers(0, 10, 48)
    np.savez(folder / "labelled.npz", x=inputs, labels=labels)
    onnx.save(product(), folder / "layer.onnx")
    np.savez(folder / "rows.npz", x=samples(16))
    (folder / "check.py").write_text(CHECK, encoding="utf-8")
    data, out = ("--calibration", "data.npz", "--bits", "2,4,7"), ("-o", "out")
    with working_in(folder), quick():
        compiled = printed("compile", "net.onnx", *data, "--budget", "60%", "--labels", "labelled.npz", *out)
        native = printed("compile", "layer.onnx", "--calibration", "rows.npz", "--target", "cpu", "-o", "native")
        budgets = printed("compile", "net.onnx", *data, *BUDGETS, "--samples", "24", "-o", "budgets")
        return {
            "compile": [compiled, budgets, native],
            "resolve": [printed("resolve", "out", "--budget", "50%", "-o", "smaller")],
            "explain": [printed("explain", name) for name in ("out", "budgets")],
            "sweep": [printed("sweep", "out", "--budgets", "60%,40%")],
            "compare": [printed("compare", "net.onnx", "out")],
            "eval": [printed("eval", "net.onnx", "out", "--metric", "top-1", "--data", "labelled.npz")],
            "run": [printed("run", "out", "data.npz", "-o", "outputs.npz")],
            "bench": [printed("bench", "out"), printed("bench", "native")],
            "verify": [printed("verify", "out")],
            "expand": [printed("expand", "out", "-o", "expanded")],
            "bisect": [printed("bisect", "native")],
            "inspect": [printed("inspect", "net.onnx")],
            "doctor": [printed("doctor")],
            "passes": [printed("passes")],
            "cache": [printed("cache", "size"), printed("cache", "clear")],
            "reduce": [
                printed("reduce", "layer.onnx", "-o", "small.onnx", "--", sys.executable, "check.py", "{model}")
            ],
            "error": [
                printed("compile", "absent.onnx", *data, "-o", "never"),
                printed("resolve", "out", "--budget", "1%", "-o", "never"),
                printed("resolve", "budgets", "--budget", "0.000000000001nat", "--strict", "-o", "never"),
            ],
        }
