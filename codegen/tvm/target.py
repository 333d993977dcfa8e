"""Building the cpu target: one child process compiles and verifies, so that a crash or a hang is an error message."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc import errors
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.errors import InternalError, TargetError
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.lowered import Lowered
from ptqc.reference import codes_of

DEFAULT_ISA = "avx2"
EDGES = ("lowest", "highest", "zero", "random")
TIME_LIMIT = 1800.0
LAST_LINES = 5


@dataclass(frozen=True)
class Native:
    """The library and what is known of it. interface: for whoever loads it; report: for the manifest."""

    library: bytes
    interface: Mapping[str, Any]
    report: Mapping[str, Any]


def build(
    lowered: Lowered,
    exported: Exported,
    samples: Sequence[Feeds],
    isa: str = DEFAULT_ISA,
    time_limit: float = TIME_LIMIT,
) -> Native:
    """Compile a lowered graph and compare the library with the exported file on samples and on edge inputs.

    Raises TargetError when a node has no kernel or TVM fails, VerificationError when anything differs.
    """
    if find_spec("tvm") is None:
        raise TargetError("the cpu target needs Apache TVM: pip install 'ptqc[tvm]'")
    with tempfile.TemporaryDirectory(prefix="ptqc-tvm-") as temporary:
        folder = Path(temporary)
        _write_job(folder, lowered, exported, samples, isa)
        _run(folder, time_limit)
        return Native(
            (folder / "model.so").read_bytes(),
            json.loads((folder / "interface.json").read_text()),
            json.loads((folder / "report.json").read_text()),
        )


def _write_job(folder: Path, lowered: Lowered, exported: Exported, samples: Sequence[Feeds], isa: str) -> None:
    taps = {name: exported.renamed[name] for name in _compared(lowered) if name in exported.renamed}
    inside = [str(v.name) for node in lowered.model.graph for v in node.outputs if v.name]
    shapes = {name: value.shape for name, value in Runner(lowered.model, inside).run(samples[0]).items()}
    shapes |= {name: value.shape for name, value in samples[0].items()}
    runner = Runner(exported.proto, list(taps.values()))
    for index, feeds in enumerate([*samples, *_edges(samples)]):
        found = runner.run(feeds)
        values = {**feeds, **{name: found[short] for name, short in taps.items()}}
        np.savez(folder / f"values-{index:03}.npz", **values)  # type: ignore[arg-type]
    ir.save(lowered.model, folder / "lowered.onnx")
    job = {
        "isa": isa,
        "formats": {name: str(form) for name, form in lowered.formats.items()},
        "layer_constants": dict(lowered.layer_constants),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
    }
    (folder / "job.json").write_text(json.dumps(job))


def _compared(lowered: Lowered) -> list[str]:
    """Codes, outputs, and what float operators make; not what an integer kernel only passes through."""
    found = [str(value.name) for value in lowered.model.graph.outputs]
    for node in lowered.model.graph:
        for value in node.outputs:
            reads_codes = any(codes_of(v) for v in node.inputs)
            is_real = value.dtype == ir.DataType.FLOAT and node.op_type != "DequantizeLinear" and not reads_codes
            if value.dtype == ir.DataType.UINT8 or is_real:
                found.append(str(value.name))
    return list(dict.fromkeys(found))


def _edges(samples: Sequence[Feeds]) -> Iterator[Feeds]:
    """Inputs at the ends of what was seen, at zero, and random in between."""
    random = np.random.default_rng(0)
    lows = {name: min(float(feeds[name].min()) for feeds in samples) for name in samples[0]}
    highs = {name: max(float(feeds[name].max()) for feeds in samples) for name in samples[0]}
    for edge in EDGES:
        made = {}
        for name, value in samples[0].items():
            low, high = lows[name], highs[name]
            filler = {"lowest": low, "highest": high, "zero": 0.0}.get(edge)
            array = random.uniform(low, high, value.shape) if filler is None else np.full(value.shape, filler)
            made[name] = array.astype(value.dtype)
        yield made


def _run(folder: Path, time_limit: float) -> None:
    command = [sys.executable, "-m", "ptqc.codegen.tvm.worker", str(folder)]
    environment = {**os.environ, "TVM_BIND_THREADS": "0", "TVM_NUM_THREADS": str(os.cpu_count() or 1)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=time_limit, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"TVM did not finish within {time_limit:.0f} s; leave the cpu target out") from error
    problem = folder / "error.json"
    if problem.is_file():
        told = json.loads(problem.read_text())
        raise getattr(errors, told["kind"], InternalError)(told["message"])
    if done.returncode != 0 or not (folder / "report.json").is_file():
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        last = " | ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        raise TargetError(f"TVM failed ({how}): {last}")
