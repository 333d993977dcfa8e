"""How a value lies in memory: with its channels last, but as the model declares it at inputs and outputs.

What is made of rows (of products, of sums along the last axis) is row-major: no input or output, but in their order.

Every buffer is (batch, elements of one sample + slack). Inner products read whole vectors, up to `SLACK` bytes past
the last element; what is read there is multiplied by zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import ml_dtypes
import numpy as np

from ptqc.runtime.lengths import Shape, at, varies

# A type of elements, and the function that rounds to it.
BFLOAT16, ROUNDED = "bfloat16", "rounded"
SLACK = 64
Plane = tuple[int, int, int]


@dataclass(frozen=True)
class Frame:
    """A larger plane that a value lies in. size: its channels, rows and columns. at: where in it the value begins."""

    size: Plane
    at: Plane = (0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """One value. Sizes may vary with the lengths of a call (`ptqc.runtime.lengths`); what takes arrays wants a layout
    that is `sized`.
    """

    #: Of one sample, in the model's order (C, H, W).
    shape: Shape
    #: Of its elements in memory; bfloat16 are elements of float32 values that need no more digits.
    dtype: str
    #: It is an input or an output.
    is_io: bool = False
    #: The last axis is the fastest, as that of inputs and outputs; else the channels are.
    row_major: bool = False
    #: Of a plane that is part of a larger one.
    parent_buffer: Frame | None = None

    def sized(self, lengths: Mapping[str, int]) -> Self:
        """The layout for some lengths."""
        if not varies(self.shape):
            return self
        return replace(self, shape=tuple(at(size, lengths) for size in self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.stored).itemsize

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from the slowest to the fastest in memory."""
        rank = len(self.shape)
        return tuple(range(rank)) if self.is_io or self.row_major or rank < 2 else (*range(1, rank), 0)

    def with_rank(self, rank: int) -> Self:
        """A row-major value with so many axes: those in front that it lacks have size 1."""
        return replace(self, shape=(1,) * (rank - len(self.shape)) + self.shape)

    @property
    def stored(self) -> str:
        """The type that kernels declare."""
        return "uint16" if self.dtype == BFLOAT16 else self.dtype

    @property
    def values(self) -> str:
        """The type of the model's elements."""
        return "float32" if self.dtype == BFLOAT16 else self.dtype

    @property
    def elements(self) -> int:
        """Numbers in one sample; a size that varies, where one of the shape does."""
        result: int = prod(self.shape)
        return result

    @property
    def memory(self) -> Shape:
        """Shape of the memory that it lies in, in the model's order."""
        return self.shape if self.parent_buffer is None else self.parent_buffer.size

    @property
    def stride(self) -> int:
        """Elements from one sample to the next."""
        result: int = prod(self.memory) + (0 if self.is_io else SLACK)
        return result

    @property
    def axes(self) -> Shape:
        """Axes of one sample as kernels take it: the model's own at inputs and outputs, one axis inside."""
        return self.shape if self.is_io else (self.stride,)

    @property
    def plane(self) -> Plane:
        """Channels, rows and columns of the memory; the rows of a row-major value are the pixels of one row."""
        if self.row_major or self.is_io or len(self.shape) == 1:
            return self.shape[-1], 1, self.elements // self.shape[-1]
        channels, *rows, columns = self.memory
        return channels, prod(rows), columns

    def offset(self, place: Sequence[Any]) -> Any:
        """Where the element with these indices lies within its sample."""
        start = (0,) * len(self.shape) if self.parent_buffer is None else self.parent_buffer.at
        total: Any = 0
        for axis in self.order:
            index = place[axis] + start[axis] if start[axis] else place[axis]
            total = total * self.memory[axis] + index
        return total

    def at(self, row: Any, column: Any, channel: Any) -> Any:
        """Where a channel of a pixel of the plane lies within its sample."""
        channels, _, columns = self.plane
        first, top, left = (0, 0, 0) if self.parent_buffer is None else self.parent_buffer.at
        row, column, channel = row + top, column + left, channel + first
        return (row * columns + column) * channels + channel

    def place(self, offset: Any) -> list[Any]:
        """Inverse of `offset`."""
        result: list[Any] = [0] * len(self.shape)
        for axis in reversed(self.order):
            result[axis] = offset % self.shape[axis]
            offset = offset // self.shape[axis]
        return result

    def to_memory(self, values: np.ndarray) -> np.ndarray:
        """(batch, stride) array of a value (batch, *shape); what lies around it in its frame is zero."""
        if self.parent_buffer is not None:
            around = np.zeros((len(values), *self.memory), self.values)
            around[self._part] = values
            values = around
        moved = np.transpose(values, (0, *(axis + 1 for axis in self.order)))
        flat = self.encoded(moved.reshape(len(values), -1))
        return np.ascontiguousarray(np.pad(flat, ((0, 0), (0, self.stride - flat.shape[1]))))

    def from_memory(self, memory: np.ndarray) -> np.ndarray:
        """Inverse of `to_memory`."""
        flat = memory.reshape(len(memory), -1)[:, : prod(self.memory)]
        moved = flat.reshape(len(memory), *(self.memory[axis] for axis in self.order))
        values = np.transpose(moved, (0, *(self.order.index(a) + 1 for a in range(len(self.order)))))
        result = np.ascontiguousarray(values[self._part])
        return result.view(ml_dtypes.bfloat16).astype(self.values) if self.dtype == BFLOAT16 else result

    def encoded(self, values: np.ndarray) -> np.ndarray:
        """Elements as they lie in memory."""
        if self.dtype == BFLOAT16:
            return np.asarray(values).astype(ml_dtypes.bfloat16).view(np.uint16)
        return np.asarray(values).astype(self.dtype)

    @property
    def _part(self) -> tuple[slice, ...]:
        """What of an array (batch, *memory) is the value."""
        if self.parent_buffer is None:
            return (slice(None),)
        places = zip(self.parent_buffer.at, self.shape, strict=True)
        return (slice(None), *(slice(start, start + size) for start, size in places))
