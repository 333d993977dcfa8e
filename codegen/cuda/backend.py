"""Kernels for NVIDIA GPUs: layers on tensor cores are its own; the others are those that targets share."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ptqc.codegen.cuda import depthwise, mma, mma_fp8, mma_sparse, wgmma
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.loops import ThreadLoops
from ptqc.codegen.cuda.packed_weights import code
from ptqc.codegen.cuda.tiles import CHUNK
from ptqc.codegen.cuda.variants import predicted_best
from ptqc.codegen.kernels.backend import Float8Kernels, Float8LayerSpec, LayerSpec
from ptqc.codegen.kernels.isa import DOT, Isa
from ptqc.codegen.kernels.writing import KernelSource, Loops
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window


class TensorCoreFloat8:
    """FP8 on tensor cores."""

    channels: ClassVar[int] = CHUNK

    def code(self, x: Any) -> Any:
        return code(x)

    def layer(self, spec: Float8LayerSpec) -> KernelSource:
        return predicted_best(mma_fp8.variants(spec))


@dataclass(frozen=True)
class CudaBackend:
    """A number to a thread, but for layers on tensor cores."""

    isa: Isa = BY_ELEMENT
    loops: Loops = ThreadLoops()  # noqa: RUF009  # it has no state
    float8: Float8Kernels | None = TensorCoreFloat8()  # noqa: RUF009

    def layer(self, spec: LayerSpec) -> KernelSource | None:
        """Write a layer for tensor cores, or a depthwise one by inner products of four bytes."""
        layer = CodedLayer(**vars(spec))
        if spec.groups == 1 and _is_aligned(spec.x, spec.window, CHUNK):
            proven = [*mma.variants(layer), *mma_sparse.variants(layer)]
            return predicted_best(proven, wgmma.variants(layer))
        is_depthwise = spec.groups == spec.window.channels == len(spec.weights)
        return depthwise.integer(layer) if is_depthwise and _is_aligned(spec.x, spec.window, DOT) else None


def _is_aligned(x: Layout, window: Window, size: int) -> bool:
    """Whether every piece of so many bytes of the input lies within a tap, where one access reads it."""
    first = x.parent_buffer.at[0] if x.parent_buffer is not None else 0
    return not x.is_io and all(each % size == 0 for each in (window.channels, x.plane[0], first, x.stride))


CUDA = CudaBackend()
