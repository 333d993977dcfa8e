"""The process that runs TVM: a job folder in, a verified library out (`python -m ptqc.codegen.tvm.worker FOLDER`).

Files of a job: `lowered.onnx`, `job.json`, `values-<i>.npz` (one run of ONNX Runtime each). It writes the library, its
interface, the listing of its kernels, and `report.json`, or `error.json`.
"""

import json
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.codegen.tvm import cache, constants, isa, lowering, memory, verify
from ptqc.codegen.tvm.batching import Batching, Seen
from ptqc.codegen.tvm.job import ERROR, JOB, LOWERED, REPORT, VALUES
from ptqc.codegen.tvm.listing import Listing
from ptqc.codegen.tvm.program import Program
from ptqc.errors import PtqcError
from ptqc.formats import Format
from ptqc.lowered import Lowered
from ptqc.native import INTERFACE, KERNELS, LIBRARY, PACKAGE, Library, machine
from ptqc.plan import write_json
from ptqc.store import Store


def main(folder: Path) -> None:
    """Do a job; every failure that is told on purpose goes to `error.json`."""
    try:
        _work(folder)
    except PtqcError as error:
        _write(folder / ERROR, {"kind": type(error).__name__, "message": str(error)})


def _work(folder: Path) -> None:
    job = json.loads((folder / JOB).read_text())
    formats = {name: Format.parse(form) for name, form in job["formats"].items()}
    lowered = Lowered(ir.load(folder / LOWERED), formats, {}, {}, job["layer_constants"])
    seen = Seen.from_json(job["values"])
    chosen, batching = isa.named(job["isa"]), Batching(**job["batching"])
    program = lowering.program(lowered, seen, chosen, batching)
    write(program, chosen, folder, Store(Path(job["store"])) if job["store"] else None)
    _write(folder / KERNELS, {**Listing.of(program).to_json(), **job["kept"]})
    _write(folder / REPORT, {**_report(program), "verification": _verify(program, chosen, folder)})


def write(program: Program, chosen: isa.Isa, folder: Path, store: Store | None = None) -> None:
    """Write the library of a program and its interface."""
    cache.link(program, chosen, folder / LIBRARY, store)
    interface = {
        "isa": chosen.name,
        "machine": chosen.machine,
        "features": list(chosen.features),
        "tvm": metadata.version(PACKAGE),
        "threads": 0,
        "inputs": [_value(program, name) for name in program.inputs],
        "outputs": [_value(program, name) for name in program.outputs],
    }
    _write(folder / INTERFACE, interface)


def load(folder: Path, program: Program) -> verify.Loaded:
    """Open what `write` wrote."""
    return verify.Loaded(Listing.of(program), Library.open(folder))


def _verify(program: Program, chosen: isa.Isa, folder: Path) -> dict[str, Any]:
    """Compare the library with what ONNX Runtime computed, where it can run."""
    if chosen.machine != machine():
        return {"missing": f"a library for {chosen.machine} does not run on {machine()}: run `ptqc bisect` there"}
    loaded, compared = load(folder, program), verify.Compared()
    for path in sorted(folder.glob(VALUES.replace("{:03}", "*"))):
        with np.load(path) as values:
            verify.compare(loaded, dict(values), compared)
    return {
        "kernels_compared": compared.kernels,
        "integers_compared": compared.integers,
        "reals_compared": compared.reals,
        "end_to_end_integers": compared.end_to_end,
        "end_to_end_different": compared.different,
    }


def _value(program: Program, name: str) -> dict[str, Any]:
    shape = program.sizes.get(name, (None, *program.layouts[name].shape))
    entry = {"name": name.removesuffix("@outside"), "dtype": program.layouts[name].dtype, "shape": list(shape)}
    return entry | ({"value": program.settled[name].tolist()} if name in program.settled else {})


def _report(program: Program) -> dict[str, Any]:
    families = Counter(step.built.family for step in program.steps)
    stored = [constant for step in program.steps for constant in step.built.constants]
    return {
        "kernels": len({step.built.name for step in program.steps}),
        "steps": dict(sorted(families.items())),
        "constant_bytes": sum(constants.stored_bytes(constant) for constant in stored),
        "workspace_bytes": sum(memory.plan(program).sizes),
        "low_bit_weights": "unpacked when the library is loaded",
        "roundings_of_float_parts": [step.output for step in program.steps if step.built.family == "quantize"],
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(write_json(document), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
