"""Building the cpu target: one child process compiles and verifies, so that a crash or a hang is an error message."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from ptqc.codegen.cpu.isa import several
from ptqc.codegen.cpu.jobs import NO_TUNING, Choices
from ptqc.codegen.cpu.options import DEFAULT_CPU, CpuOptions
from ptqc.codegen.cpu.package import check_binutils, check_compiler
from ptqc.codegen.cpu.table import DELIVERED, Request
from ptqc.codegen.cpu.timer import CpuTimer
from ptqc.codegen.kernels.checks import RowShapes, check_kernels, check_lengths, check_model, check_sizes, specialize
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.process import Work
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching, batched
from ptqc.codegen.targets import Target, TargetInput, TargetOutput
from ptqc.errors import TargetError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, library_file
from ptqc.runtime.runtime import INSTALL
from ptqc.utils.progress import SILENT_STAGE, Stage
from ptqc.utils.scratch import scratch

BUILD = Work("ptqc.codegen.cpu.worker:build")


def is_present() -> bool:
    """Whether TVM is installed."""
    return find_spec("tvm") is not None


def check_present() -> None:
    """Raises TargetError where TVM is not installed, or no C++ compiler that links."""
    if not is_present():
        raise TargetError(f"the cpu target needs Apache TVM: {INSTALL}")
    check_compiler()


def build(
    lowered: Lowered,
    exported: Exported,
    samples: Sequence[Feeds],
    folder: Path,
    isa: str = DEFAULT_CPU,
    store: Path | None = None,
    tuning: Request = NO_TUNING,
    static: str = "",
) -> TargetOutput:
    """Compile a lowered graph and compare the library with the exported file on samples and on edge inputs.

    folder: an empty one for the files. isa: names of instruction sets, separated by commas; each gets a library. store:
    a folder of libraries that were built before. tuning: how kernels get their cuts. static: the name of a static
    library to build as well. Raises TargetError when a node has no kernel or TVM fails, VerificationError when anything
    differs.
    """
    check_present()
    lowered = replace(lowered, model=check_model(lowered.model, DELIVERED))

    def build_batched(batching: Batching, taken: Sequence[Feeds]) -> TargetOutput:
        if not batching.varies:
            check_sizes({tuple(array.shape[1:] for array in feeds.values()) for feeds in taken}, DELIVERED)
        graph = specialize(lowered, taken, batching, DELIVERED)
        return _build(graph, exported, taken, Choices(batching, isa, store, tuning, static), folder)

    return batched(lowered.model, exported, samples, build_batched, may_vary=True)


def _build(
    lowered: Lowered, exported: Exported, samples: Sequence[Feeds], choices: Choices, folder: Path
) -> TargetOutput:
    """A library that takes samples in one way. Raises NoKernel where that leaves a node without a kernel."""
    with scratch() as temporary:
        job = Path(temporary)
        write_job(job, lowered, exported, samples, choices)
        report = BUILD.run(job, DELIVERED)
        reports, static = report["libraries"], report["static"]
        names = [library_file(one["isa"]) for one in reports]
        tables = [TUNING] if (job / TUNING).is_file() else []
        added = [static["header"], *(one["file"] for one in static["archives"])] if static else []
        wanted = (*names, WEIGHTS, INTERFACE, KERNELS, *tables, *added)
        files = {name: Path(shutil.move(job / name, folder / name)) for name in wanted}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    libraries = [one | {"bytes": sizes[name]} for one, name in zip(reports, names, strict=True)]
    fixed = {"fixed_sizes": choices.batching.reason} if choices.batching.reason else {}
    document = {"weights_bytes": sizes[WEIGHTS], "libraries": libraries, **fixed}
    if static:
        archives = [one | {"bytes": sizes[one["file"]]} for one in static["archives"]]
        document["static"] = {**static, "header_bytes": sizes[static["header"]], "archives": archives}
    return TargetOutput(files, document)


class CpuTarget:
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    check_present = staticmethod(check_present)

    def check_sizes(self, row_shapes: Collection[RowShapes], model: ir.Model) -> None:
        """Raises TargetError for samples of several sizes that windows slide over."""
        check_lengths(row_shapes, model, DELIVERED)

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError where the library cannot take the model."""
        check_kernels(model, DELIVERED)

    def check_options(self, options: CpuOptions) -> None:
        """Raises UsageError or TargetError where they ask for what this machine cannot do, or for no such record."""
        if options.static_name:
            check_binutils(several(options.cpu))
        if Request.of(options.tune).level is None:
            return
        refusals = [isa.refusal() for isa in several(options.cpu)]
        if refusal := next(filter(None, refusals), None):
            raise TargetError(f"tuning runs the kernels on this machine, but {refusal}; compile without it, or there")

    def gains_by_bfloat16(self, options: CpuOptions) -> bool:
        """Whether an instruction set that it is built for multiplies bfloat16."""
        return is_present() and any(isa.bfloats for isa in several(options.cpu))

    def multiplies_float8(self) -> bool:
        """Processors multiply no such numbers."""
        return False

    def fuses_conversions(self) -> bool:
        """Where float kernels end, too."""
        return True

    def timer(self, options: CpuOptions) -> CpuTimer:
        """What times its libraries on this machine."""
        return CpuTimer.of(options)

    def build(
        self,
        source: TargetInput,
        options: CpuOptions,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """A library for each instruction set; see `build`."""
        del stage
        tuning = Request.of(options.tune)
        return build(
            source.lowered, source.exported, source.samples, folder, options.cpu, store, tuning, options.static_name
        )


TARGET: Target[CpuOptions] = CpuTarget()
