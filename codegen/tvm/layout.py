"""How a value lies in memory: channels last inside, as the model declares it at inputs and outputs.

What is made of rows (of products, of sums along the last axis) is plain: inside, but in the model's order.

Every buffer is (batch, elements of one sample + slack). Inner products read whole vectors, up to `SLACK` bytes past
the last element; what is read there is multiplied by zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

SLACK = 64


@dataclass(frozen=True)
class Layout:
    """One value. shape: of one sample, in the model's order (C, H, W). outside: it is an input or output.

    plain: the last axis is the fastest, as outside.
    """

    shape: tuple[int, ...]
    dtype: str
    outside: bool = False
    plain: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from the slowest to the fastest in memory."""
        rank = len(self.shape)
        return tuple(range(rank)) if self.outside or self.plain or rank < 2 else (*range(1, rank), 0)

    @property
    def elements(self) -> int:
        """Numbers in one sample."""
        return prod(self.shape)

    @property
    def stride(self) -> int:
        """Elements from one sample to the next."""
        return self.elements + (0 if self.outside else SLACK)

    def offset(self, place: Sequence[Any]) -> Any:
        """Where the element with these indices lies within its sample."""
        total: Any = 0
        for axis in self.order:
            total = total * self.shape[axis] + place[axis]
        return total

    def place(self, offset: Any) -> list[Any]:
        """Inverse of `offset`."""
        found: list[Any] = [0] * len(self.shape)
        for axis in reversed(self.order):
            found[axis] = offset % self.shape[axis]
            offset = offset // self.shape[axis]
        return found

    def to_memory(self, values: np.ndarray) -> np.ndarray:
        """(batch, stride) array of a value (batch, *shape)."""
        moved = np.transpose(values, (0, *(axis + 1 for axis in self.order)))
        flat = moved.reshape(len(values), -1).astype(self.dtype)
        return np.ascontiguousarray(np.pad(flat, ((0, 0), (0, self.stride - self.elements))))

    def from_memory(self, memory: np.ndarray) -> np.ndarray:
        """Inverse of `to_memory`."""
        flat = memory.reshape(len(memory), -1)[:, : self.elements]
        moved = flat.reshape(len(memory), *(self.shape[axis] for axis in self.order))
        return np.ascontiguousarray(
            np.transpose(moved, (0, *(self.order.index(a) + 1 for a in range(len(self.order)))))
        )
