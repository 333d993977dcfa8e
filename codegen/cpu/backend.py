"""Kernels for processors: all are those that targets share."""

from dataclasses import dataclass

from ptqc.codegen.kernels.backend import Float8Kernels, LayerSpec
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import PROCESSOR, Loops


@dataclass(frozen=True)
class CpuBackend:
    """An instruction set, with loops on the threads of a processor."""

    isa: Isa
    loops: Loops = PROCESSOR
    float8: Float8Kernels | None = None

    def layer(self, _spec: LayerSpec) -> None:
        """Leave every layer to the shared kernels."""
