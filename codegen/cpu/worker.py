"""What processes of jobs do that run TVM for the target cpu: they build and verify libraries, or time them.

Files of a job that builds: `lowered.onnx`, `job.json`, `values-<i>.npz` (one run of ONNX Runtime each). It writes a
library for each instruction set, their weights, interface and kernels, and what tuning found. Files of one that times:
`job.json`, the inputs `values-000.npz`, and a folder for each program, whose library is built there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.codegen.cpu import cores, emulation, isa, package, static_library, tuning
from ptqc.codegen.cpu.backend import CpuBackend
from ptqc.codegen.cpu.static_check import Run
from ptqc.codegen.cpu.table import Request, Table, tables_to_json
from ptqc.codegen.kernels import documents, lowering
from ptqc.codegen.kernels.assignment import Assignment
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.package import module
from ptqc.codegen.kernels.process import JOB, VALUES, write_document
from ptqc.codegen.program import verify
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, Weights
from ptqc.codegen.program.timing import time_libraries
from ptqc.errors import UsageError
from ptqc.ir.lowered import Lowered
from ptqc.runtime.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, Interface, library_file
from ptqc.runtime.library import Library
from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.store import Store


@dataclass(frozen=True)
class CpuOrder:
    """What a job asks for. cpu: names of instruction sets, separated by commas. static: the name of a static library;
    empty where none is wanted.
    """

    assignment: Assignment
    cpu: str
    store: Store | None
    request: Request
    static: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `ptqc.codegen.cpu.jobs.Choices` has."""
        assignment = Assignment.read(folder)
        store = Store(Path(assignment.job["store"])) if assignment.job["store"] else None
        job = assignment.job
        return cls(assignment, job["isa"], store, Request.from_json(job["tuning"]), job["static"])

    def programs(self) -> dict[Isa, Program]:
        """A program for each instruction set."""
        assignment = self.assignment
        return {
            chosen: lowering.program(assignment.lowered, assignment.seen, CpuBackend(chosen), assignment.batching)
            for chosen in isa.several(self.cpu)
        }


def build(folder: Path) -> dict[str, Any]:
    """Build and verify the libraries of a program; what is told of each."""
    order = CpuOrder.read(folder)
    programs, store = order.programs(), order.store
    if order.static:
        static_library.check(programs)
    tables = _tables(programs, order.request, store)
    programs = {chosen: tuning.tuned(program, tables.get(chosen.name, {})) for chosen, program in programs.items()}
    weights = write_all(programs, folder, store)
    listings = {chosen.name: Listing.of(program).to_json() for chosen, program in programs.items()}
    write_document(folder / KERNELS, {"libraries": listings, **order.assignment.job["kept"]})
    archives = static_library.write_archives(order.static, programs, weights, folder, store) if order.static else []
    expected: dict[Isa, list[Run]] = {chosen: [] for chosen in programs}
    reports = [
        {
            **_report(program, order.assignment.lowered, chosen),
            **_tuning(tables.get(chosen.name)),
            "verification": _verify(program, chosen, folder, store, expected[chosen] if archives else None),
        }
        for chosen, program in programs.items()
    ]
    if tables:
        write_document(folder / TUNING, tables_to_json(tables))
    return {"libraries": reports, "static": _static(order.static, archives, expected)}


def _static(
    name: str, archives: Sequence[static_library.Archive], expected: Mapping[Isa, Sequence[Run]]
) -> dict[str, Any] | None:
    """What is told of a static library, which is compared with the shared ones; None where none is wanted."""
    if not archives:
        return None
    documents = [
        {
            "machine": archive.machine,
            "file": archive.path.name,
            "verification": {chosen.name: archive.compare(chosen, expected[chosen]) for chosen in archive.sets},
        }
        for archive in archives
    ]
    return {"name": name, "header": static_library.header_name(name), "archives": documents}


def time(folder: Path) -> dict[str, Any]:
    """Build the libraries of several programs and let them take turns; times of each."""
    job = json.loads((folder / JOB).read_text())
    libraries = [_timed_library(folder / name) for name in job["programs"]]
    with np.load(folder / VALUES.format(0)) as values:
        feeds = dict(values)
    return {"programs": [program.to_json() for program in time_libraries(libraries, feeds, job["seconds"])]}


