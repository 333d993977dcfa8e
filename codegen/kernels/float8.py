"""How a target computes with FP8 (E4M3), whose numbers lie in memory as codes of 8 bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptqc.codegen.program.built import Built
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.window import Window


class Float8LayerWriter(Protocol):
    """Writes a convolution or a product of one group."""

    def __call__(
        self,
        x: Layout,
        y: Layout,
        window: Window,
        weights: np.ndarray,
        factor: np.ndarray,
        bias: np.ndarray,
        stages: Sequence[Any],
    ) -> Built:
        """Σ x · w · factor + bias, and what stages make of that; x: codes, y: real values.

        weights: codes, uint8 (outputs, inputs, rows, columns). factor, bias: float32 (outputs). stages: of
        `families.real_stages`, which imports this.
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
