"""Which layers have kernels of the target's own; the others take those that all targets share."""

from dataclasses import replace

import numpy as np

from ptqc.codegen.cuda import depthwise, mma, mma_fp8, mma_sparse, wgmma
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.packed_weights import code
from ptqc.codegen.cuda.tiles import CHUNK
from ptqc.codegen.cuda.variants import predicted_best
from ptqc.codegen.kernels.epilogue import Epilogue
from ptqc.codegen.kernels.float8 import Float8Kernels
from ptqc.codegen.kernels.isa import DOT
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Built, Window


def integer(
    x: Layout,
    y: Layout,
    window: Window,
    groups: int,
    weights: np.ndarray,
    requantization: Requantization,
    epilogue: Epilogue,
) -> Built | None:
    """A layer on tensor cores, or a depthwise one by inner products of four bytes; None for any other."""
    layer = CodedLayer(x, y, window, weights, requantization, epilogue)
    if groups == 1 and _is_aligned(x, window, CHUNK):
        proven = [*mma.variants(layer), *mma_sparse.variants(layer)]
        return predicted_best(proven, wgmma.variants(layer))
    is_depthwise = groups == window.channels == len(weights)
    return depthwise.integer(layer) if is_depthwise and _is_aligned(x, window, DOT) else None


def _is_aligned(x: Layout, window: Window, size: int) -> bool:
    """Whether every piece of so many bytes of the input lies within a tap, where one access reads it."""
    first = x.frame.at[0] if x.frame is not None else 0
    return not x.outside and all(each % size == 0 for each in (window.channels, x.plane[0], first, x.stride))


CUDA = replace(BY_ELEMENT, layer=integer, float8=Float8Kernels(code, mma_fp8.write, CHUNK))
