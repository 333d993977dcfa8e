"""Building the cuda target: one child process compiles for all chips and verifies in the emulator."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from ptqc.codegen.cuda.emulator.building import refusal
from ptqc.codegen.cuda.emulator.opening import PTX, STAND_INS
from ptqc.codegen.cuda.isa import TARGET as NAME
from ptqc.codegen.cuda.jobs import CudaChoices
from ptqc.codegen.cuda.options import AUTO, OFF, CudaOptions
from ptqc.codegen.cuda.timer import CudaTimer
from ptqc.codegen.cuda.toolkit import INSTALL, Toolkit
from ptqc.codegen.cuda.tuner import Tuner
from ptqc.codegen.kernels import checks
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.process import Work
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching, batched
from ptqc.codegen.targets import Target, TargetInput, TargetOutput
from ptqc.errors import TargetError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, library_file
from ptqc.utils.progress import SILENT_STAGE, Stage
from ptqc.utils.scratch import scratch

FILES = (library_file(NAME), WEIGHTS, INTERFACE, KERNELS, PTX)

# TVM compiles for CUDA only where the driver's library loads: stand-ins do, on which kernels run without a GPU.
BUILD = Work("ptqc.codegen.cuda.building:build", before=STAND_INS)


class CudaTarget:
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    def check_options(self, options: CudaOptions) -> None:
        """Raises UsageError or TargetError where there is no GPU that kernels can be timed on, or no such table."""
        if options.tune not in (AUTO, OFF):
            Tuner.of(options)

    def check_present(self) -> None:
        """Raises TargetError where TVM or NVIDIA's compilers are not installed, or kernels cannot be verified."""
        if find_spec("tvm") is None:
            raise TargetError(f"the cuda target needs Apache TVM: {INSTALL}")
        Toolkit.require()
        if reason := refusal():
            raise TargetError(reason)

    def check_sizes(self, row_shapes: Collection[object], model: ir.Model) -> None:
        """Raises TargetError for samples of several sizes."""
        del model
        checks.check_sizes(row_shapes, NAME)

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError where the library cannot take the model."""
        checks.check_kernels(model, NAME)

    def gains_by_bfloat16(self, options: CudaOptions) -> bool:
        """Its kernels multiply real numbers in float32."""
        del options
        return False

    def multiplies_float8(self) -> bool:
        """On chips without such tensor cores, too."""
        return True

    def fuses_conversions(self) -> bool:
        """Where float kernels end, too."""
        return True

    def timer(self, options: CudaOptions) -> CudaTimer:
        """What tells the times of its libraries. Raises TargetError where a GPU is asked for and there is none."""
        return CudaTimer.of(options)

    def build(
        self,
        source: TargetInput,
        options: CudaOptions,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """One library for all chips."""
        self.check_present()
        exported, samples = source.exported, source.samples
        checks.check_sizes({tuple(array.shape[1:] for array in feeds.values()) for feeds in samples}, NAME)
        model = checks.check_model(source.lowered.model, NAME, unrolls=True)
        lowered = replace(source.lowered, model=model)
        tuner = Tuner.of(options)

        def build_batched(batching: Batching, taken: Sequence[Feeds]) -> TargetOutput:
            graph = checks.specialize(lowered, taken, batching, NAME, unrolls=True)
            choices = tuner.tuned(graph, taken, CudaChoices(batching, options.gpus, store), stage)
            return _build(graph, exported, taken, choices, folder)

        return batched(lowered.model, exported, samples, build_batched)


def _build(
    lowered: Lowered, exported: Exported, samples: Sequence[Feeds], choices: CudaChoices, folder: Path
) -> TargetOutput:
    """A library that takes samples in one way. Raises NoKernel where that leaves a node without a kernel."""
    with scratch() as temporary:
        job = Path(temporary)
        write_job(job, lowered, exported, samples, choices)
        document = BUILD.run(job, NAME)
        wanted = FILES if choices.times is None else (*FILES, TUNING)
        files = {name: Path(shutil.move(job / name, folder / name)) for name in wanted}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    tuning = {"tuned": f"no: {choices.untuned}"} if choices.untuned else {}
    return TargetOutput(
        files, document | tuning | {"weights_bytes": sizes[WEIGHTS], "bytes": sizes[library_file(NAME)]}
    )


TARGET: Target[CudaOptions] = CudaTarget()
