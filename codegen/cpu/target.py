"""Building the cpu target: one child process compiles and verifies, so that a crash or a hang is an error message."""

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from ptqc import errors
from ptqc.codegen.cpu.isa import several
from ptqc.codegen.cpu.job_files import ERROR, JOB, LOWERED, PROCESS, REPORT, VALUES, WORKER
from ptqc.codegen.cpu.options import DEFAULT_CPU, CpuOptions
from ptqc.codegen.cpu.table import Request
from ptqc.codegen.onnxruntime.census import values
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching, Seen, along_the_batch, run_by_run
from ptqc.codegen.program.edge_inputs import edge_runs, extents
from ptqc.codegen.program.expansion import expanded, is_static
from ptqc.codegen.program.fixed_inputs import fixed_inputs
from ptqc.codegen.program.folding import SIZES, entering
from ptqc.codegen.targets import Target, TargetOutput
from ptqc.errors import InternalError, NoKernel, TargetError
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.graph.nodes import constant
from ptqc.lowered import Lowered
from ptqc.native.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, library_file
from ptqc.native.runtime import INSTALL
from ptqc.operators import is_float
from ptqc.operators.step import codes_of
from ptqc.store.npz import write_npz
from ptqc.work import sandbox
from ptqc.work.scratch import scratch

TIME_LIMIT, LOOK_UP_TIME_LIMIT = 1800.0, 120.0
KNOWN = "ptqc.codegen.cpu.supported"
NO_TUNING = Request()


def is_present() -> bool:
    """Whether TVM is installed."""
    return find_spec("tvm") is not None


def check_present() -> None:
    """Raises TargetError where TVM is not installed."""
    if not is_present():
        raise TargetError(f"the cpu target needs Apache TVM: {INSTALL}")


def check_sizes(row_shapes: Collection[object]) -> None:
    """Raises TargetError for samples of several sizes. row_shapes: those that they have beyond axis 0."""
    if len(row_shapes) > 1:
        raise TargetError(
            f"the cpu target is built for one size of samples, and these have {len(row_shapes)}: give samples of one "
            "size (images with --resize and --crop, or --fit letterbox), or --allow-missing-target, or leave it out"
        )


def build(
    lowered: Lowered,
    exported: Exported,
    samples: Sequence[Feeds],
    folder: Path,
    isa: str = DEFAULT_CPU,
    store: Path | None = None,
    tuning: Request = NO_TUNING,
) -> TargetOutput:
    """Compile a lowered graph and compare the library with the exported file on samples and on edge inputs.

    folder: an empty one for the files. isa: names of instruction sets, separated by commas; each gets a library. store:
    a folder of libraries that were built before. tuning: how kernels get their cuts. Raises TargetError when a node has
    no kernel or TVM fails, VerificationError when anything differs.
    """
    check_present()
    check_sizes({tuple(array.shape[1:] for array in feeds.values()) for feeds in samples})
    lowered = replace(lowered, model=check_model(lowered.model))
    batching = along_the_batch(lowered.model, samples[0])
    if batching is not None:
        with suppress(NoKernel):
            return _build(lowered, exported, samples, Choices(batching, isa, store, tuning), folder)
    batching, samples = run_by_run(lowered.model, exported, samples)
    return _build(lowered, exported, samples, Choices(batching, isa, store, tuning), folder)


def check_model(model: ir.Model) -> ir.Model:
    """The model with operators that have no kernel written out as others. Raises TargetError for what is refused."""
    _check_interface(model)
    found = expanded(model)
    _check_divisors(found)
    return found


def check_kernels(model: ir.Model) -> None:
    """Raises TargetError where the native library cannot take the model, or has no kernel of an operator that it needs.

    Only what is certain is refused: operators that read numbers computed from the model's inputs.
    """
    expanded = check_model(model)
    known = _known()
    for node in _computing(expanded):
        if node.domain or node.op_type not in known:
            raise NoKernel(
                f"the cpu target has no kernel for {node.op_type} {node.outputs[0].name}: the operator is not known to "
                "it; --allow-missing-target delivers the rest"
            )


