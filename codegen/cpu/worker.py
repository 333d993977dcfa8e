"""The process that runs TVM: a job folder in, a verified library out (`python -m ptqc.codegen.cpu.worker FOLDER`).

Files of a job: `lowered.onnx`, `job.json`, `values-<i>.npz` (one run of ONNX Runtime each). It writes a library for
each instruction set, their weights, interface and kernels, what tuning found, and `report.json`, or `error.json`.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from ptqc.codegen.cpu import cache, isa, lowering, tuning
from ptqc.codegen.cpu.job_files import ERROR, JOB, LOWERED, REPORT, VALUES
from ptqc.codegen.cpu.table import Request, Table, tables_to_json
from ptqc.codegen.program import constants, memory, verify
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.codegen.program.constants import Nibbles, Stored
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.codegen.program.weights import Weights
from ptqc.errors import PtqcError, UsageError
from ptqc.formats import Format
from ptqc.lowered import Lowered
from ptqc.native.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, library_file
from ptqc.native.library import Library
from ptqc.native.runtime import PACKAGE
from ptqc.plan import write_json
from ptqc.store.entries import Store


def telling(work: Callable[[Path], None], folder: Path) -> None:
    """Do a job; every failure that is told on purpose goes to `error.json`."""
    try:
        work(folder)
    except PtqcError as error:
        _write(folder / ERROR, {"kind": type(error).__name__, "message": str(error)})


@dataclass(frozen=True)
class Assignment:
    """What a job says of a network. cpu: names of instruction sets, separated by commas."""

    lowered: Lowered
    seen: Seen
    batching: Batching
    cpu: str
    store: Store | None
    request: Request

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `ptqc.codegen.cpu.jobs.program_job` wrote."""
        job = json.loads((folder / JOB).read_text())
        formats = {name: Format.parse(form) for name, form in job["formats"].items()}
        return cls(
            Lowered(ir.load(folder / LOWERED), formats, {}, {}, job["layer_constants"]),
            Seen.from_json(job["values"]),
            Batching(**job["batching"]),
            job["isa"],
            Store(Path(job["store"])) if job["store"] else None,
            Request.from_json(job["tuning"]),
        )

    def programs(self) -> dict[isa.Isa, Program]:
        """A program for each instruction set."""
        return {
            chosen: lowering.program(self.lowered, self.seen, chosen, self.batching) for chosen in isa.several(self.cpu)
        }


def _work(folder: Path) -> None:
    given = Assignment.read(folder)
    programs, store = given.programs(), given.store
    tables = _tables(programs, given.request, store)
    programs = {chosen: tuning.tuned(program, tables.get(chosen.name, {})) for chosen, program in programs.items()}
    write_all(programs, folder, store)
    listings = {chosen.name: Listing.of(program).to_json() for chosen, program in programs.items()}
    kept = json.loads((folder / JOB).read_text())["kept"]
    _write(folder / KERNELS, {"libraries": listings, **kept})
    reports = [
        {
            **_report(program, chosen),
            **_tuning(tables.get(chosen.name)),
            "verification": _verify(program, chosen, folder),
        }
        for chosen, program in programs.items()
    ]
    _write(folder / REPORT, {"libraries": reports})
    if tables:
        _write(folder / TUNING, tables_to_json(tables))


def _tables(programs: Mapping[isa.Isa, Program], request: Request, store: Store | None) -> Mapping[str, Table]:
    """Cuts of kernels by instruction set, measured or given. Raises UsageError where none given is of these kernels."""
    level = request.level
    if level is not None:
        return {chosen.name: tuning.measure(program, chosen, level, store) for chosen, program in programs.items()}
    if not request.tables:
        return {}
    return {chosen.name: _given(program, chosen, request.tables) for chosen, program in programs.items()}


def _given(program: Program, chosen: isa.Isa, tables: Mapping[str, Table]) -> Table:
    """What is recorded of the kernels of a program."""
    table, own = tables.get(chosen.name, {}), tuning.tunable(program)
    if own and not own.keys() & table.keys():
        raise UsageError(
            f"the tuning that is given records none of this network's {len(own)} kernels for {chosen.name}: it is of "
            f"{', '.join(tables)}, of another network, or of another version; measure with --tune quick"
        )
    return {name: found for name, found in table.items() if name in own}


def write(program: Program, chosen: isa.Isa, folder: Path, store: Store | None = None) -> None:
    """Write the library of a program with its weights and interface."""
    write_all({chosen: program}, folder, store)


def write_all(programs: Mapping[isa.Isa, Program], folder: Path, store: Store | None = None) -> None:
    """Write a library for each instruction set, the best first, and what they share."""
    weights = Weights()
    for chosen, program in programs.items():
        cache.link(program, chosen, folder / library_file(chosen.name), weights, store)
    (folder / WEIGHTS).write_bytes(bytes(weights))
    program = next(iter(programs.values()))
    interface = {
        "libraries": [{"isa": i.name, "machine": i.machine, "features": list(i.features)} for i in programs],
        "tvm": metadata.version(PACKAGE),
        "threads": 0,
        "inputs": [_value(program, name) for name in program.inputs],
        "outputs": [_value(program, name) for name in program.outputs],
    }
    _write(folder / INTERFACE, interface)


def load(folder: Path, program: Program, name: str = "") -> verify.Loaded:
    """Open what `write` wrote. name: of an instruction set, where there are several."""
    return verify.Loaded(Listing.of(program), Library.open(folder, isa=name))


def _verify(program: Program, chosen: isa.Isa, folder: Path) -> dict[str, Any]:
    """Compare the library with what ONNX Runtime computed, where it can run."""
    if refusal := chosen.refusal():
        return {"missing": f"{refusal}: run `ptqc bisect` where it can run"}
    loaded, compared = load(folder, program, chosen.name), verify.Compared()
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
    entry = {"name": program.names.get(name, name), "dtype": program.layouts[name].dtype, "shape": list(shape)}
    return entry | ({"value": program.fixed[name].tolist()} if name in program.fixed else {})


def _report(program: Program, chosen: isa.Isa) -> dict[str, Any]:
    families = Counter(step.built.family for step in program.steps)
    stored = [constant for step in program.steps for constant in step.built.constants]
    return {
        "isa": chosen.name,
        "cpu_features": list(chosen.features),
        "kernels": len({step.built.name for step in program.steps}),
        "steps": dict(sorted(families.items())),
        "constant_bytes": sum(constants.stored_bytes(constant) for constant in stored),
        "loaded_bytes": sum(constants.loaded_bytes(constant) for constant in stored),
        "workspace_bytes": sum(memory.plan(program).sizes),
        "low_bit_weights": "unpacked when the library is loaded" + _exception(stored),
        "roundings_of_float_parts": [step.output for step in program.steps if _rounds(step)],
    }


def _rounds(step: ProgramStep) -> bool:
    """Whether real numbers become codes or bfloat16."""
    return step.built.family == "quantize" or step.built.accuracy.to_bfloat16


def _tuning(table: Table | None) -> dict[str, Any]:
    """How many kernels were looked at, and the times of those that were cut otherwise, as shares of the usual ones."""
    if table is None:
        return {}
    return {"tuned": {"kernels": len(table), "of_first": sorted(t.of_first for t in table.values() if t.of_first < 1)}}


def _exception(stored: Sequence[Stored]) -> str:
    packed = sum(constant.size for constant in stored if isinstance(constant, Nibbles))
    return f", except for {packed:,} bytes that kernels read as they are" if packed else ""


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(write_json(document), encoding="utf-8")


if __name__ == "__main__":
    telling(_work, Path(sys.argv[1]))
