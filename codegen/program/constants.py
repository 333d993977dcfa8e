"""Constants of kernels: how they lie in the file, and what makes them ready when it is loaded.

Weights lie in the order of the model as indices of few bits, those of a layer that computes in float32 with their
scales; loading puts them in the order in which the kernel reads them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ptqc.codegen.program.indexed import Indexed, smallest

# How many values half a byte can tell apart; a vector instruction picks bytes from as many.
VALUES = 16


class IndexSource(NamedTuple):
    """Where a number comes from: its place in the model's order.

    limits: (index, size) pairs; where an index is beyond its size, the number is zero. part: 0 for the lower half of
    the code, 1 for the rest.
    """

    offset: Any
    limits: Sequence[tuple[Any, int]] = ()
    part: Any = None


@dataclass(frozen=True)
class Order:
    """The order in which a kernel reads numbers. sizes: of its loops, the slowest first. source: of their indices.

    `source` is arithmetic that takes NumPy arrays and TIR expressions alike.
    """

    sizes: tuple[int, ...]
    source: Callable[[Sequence[Any]], IndexSource]

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The numbers (contiguous) in this order, flat."""
        axes = np.ogrid[tuple(slice(size) for size in self.sizes)]
        result = self.source([axis.astype(np.int32) for axis in axes])
        inside = np.ones((1,) * len(self.sizes), bool)
        for index, size in result.limits:
            inside = inside & (index < size)
        taken = np.where(inside, values.reshape(-1)[np.where(inside, result.offset, 0)], values.dtype.type(0))
        return np.ascontiguousarray(taken if result.part is None else half(taken, result.part)).reshape(-1)


def half(code: Any, part: Any) -> Any:
    """The lower half of a code, or the rest."""
    return code // 2 + part * (code - code // 2 * 2)


@dataclass(frozen=True, eq=False)
class Arranged:
    """int8 codes as the model has them, and the order in which the kernel reads them."""

    codes: np.ndarray
    order: Order

    @property
    def size(self) -> int:
        """Codes that the kernel reads."""
        return prod(self.order.sizes)

    @cached_property
    def indexed(self) -> Indexed:
        """The codes as they lie in the file."""
        return smallest(self.codes)


def values_of(codes: np.ndarray) -> np.ndarray:
    """The values that occur among int8 codes, in ascending order."""
    occurs = np.bincount(codes.reshape(-1).view(np.uint8), minlength=256) > 0
    return np.sort(np.flatnonzero(occurs).astype(np.uint8).view(np.int8))


@dataclass(frozen=True, eq=False)
class ScaledPanels:
    """float32 weights (panels, depth, width) that are codes times one scale for each (panel, width)."""

    codes: Arranged
    scale: np.ndarray
    panels: int

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return int(self.scale.size // self.panels)

    @property
    def depth(self) -> int:
        """Weights of a channel."""
        return int(self.codes.size // self.scale.size)


@dataclass(frozen=True, eq=False)
class BfloatCodes:
    """Codes as bfloat16, which have all their digits."""

    codes: Arranged


@dataclass(frozen=True, eq=False)
class Nibbles:
    """Codes of at most 16 values, which stay two to a byte when the library is loaded.

    First a vector that repeats the 16 values, as bytes are picked from it; then for every two vectors of codes, in the
    order in which the kernel reads them, one of bytes: the place of the first one's value in the lower half, of the
    second one's in the upper. vector: codes in one.
    """

    codes: Arranged
    vector: int

    @property
    def size(self) -> int:
        """Bytes that the kernel reads."""
        return self.vector + self.codes.size // 2

    @cached_property
    def values(self) -> np.ndarray:
        """The values that occur (int8), and 0 where there is room for it; at most VALUES."""
        occurring = values_of(self.codes.codes)
        result = np.union1d(occurring, np.int8(0))
        return result if len(result) <= VALUES else occurring

    @property
    def table(self) -> np.ndarray:
        """The first vector."""
        return np.tile(np.resize(self.values, VALUES), self.vector // VALUES).view(np.uint8)

    @property
    def places(self) -> np.ndarray:
        """The place of each of the 256 codes, −128 first, among the values (uint8)."""
        result = np.zeros(256, np.uint8)
        result[self.values.astype(np.int32) + 128] = np.arange(len(self.values))
        return result


@dataclass(frozen=True, eq=False)
class InOrder:
    """Weights that lie in the file as the kernel reads them, and are unpacked while it computes. data: bytes."""

    data: np.ndarray


Stored = np.ndarray | Arranged | ScaledPanels | BfloatCodes | Nibbles | InOrder


def loaded_bytes(constant: Stored) -> int:
    """Bytes in memory once the file is loaded."""
    match constant:
        case ScaledPanels():
            return 4 * constant.codes.size
        case BfloatCodes():
            return 2 * constant.codes.size
        case Arranged() | Nibbles():
            return constant.size
        case InOrder():
            return int(constant.data.nbytes)
        case _:
            return int(constant.nbytes)


def stored_bytes(constant: Stored) -> int:
    """Bytes in the file."""
    match constant:
        case Arranged():
            return constant.indexed.nbytes
        case BfloatCodes():
            return stored_bytes(constant.codes)
        case ScaledPanels():
            return stored_bytes(constant.codes) + constant.scale.nbytes
        case Nibbles():
            return stored_bytes(constant.codes) + constant.places.nbytes + constant.table.nbytes
        case InOrder():
            return int(constant.data.nbytes)
        case _:
            return int(constant.nbytes)
