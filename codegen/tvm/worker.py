"""The process that runs TVM: a job folder in, a verified library out (`python -m ptqc.codegen.tvm.worker FOLDER`).

Files of a job: `lowered.onnx`, `job.json`, `values-<i>.npz` (one run of ONNX Runtime each). It writes `model.so`,
`interface.json` and `report.json`, or `error.json`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.codegen.tvm import constants, isa, lowering, package, verify
from ptqc.codegen.tvm.program import Program
from ptqc.errors import PtqcError
from ptqc.formats import Format
from ptqc.lowered import Lowered


def main(folder: Path) -> None:
    """Do a job; every failure that is told on purpose goes to `error.json`."""
    try:
        _work(folder)
    except PtqcError as error:
        _write(folder / "error.json", {"kind": type(error).__name__, "message": str(error)})


def _work(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    model = ir.load(folder / "lowered.onnx")
    formats = {name: Format.parse(form) for name, form in job["formats"].items()}
    lowered = Lowered(model, formats, {}, {}, job["layer_constants"])
    shapes = {name: tuple(shape) for name, shape in job["shapes"].items()}
    chosen = isa.named(job["isa"])
    program = lowering.program(lowered, shapes, chosen)
    _write(folder / "interface.json", _interface(model, program, chosen))
    if chosen.kind != "llvm":
        return
    package.link(program, chosen, folder / "model.so")
    compared = verify.Compared()
    loaded = load(folder / "model.so", program)
    for path in sorted(folder.glob("values-*.npz")):
        with np.load(path) as values:
            verify.compare(loaded, dict(values), compared)
    _write(folder / "report.json", _report(program, compared))


def load(path: Path, program: Program) -> verify.Loaded:
    """Open a library that was just built."""
    import tvm

    library = tvm.runtime.load_module(str(path))
    machine = tvm.relax.VirtualMachine(library, tvm.cpu())
    return verify.Loaded(program, lambda name: library.get_function(name, query_imports=True), machine["prepare"]())


def _interface(model: ir.Model, program: Program, chosen: isa.Isa) -> dict[str, Any]:
    names = zip(program.outputs, model.graph.outputs, strict=True)
    return {
        "isa": chosen.name,
        "machine": "x86_64",
        "features": list(chosen.features),
        "threads": 0,
        "inputs": [_value(program, name, name) for name in program.inputs],
        "outputs": [_value(program, name, str(value.name)) for name, value in names],
    }


def _value(program: Program, name: str, called: str) -> dict[str, Any]:
    layout = program.layouts[name]
    return {"name": called, "dtype": layout.dtype, "shape": [None, *layout.shape]}


def _report(program: Program, compared: verify.Compared) -> dict[str, Any]:
    families = Counter(step.built.family for step in program.steps)
    stored = [constant for step in program.steps for constant in step.built.constants]
    return {
        "kernels": len({step.built.name for step in program.steps}),
        "steps": dict(sorted(families.items())),
        "constant_bytes": sum(constants.stored_bytes(constant) for constant in stored),
        "low_bit_weights": "unpacked when the library is loaded",
        "verification": {
            "kernels_compared": compared.kernels,
            "integers_compared": compared.integers,
            "reals_compared": compared.reals,
            "end_to_end_integers": compared.end_to_end,
            "end_to_end_different": compared.different,
        },
        "roundings_of_float_parts": [step.output for step in program.steps if step.built.family == "quantize"],
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
