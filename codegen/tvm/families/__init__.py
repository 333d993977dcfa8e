"""Kernel families, one file each: a function per family takes layouts and numbers and gives a `Built` kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.codegen.tvm.constants import Arranged, Bfloats, Nibbles, Scaled, Stored
from ptqc.codegen.tvm.kernel import Argument, Constant, write
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.tiling import Cut


class Declined(Exception):
    """What no family takes; the message says why."""


@dataclass(frozen=True)
class Alternatives:
    """Ways to cut a kernel's loops, the one it has first; all compute the same. write: the kernel cut otherwise."""

    cuts: Sequence[Cut]
    write: Callable[[Cut], "Built"]


@dataclass(frozen=True)
class Built:
    """A kernel and its constants, which follow the inputs among its arguments; the output is the last one.

    operations: products and sums of one sample, where these are what takes time.
    """

    name: str
    function: Any
    constants: tuple[Stored, ...]
    operations: int = 0
    alternatives: Alternatives | None = None

    @property
    def family(self) -> str:
        """What is in front of the digest in the name."""
        return self.name.rpartition("_")[0]


def build(
    family: str,
    inputs: Sequence[Layout],
    constants: Sequence[Stored],
    output: Layout,
    body: Any,
    operations: int = 0,
) -> Built:
    """Write the kernel of a family; see `kernel.write` for `body`."""
    flat = tuple(np.ascontiguousarray(c).reshape(-1) if isinstance(c, np.ndarray) else c for c in constants)
    shapes: list[Argument] = [*inputs, *(declared(constant) for constant in flat), output]
    name, function = write(family, shapes, body)
    return Built(name, function, flat, operations)


def declared(constant: Stored) -> Constant:
    """How a kernel takes a constant."""
    match constant:
        case Scaled():
            return Constant("float32", constant.codes.size)
        case Bfloats():
            return Constant("uint16", constant.codes.size)
        case Arranged():
            return Constant("int8", constant.size)
        case Nibbles():
            return Constant("uint8", constant.size)
    return Constant(str(constant.dtype), constant.size)
