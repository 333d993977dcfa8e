"""Kernel families, one file each: a function per family takes layouts and numbers and gives a `KernelSource`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptqc.codegen.kernels.writing import Argument, Constant, KernelSource
from ptqc.codegen.program.constants import Arranged, BfloatCodes, InOrder, Nibbles, ScaledPanels, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import USUAL, Accuracy
from ptqc.runtime.lengths import Size, hint, names_of


def build(
    family: str,
    inputs: Sequence[Layout],
    constants: Sequence[Stored],
    output: Layout,
    body: Any,
    operations: Size = 0,
    accuracy: Accuracy = USUAL,
    numbers: Sequence[Size] = (),
) -> KernelSource:
    """Describe the kernel of a family; see `KernelSource`. numbers: sizes that it needs beside the layouts'."""
    flat = tuple(np.ascontiguousarray(c).reshape(-1) if isinstance(c, np.ndarray) else c for c in constants)
    arguments: tuple[Argument, ...] = (*inputs, *(declared(constant) for constant in flat), output)
    lengths = tuple(sorted(names_of([*numbers, *(size for layout in (*inputs, output) for size in layout.shape)])))
    return KernelSource(family, arguments, body, flat, hint(operations), accuracy, lengths)


def declared(constant: Stored) -> Constant:
    """How a kernel takes a constant."""
    match constant:
        case ScaledPanels():
            return Constant("float32", constant.codes.size)
        case BfloatCodes():
            return Constant("uint16", constant.codes.size)
        case Arranged():
            return Constant("int8", constant.size)
        case Nibbles():
            return Constant("uint8", constant.size)
        case InOrder():
            return Constant(str(constant.data.dtype), constant.data.size)
    return Constant(str(constant.dtype), constant.size)
