"""How a dense layer is cut: its window into runs, its outputs into tiles and panels; and its weights in that order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ptqc.codegen.tvm.constants import Order, Source
from ptqc.codegen.tvm.isa import DOT, Isa
from ptqc.codegen.tvm.sums import UNLIMITED, Sums
from ptqc.codegen.tvm.window import Window

LARGEST_TILE, LARGEST_PANEL = 14, 4
# What a load costs of the time of a product, as far as it is not hidden.
LOAD = 0.25


@dataclass(frozen=True)
class Dense:
    """The loops of one layer. width: bytes of one input number (1: codes, 4: float32)."""

    window: Window
    outputs: int
    groups: int
    isa: Isa
    width: int
    sums: Sums = UNLIMITED

    @property
    def unit(self) -> int:
        """Inputs taken at once."""
        return DOT if self.width == 1 else 1

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.window.channels // self.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of a group."""
        return self.outputs // self.groups

    @property
    def products(self) -> int:
        """Of one sample."""
        return self.window.products * self.outputs * self.group_inputs

    @property
    def runs(self) -> tuple[int, int, int]:
        """Rows and columns of the window that are runs of their own, and inputs in a run."""
        rows, columns = self.window.kernel
        if self.groups == 1 and (self.window.dilations[1] == 1 or columns == 1):
            return rows, 1, columns * self.window.channels
        return rows, columns, self.group_inputs

    @property
    def links(self) -> tuple[int, int]:
        """Chains of a run, and units in a chain."""
        return self.sums.links(-(-self.runs[2] // self.unit))

    @property
    def depth(self) -> int:
        """Units in a run."""
        return prod(self.links)

    @property
    def area(self) -> tuple[int, int]:
        """Output rows and columns; a pointwise layer sees one row."""
        height, width = self.window.output
        return (1, height * width) if self.window.is_pointwise and self.groups == 1 else (height, width)

    @cached_property
    def blocking(self) -> tuple[int, int]:
        """Pixels in a tile and vectors in a panel: few pixels twice, then many products per loaded number."""
        vectors, width = -(-self.group_outputs // self.isa.lanes), self.area[1]

        def shape(panel: int) -> tuple[int, int]:
            most = (self.isa.registers - self.isa.working - panel) // panel
            tiles = -(-width // min(most, LARGEST_TILE))
            return -(-width // tiles), panel

        def worth(shape: tuple[int, int]) -> float:
            pixels, panel = shape
            computed = -(-width // pixels) * pixels
            loads = (pixels + panel) / (pixels * panel)
            return width / computed / (1 + LOAD * loads)

        return max((shape(p) for p in range(1, LARGEST_PANEL + 1) if vectors % p == 0), key=worth)

    @property
    def panels(self) -> int:
        """Panels of a group."""
        return -(-self.group_outputs // (self.isa.lanes * self.blocking[1]))

    @property
    def panel_size(self) -> int:
        """Weights of a panel."""
        rows, columns, _ = self.runs
        return rows * columns * self.depth * self.sums.parts * self.blocking[1] * self.isa.lanes * self.unit

    @property
    def order(self) -> Order:
        """Of weights (outputs, inputs of a group, *kernel): group, panel, run, unit, part, channel, tap."""
        rows, columns, _ = self.runs
        width = self.blocking[1] * self.isa.lanes
        sizes = (self.groups, self.panels, rows, columns, self.depth, self.sums.parts, width, self.unit)
        return Order(sizes, self._source)

    def _source(self, place: Sequence[Any]) -> Source:
        group, panel, row, column, step, part, channel, tap = place
        output = panel * (self.blocking[1] * self.isa.lanes) + channel
        along = step * self.unit + tap
        column = column + along // self.group_inputs
        plane = (group * self.group_outputs + output) * self.group_inputs + along % self.group_inputs
        offset = (plane * self.window.kernel[0] + row) * self.window.kernel[1] + column
        limits = (output, self.group_outputs), (along, self.runs[2])
        return Source(offset, limits, part if self.sums.parts > 1 else None)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per output channel in the order of the panels."""
        width = self.panels * self.blocking[1] * self.isa.lanes
        grouped = values.reshape(self.groups, self.group_outputs)
        return np.pad(grouped, ((0, 0), (0, width - self.group_outputs))).reshape(-1)
