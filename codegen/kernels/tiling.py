"""How a dense layer is cut: its window into runs, its outputs into tiles and panels; and its weights in that order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ptqc.codegen.kernels.int16_accumulation import IN_INT32, PAIR, Int16Accumulation, overflows
from ptqc.codegen.kernels.isa import DOT, Isa, TileShape
from ptqc.codegen.program.constants import IndexSource, Order
from ptqc.codegen.program.program import Window
from ptqc.runtime.lengths import hint, varies

LARGEST_TILE, LARGEST_PANEL = 14, 4
# Pixels of further tiles that are worth a trial, and pieces that an order of the loops has to leave for threads.
OTHER_TILES, PIECES = (28, 10, 8, 4), 16
# Weights beyond this stay in a core's second cache from one tile to the next only if panels are the outer loop.
CACHED_WEIGHTS = 512 * 1024
# The second cache itself, of most processors; of layers with fewer weights calls are what takes time.
SECOND_CACHE, FEWEST_WEIGHTS = 1024 * 1024, 64 * 1024
# Pixels for which reading the weights takes longer than multiplying with them.
FEW_PIXELS = 4
# What a load costs of the time of a product, as far as it is not hidden.
LOAD = 0.1
# Units of a run that are worth products of whole tiles, which take 16 of them in the time of one.
TILE_UNITS = 4
# Cycles from a product of tiles to the next one that adds to its sums (Intel's optimization manual), and about as many
# as it takes to scale, round and store a vector of sums.
TILE_LATENCY, SETTLING = 52, 6
# As many vectors are settled while the next tile's products begin, and what that gains.
SHORT_EPILOGUE, OVERLAP = 16, 1.1


class Cut(NamedTuple):
    """Pixels in a tile, vectors in a panel, and for how many tiles a panel stays before the next one has its turn."""

    pixels: int
    vectors: int
    stay: int


@dataclass(frozen=True)
class Dense:
    """The loops of one layer.

    width: bytes of one input number (1: codes, 2: bfloat16, 4: float32). is_framed: whether rows of the input or of the
    output lie apart. is_streamed: whether all layers together have more weights than a core has cache, so that none
    are left in it from run to run. in_nibbles: whether weights stay packed. chosen: one of `cuts`; None is the first.
    """

    window: Window
    outputs: int
    groups: int
    isa: Isa
    width: int
    accumulation: Int16Accumulation = IN_INT32
    is_framed: bool = False
    is_streamed: bool = False
    in_nibbles: bool = False
    chosen: Cut | None = None

    @property
    def tile(self) -> TileShape:
        """The products that the kernel is made of: the best whose rows are pixels of a row of the output."""
        return next(filter(self._suits, self.isa.shapes(self.width)))

    def _suits(self, tile: TileShape) -> bool:
        if self._is_large(tile):
            return self.usual[1] > FEW_PIXELS and self._steps(tile)[1] >= TILE_UNITS
        return tile.m <= (1 if varies(self.area) else self.area[1])

    def _steps(self, tile: TileShape) -> tuple[int, int]:
        """Steps of a run, and units in each: as even as they can be, and of bfloat16 exactly even, as what lies behind
        a run may be no number.
        """
        unit = DOT // self.width
        units, most = -(-self.runs[2] // unit), tile.k // unit
        if self.width == 1:
            return replace(self.accumulation, chain=most).links(units)
        length = max(length for length in range(1, most + 1) if units % length == 0)
        return units // length, length

    def _is_large(self, tile: TileShape) -> bool:
        return tile.m * tile.n > self.isa.lanes

    @property
    def has_tile_registers(self) -> bool:
        """Whether the sums of a tile and a panel are in registers for whole tiles, but for single pixels."""
        return self._is_large(self.tile)

    @property
    def in_tile_registers(self) -> bool:
        """Whether the sums are in registers for whole tiles."""
        return self.has_tile_registers and self.cut.pixels > 1

    @property
    def rows(self) -> int:
        """Pixels that a product of vectors takes at once."""
        return 1 if self.has_tile_registers else self.tile.m

    @property
    def unit(self) -> int:
        """Inputs taken at once; a tile has several of these units."""
        return DOT // self.width if self.has_tile_registers else self.tile.k

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
        """Products of one sample."""
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
        """Chains of a run, and units in a chain; of tiles these are steps."""
        if self.has_tile_registers:
            return self._steps(self.tile)
        units = -(-self.runs[2] // self.unit)
        return (-(-units // self.isa.lanes), self.isa.lanes) if self.by_lane else self.accumulation.links(units)

    @property
    def by_lane(self) -> bool:
        """Whether inputs are read as whole vectors, out of which instructions take those of each unit."""
        is_long = self.runs[2] > DOT * (self.isa.lanes - 1)
        return self.isa.by_lane and self.width == 1 and self.tile.m == 1 and is_long

    @property
    def has_unsafe_chains(self) -> bool:
        """Whether chains may overflow."""
        return self.isa.in_words and self.links[1] > self.accumulation.safe

    def unsafe_chains(self, codes: np.ndarray) -> np.ndarray:
        """Which chains can overflow with weights (outputs, inputs of a group, *kernel): flat, uint8, by panel of any
        group, run and chain.
        """
        rows, columns, run = self.runs
        (count, length), width = self.links, self.cut.vectors * self.isa.lanes
        along = np.moveaxis(codes, 1, -1).reshape(self.outputs, rows * columns, run)
        along = np.pad(along, ((0, 0), (0, 0), (0, count * length * self.unit - run)))
        chains = along.reshape(self.groups, self.group_outputs, -1, count, length, self.unit // PAIR, PAIR)
        missing = self.panels * width - self.group_outputs
        result = np.pad(overflows(chains).any(-1), ((0, 0), (0, missing), (0, 0), (0, 0)))
        panels = result.reshape(self.groups, self.panels, width, -1, count)
        return panels.any(2).astype(np.uint8).reshape(-1)

    @property
    def depth(self) -> int:
        """Units in a run."""
        return prod(self.links)

    @property
    def is_flat(self) -> bool:
        """Whether all pixels are one row."""
        return self.window.is_pointwise and self.groups == 1 and not self.is_framed

    @property
    def area(self) -> tuple[Any, Any]:
        """Output rows and columns; of a flat layer these may vary from call to call."""
        height, width = self.window.output
        return (1, height * width) if self.is_flat else (height, width)

    @property
    def usual(self) -> tuple[int, int]:
        """The area, of a usual size where it varies."""
        height, width = self.area
        return hint(height), hint(width)

    @cached_property
    def cut(self) -> Cut:
        """How the loops are cut."""
        return self.chosen or self.cuts[0]

    @property
    def cuts(self) -> list[Cut]:
        """Ways to cut the loops, the one that should be the fastest first; of equal shapes the usual order first."""
        shapes = [self._pairs] if self.in_nibbles else self._shapes()
        results = [Cut(*shape, stay) for shape in shapes for stay in self._stays(*shape)]
        least = min(PIECES, self._pieces(results[0]))
        return [cut for cut in results if self._pieces(cut) >= least]

    def _pieces(self, cut: Cut) -> int:
        """Pieces of the outer loop, which threads share."""
        tiles = self._tile_count(cut.pixels)
        return self.groups * self._panels(cut.vectors) if cut.stay >= tiles else -(-tiles // cut.stay)

    def _stays(self, pixels: int, vectors: int) -> list[int]:
        """For how many tiles a panel may stay: one, some, or all of them; the usual number first."""
        tiles, panels = self._tile_count(pixels), self.groups * self._panels(vectors)
        if panels == 1:
            return [1]
        some = max(tiles // PIECES, 1)
        if panels * vectors * self.vector_size * self.width > CACHED_WEIGHTS:
            usual = tiles
        else:
            # Lines of real numbers would leave a core's first cache before the next panel completes them.
            usual = some if self.width == 1 else 1
        return list(dict.fromkeys([usual, tiles, some, 1]))

    def _shapes(self) -> list[tuple[int, int]]:
        """Pixels in a tile and vectors in a panel: few pixels twice, then many products per loaded number."""
        vectors = -(-self.group_outputs // self.isa.lanes)
        panels = [panel for panel in range(1, LARGEST_PANEL + 1) if vectors % panel == 0]
        shapes = dict.fromkeys(shape for panel in panels for shape in self._tiles(panel))
        return sorted(shapes, key=self._worth, reverse=True)

    @property
    def _pairs(self) -> tuple[int, int]:
        """All pixels, and an even number of vectors, of which two share their bytes."""
        pixels = self.usual[1]
        fits = pixels * LARGEST_PANEL <= self.isa.registers - self.isa.working
        return pixels, LARGEST_PANEL if fits else LARGEST_PANEL // 2

    def _tiles(self, panel: int) -> Iterator[tuple[int, int]]:
        """The largest tile for the registers, one whose epilogue overlaps with the next tile's products, and others."""
        if self.has_tile_registers:
            yield from self._sets_of_tiles(panel)
            return
        width, most = self.usual[1], (self.isa.registers - self.isa.working - panel) // panel
        rows = self.rows
        for reach in (LARGEST_TILE, SHORT_EPILOGUE // panel, *OTHER_TILES):
            tiles = -(-width // min(most, reach))
            yield max(-(-width // tiles) // rows, 1) * rows, panel

    def _sets_of_tiles(self, panel: int) -> Iterator[tuple[int, int]]:
        """As many tiles of pixels as there are registers for their sums, and for inputs or weights, of which the fewer
        stay and the others follow each other; one where pixels vary, as fewer than a set has go one by one.
        """
        width, registers = self.usual[1], self.isa.tile_registers
        assert registers is not None
        for count in range(1, 2 if varies(self.area) else registers.registers):
            if count * panel + min(count, panel) < registers.registers:
                yield -(-width // -(-width // (self.tile.m * count))), panel

    def tiles_of(self, pixels: int) -> tuple[int, int]:
        """How many registers have the sums of so many pixels, and the rows of each; the last one begins early enough
        to be whole.
        """
        count = -(-pixels // self.tile.m)
        return count, -(-pixels // count)

    def _worth(self, shape: tuple[int, int]) -> float:
        """How many products of a tile are of use, over what each costs."""
        pixels, panel = shape
        if self.has_tile_registers:
            return self._worth_of_tiles(pixels, panel)
        width = self.usual[1]
        computed = -(-width // pixels) * pixels
        loads = (pixels + panel) / (pixels * panel)
        overlaps = pixels * panel <= SHORT_EPILOGUE
        return width / computed / (1 + LOAD * loads) * (OVERLAP if overlaps else 1)

    def _worth_of_tiles(self, pixels: int, panel: int) -> float:
        count, rows = self.tiles_of(pixels)
        steps = self.runs[0] * self.runs[1] * self.links[0]
        loads = count * rows + panel * self.links[1]
        cycles = steps * (max(count * panel * rows, TILE_LATENCY) + LOAD * loads) + SETTLING * count * rows * panel
        return panel / (-(-self.usual[1] // pixels) * cycles)

    @property
    def panels(self) -> int:
        """Panels of a group."""
        return self._panels(self.cut.vectors)

    def _panels(self, vectors: int) -> int:
        return -(-self.group_outputs // (self.isa.lanes * vectors))

    @property
    def vector_size(self) -> int:
        """Weights of as many outputs as a vector has."""
        rows, columns, _ = self.runs
        return rows * columns * self.depth * self.accumulation.parts * self.isa.lanes * self.unit

    @property
    def panel_size(self) -> int:
        """Weights of a panel."""
        return self.cut.vectors * self.vector_size

    @property
    def tiles(self) -> int:
        """Tiles of all pixels, of a usual number where that varies."""
        return self._tile_count(self.cut.pixels)

    def _tile_count(self, pixels: int) -> int:
        height, width = self.usual
        return height * -(-width // pixels)

    @property
    def is_weight_bound(self) -> bool:
        """Whether a sample uses every weight but a few times, and they come from beyond a core's second cache."""
        height, pixels = self.area
        return (
            not varies(self.area)
            and height == 1
            and pixels <= FEW_PIXELS
            and self.products // pixels * self.width > (FEWEST_WEIGHTS if self.is_streamed else CACHED_WEIGHTS)
        )

    @property
    def order(self) -> Order:
        """Order of weights (outputs, inputs of a group, *kernel): group, panel, run, unit, part, channel, tap."""
        rows, columns, _ = self.runs
        width = self.cut.vectors * self.isa.lanes
        sizes = (self.groups, self.panels, rows, columns, self.depth, self.accumulation.parts, width, self.unit)
        return Order(sizes, self._source)

    def _source(self, place: Sequence[Any]) -> IndexSource:
        group, panel, row, column, step, part, channel, tap = place
        output = panel * (self.cut.vectors * self.isa.lanes) + channel
        along = step * self.unit + tap
        column = column + along // self.group_inputs
        plane = (group * self.group_outputs + output) * self.group_inputs + along % self.group_inputs
        offset = (plane * self.window.kernel[0] + row) * self.window.kernel[1] + column
        limits = (output, self.group_outputs), (along, self.runs[2])
        return IndexSource(offset, limits, part if self.accumulation.parts > 1 else None)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per output channel in the order of the panels."""
        width = self.panels * self.cut.vectors * self.isa.lanes
        grouped = values.reshape(self.groups, self.group_outputs)
        return np.pad(grouped, ((0, 0), (0, width - self.group_outputs))).reshape(-1)
