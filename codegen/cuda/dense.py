"""Which layers of codes run on tensor cores; the others take the kernels that all targets share."""

from dataclasses import replace

import numpy as np

from ptqc.codegen.cuda import tensor_cores
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.kernels.epilogue import Epilogue
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program.built import Built
from ptqc.codegen.program.layout import Layout


def integer(
    x: Layout, y: Layout, loops: Dense, weights: np.ndarray, requantization: Requantization, epilogue: Epilogue
) -> Built | None:
    """A layer as tensor cores compute it, or None."""
    if not tensor_cores.takes(x, loops.window, loops.groups):
        return None
    return tensor_cores.integer(x, y, BY_ELEMENT, loops.window, weights, requantization, epilogue)


CUDA = replace(BY_ELEMENT, dense=integer)
