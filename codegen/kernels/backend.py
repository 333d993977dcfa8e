"""What a target brings to the kernels of a network: its instructions, its loops, and layers that it writes itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptqc.codegen.kernels.epilogue import NOTHING, Epilogue, Requantization
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelSource, Loops
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window


@dataclass(frozen=True, eq=False)
class LayerSpec:
    """A convolution or a product of codes with int8 weights."""

    #: A sample of the input, of codes.
    x: Layout
    #: A sample of the output, of codes, or of real values where it is float32.
    y: Layout
    window: Window
    #: Whole numbers that int8 holds: (outputs, inputs of a group, *kernel).
    weights: np.ndarray
    requantization: Requantization
    #: What becomes of the codes before they are stored.
    epilogue: Epilogue = NOTHING
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Float8LayerSpec:
    """A convolution or a product of FP8 of one group: Σ x · w · factor + bias."""

    #: A sample of the input, of codes of FP8.
    x: Layout
    #: A sample of the output, of real values.
    y: Layout
    window: Window
    #: Codes of FP8, uint8 (outputs, inputs, rows, columns).
    weights: np.ndarray
    #: float32 (outputs).
    factor: np.ndarray
    #: float32 (outputs).
    bias: np.ndarray
    #: What becomes of the sums before they are stored (`families.real_stages`).
    stages: Sequence[Any] = ()


class Float8Kernels(Protocol):
    """How a target computes with FP8 (E4M3), whose numbers lie in memory as codes of 8 bits."""

    @property
    def channels(self) -> int:
        """How many input channels `layer` reads at once: it takes multiples of these."""

    def code(self, x: Any) -> Any:
        """Round a real number (float32) to its nearest code (uint8), halves to even, large ones to the largest."""

    def layer(self, spec: Float8LayerSpec) -> KernelSource:
        """Write a layer."""


class KernelBackend(Protocol):
    """A target as the kernels see it."""

    @property
    def isa(self) -> Isa:
        """The instructions that kernels are made of."""

    @property
    def loops(self) -> Loops:
        """How loops run."""

    @property
    def float8(self) -> Float8Kernels | None:
        """What there is for FP8; None: nothing."""

    def layer(self, spec: LayerSpec) -> KernelSource | None:
        """Write a layer in the target's own way; None: the kernels that all targets share take it."""