def _timed_library(folder: Path) -> verify.Loaded:
    """The library of a program, with one thread."""
    order = CpuOrder.read(folder)
    ((chosen, program),) = order.programs().items()
    request = order.request
    if request.level is not None:
        table = tuning.measure(program, chosen, request.level, order.store)
    else:
        table = request.tables.get(chosen.name, {})
    program = tuning.tuned(program, table)
    write(program, chosen, folder, order.store)
    return verify.Loaded(Listing.of(program), Library.open(folder, threads=1))


def _tables(programs: Mapping[Isa, Program], request: Request, store: Store | None) -> Mapping[str, Table]:
    """Cuts of kernels by instruction set, measured or given. Raises UsageError where none given is of these kernels."""
    level = request.level
    if level is not None:
        return {chosen.name: tuning.measure(program, chosen, level, store) for chosen, program in programs.items()}
    if not request.tables:
        return {}
    return {chosen.name: _from_tables(program, chosen, request.tables) for chosen, program in programs.items()}


def _from_tables(program: Program, chosen: Isa, tables: Mapping[str, Table]) -> Table:
    table, kernels = tables.get(chosen.name, {}), tuning.tunable(program)
    if kernels and not kernels.keys() & table.keys():
        raise UsageError(
            f"the tuning has none of this network's {len(kernels)} kernels for {chosen.name}: it is of "
            f"{', '.join(tables)}, of another network, or of another version; measure with --tune quick"
        )
    return {name: result for name, result in table.items() if name in kernels}


def write(program: Program, chosen: Isa, folder: Path, store: Store | None = None) -> None:
    """Write the library of a program with its weights and interface."""
    write_all({chosen: program}, folder, store)


def write_all(programs: Mapping[Isa, Program], folder: Path, store: Store | None = None) -> Weights:
    """Write a library for each instruction set, the best first, and what they share; the file of weights."""
    weights = Weights()
    for chosen, program in programs.items():
        path = folder / library_file(chosen.name)
        package.write_library(module(program, weights, CpuBackend(chosen).loops), chosen, path, store)
    (folder / WEIGHTS).write_bytes(bytes(weights))
    program = next(iter(programs.values()))
    interface = {
        "libraries": [{"isa": i.name, "machine": i.machine, "features": list(i.features)} for i in programs],
        "tvm": metadata.version(PACKAGE),
        "threads": 0,
        **documents.interface(program),
    }
    write_document(folder / INTERFACE, interface)
    return weights


def load(folder: Path, program: Program, name: str = "") -> verify.Loaded:
    """Open what `write` wrote. name: of an instruction set, where there are several."""
    return verify.Loaded(Listing.of(program), Library.open(folder, isa=name))


def _verify(
    program: Program, chosen: Isa, folder: Path, store: Store | None, expected: list[Run] | None = None
) -> dict[str, Any]:
    """Compare the library with what ONNX Runtime computed, where it can run or be emulated.

    expected: gets its runs.
    """
    if refusal := chosen.refusal():
        if reason := emulation.missing(chosen):
            return {"missing": f"{refusal}, and {reason}: run `ptqc bisect` where it can run"}
        with emulation.EmulatedLibrary.open(folder, chosen, store) as library:
            comparison = _compared(verify.Loaded(Listing.of(program), library), folder, expected)
        return {**comparison, "emulator": emulation.EMULATOR}
    return _compared(load(folder, program, chosen.name), folder, expected)


def _compared(loaded: verify.Loaded, folder: Path, expected: list[Run] | None) -> dict[str, Any]:
    if expected is None:
        return documents.verification(loaded, folder)
    declared = Interface.read(folder / INTERFACE)

    def record(values: verify.Values, outputs: verify.Values) -> None:
        names = (value.name for value in declared.outputs)
        feeds = {value.name: values[value.name] for value in declared.inputs}
        expected.append((feeds, dict(zip(names, outputs.values(), strict=True))))

    return documents.verification(loaded, folder, record=record)


def _report(program: Program, lowered: Lowered, chosen: Isa) -> dict[str, Any]:
    times = cores.predicted(program, chosen)
    names = {"isa": chosen.name, "cpu_features": list(chosen.features)}
    return {**names, **documents.figures(program, lowered), **({"predicted_ms": times} if times else {})}


def _tuning(table: Table | None) -> dict[str, Any]:
    """How many kernels were looked at, and the times of those that were cut otherwise, as shares of the usual ones."""
    if table is None:
        return {}
    return {"tuned": {"kernels": len(table), "of_first": sorted(t.of_first for t in table.values() if t.of_first < 1)}}
