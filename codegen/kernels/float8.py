"""How a target computes with FP8 (E4M3), whose numbers lie in memory as codes of 8 bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Built, Window


@dataclass(frozen=True, eq=False)
class Float8Numbers:
    """Of a convolution or a product of one group: Σ x · w · factor + bias, with codes x.

    weights: codes, uint8 (outputs, inputs, rows, columns). factor, bias: float32 (outputs).
    """

    window: Window
    weights: np.ndarray
    factor: np.ndarray
    bias: np.ndarray


class Float8LayerWriter(Protocol):
    """Writes a layer."""

    def __call__(self, x: Layout, y: Layout, numbers: Float8Numbers, stages: Sequence[Any]) -> Built:
        """Its sums, and what stages make of them; y: real values.

        stages: of `families.real_stages`, which imports this.
        """


@dataclass(frozen=True)
class Float8Kernels:
    """What a target has of its own.

    code: of a real number (float32) the nearest (uint8), halves to even, beyond the largest number that one. write:
    layers. channels: of whose inputs there is a multiple in memory.
    """

    code: Callable[[Any], Any]
    write: Float8LayerWriter
    channels: int