def _computing(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes that make floats of floats that are not constant."""
    moving = {value for value in model.graph.inputs if constant(value) is None}
    for node in model.graph:
        moved = [] if node.op_type in SIZES else [v for v in entering(node) if v is not None and v in moving]
        if not moved:
            continue
        moving.update(node.outputs)
        if any(map(is_float, moved)) and any(map(is_float, node.outputs)):
            yield node


def _known() -> set[str]:
    """Operators that have kernels. Raises TargetError where TVM does not load."""
    with scratch() as folder:
        path = Path(folder) / "known.json"
        problem = sandbox.run(PROCESS, [KNOWN, str(path)], LOOK_UP_TIME_LIMIT).problem
        if problem is not None:
            raise TargetError(f"TVM {problem}; leave the cpu target out")
        return set(json.loads(path.read_text()))


def _check_divisors(model: ir.Model) -> None:
    """Refuse what would end the process once an input is zero. Raises NoKernel."""
    for node in model.graph:
        value = node.inputs[-1] if node.op_type in ("Div", "Mod") else None
        if value is not None and value.dtype is not None and value.dtype.is_integer() and not is_static(value):
            raise NoKernel(
                f"the cpu target has no kernel for {node.op_type} {node.outputs[0].name}: integers are divided by "
                f"{value.name}, which may be zero; --allow-missing-target delivers the rest"
            )


@dataclass(frozen=True)
class Choices:
    """How a library takes samples, its instruction sets, a folder of libraries that were built before, and tuning."""

    batching: Batching
    isa: str
    store: Path | None = None
    tuning: Request = NO_TUNING


def _build(
    lowered: Lowered, exported: Exported, samples: Sequence[Feeds], choices: Choices, folder: Path
) -> TargetOutput:
    """A library that takes samples in one way. Raises NoKernel where that leaves a node without a kernel."""
    with scratch() as temporary:
        job = Path(temporary)
        write_job(job, lowered, exported, samples, choices)
        _run(job)
        reports = json.loads((job / REPORT).read_text())["libraries"]
        names = [library_file(report["isa"]) for report in reports]
        tables = [TUNING] if (job / TUNING).is_file() else []
        wanted = (*names, WEIGHTS, INTERFACE, KERNELS, *tables)
        files = {name: Path(shutil.move(job / name, folder / name)) for name in wanted}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    libraries = [report | {"bytes": sizes[name]} for report, name in zip(reports, names, strict=True)]
    return TargetOutput(files, {"weights_bytes": sizes[WEIGHTS], "libraries": libraries})


def _check_interface(model: ir.Model) -> None:
    """Refuse what no library can take or give. Raises TargetError."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            raise TargetError(f"the cpu target takes and gives tensors of numbers; {value.name} is {value.type}")


def write_job(folder: Path, lowered: Lowered, exported: Exported, samples: Sequence[Feeds], choices: Choices) -> None:
    """Write what the process that runs TVM needs."""
    fixed = fixed_inputs(lowered.model, samples)
    taps, values = _compared(lowered, exported), Seen.of(lowered.model, samples[0], fixed)
    runner, seen = Runner(exported.proto, list(taps.values())), extents(samples, fixed)
    made_up = ((feeds, found) for _, feeds, found in edge_runs(runner, seen))
    runs = [*((feeds, runner.run(feeds)) for feeds in samples), *made_up]
    for index, (feeds, found) in enumerate(runs):
        kept = {**feeds, **{name: found[short] for name, short in taps.items()}}
        write_npz(folder / VALUES.format(index), kept)
    ir.save(lowered.model, folder / LOWERED)
    job = {
        "isa": choices.isa,
        "batching": asdict(choices.batching),
        "formats": {name: str(form) for name, form in lowered.formats.items()},
        "layer_constants": dict(lowered.layer_constants),
        "values": values.to_json(),
        "store": str(choices.store) if choices.store is not None else "",
        "tuning": choices.tuning.to_json(),
        "kept": {
            "names": taps,
            "by_run": choices.batching.batch is None,
            "seen": {name: asdict(extent) for name, extent in seen.items()},
        },
    }
    (folder / JOB).write_text(json.dumps(job))


def _compared(lowered: Lowered, exported: Exported) -> dict[str, str]:
    """Outputs, codes, and what float operators make, with their names in the file.

    What lies inside an integer kernel is left out: as an output of ONNX Runtime it would keep the kernel from being.
    """
    apart = values(exported.proto)
    found = [str(value.name) for value in lowered.model.graph.outputs]
    for node in lowered.model.graph:
        reads_codes = any(codes_of(value) for value in node.inputs)
        for value in node.outputs:
            name = str(value.name)
            is_made = value.dtype not in (None, ir.DataType.BFLOAT16) and node.op_type != "DequantizeLinear"
            is_apart = not reads_codes or exported.renamed.get(name) in apart
            if value.dtype == ir.DataType.UINT8 or (is_made and is_apart):
                found.append(name)
    return {name: exported.renamed[name] for name in found if name in exported.renamed}


def _run(folder: Path) -> None:
    problem = sandbox.run(PROCESS, [WORKER, str(folder)], TIME_LIMIT).problem
    if (folder / ERROR).is_file():
        told = json.loads((folder / ERROR).read_text())
        raise getattr(errors, told["kind"], InternalError)(told["message"])
    if problem is None and not (folder / REPORT).is_file():
        problem = "left no report"
    if problem is not None:
        raise TargetError(f"TVM {problem}; leave the cpu target out")


class CpuTarget:
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    check_present = staticmethod(check_present)
    check_sizes = staticmethod(check_sizes)
    check_kernels = staticmethod(check_kernels)

    def check_options(self, options: CpuOptions) -> None:
        """Raises UsageError or TargetError where kernels cannot be timed here, or there is no such record."""
        if Request.of(options.tune).level is None:
            return
        refusals = [isa.refusal() for isa in several(options.cpu)]
        if found := next(filter(None, refusals), None):
            raise TargetError(f"tuning runs the kernels on this machine, but {found}; compile without it, or there")

    def gains_by_bfloat16(self, options: CpuOptions) -> bool:
        """Whether an instruction set that it is built for multiplies bfloat16."""
        return is_present() and any(isa.bfloats for isa in several(options.cpu))

    def build(
        self,
        lowered: Lowered,
        exported: Exported,
        samples: Sequence[Feeds],
        options: CpuOptions,
        store: Path,
        folder: Path,
    ) -> TargetOutput:
        """A library for each instruction set; see `build`."""
        return build(lowered, exported, samples, folder, options.cpu, store, Request.of(options.tune))


TARGET: Target[CpuOptions] = CpuTarget()
