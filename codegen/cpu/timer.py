"""Timing native libraries: one child process compiles all of them, opens them and lets them take turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from ptqc.codegen.cpu.isa import several
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.cpu.table import DELIVERED, Request
from ptqc.codegen.kernels.jobs import timed
from ptqc.codegen.kernels.process import Work
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.timing import TimedProgram
from ptqc.errors import TargetError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime.runtime import PACKAGE

TIME = Work("ptqc.codegen.cpu.worker:time")


@dataclass(frozen=True)
class CpuTimer:
    """Times libraries for one instruction set; see `ptqc.codegen.targets.Timer`."""

    isa: str
    tuning: Request
    is_measured: ClassVar[bool] = True

    @classmethod
    def of(cls, options: CpuOptions) -> "CpuTimer":
        """With the best of the instruction sets that this machine has. Raises TargetError where it has none of them."""
        result = several(options.cpu)
        refusals = [isa.refusal() for isa in result]
        if None not in refusals:
            message = "; ".join(filter(None, refusals))
            raise TargetError(f"a latency of the library is measured on this machine, but {message}; compile there")
        return cls(result[refusals.index(None)].name, Request.of(options.tune))

    @property
    def runtime(self) -> str:
        """Which library, built by what."""
        return f"the native library for {self.isa}, TVM {metadata.version(PACKAGE)}, one thread"

    def __call__(
        self, graphs: Sequence[tuple[Lowered, Exported]], samples: Sequence[Feeds], store: Path, seconds: float
    ) -> list[TimedProgram]:
        """Raises NoKernel and TargetError as building the library does."""

        def choices(batching: Batching) -> Choices:
            return Choices(batching, self.isa, store, self.tuning)

        return timed(graphs, samples, choices, DELIVERED, TIME, seconds, may_vary=True)
