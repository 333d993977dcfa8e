"""Weights as tensor cores read them: what lies where, against the tables of the PTX ISA."""

import numpy as np
import pytest

from ptqc.codegen.cuda.tiles import LANES, STEP, TileCut, Tiles
from ptqc.codegen.program.program import Window

WINDOWS = {
    "a product": (Window(48, (1, 5)), 10),
    "a window": (Window(16, (6, 7), (3, 2)), 40),
    "whole steps": (Window(64, (3, 3), (2, 2), (1, 1), (1, 1)), 64),
    "many channels": (Window(32, (9, 9), (1, 3)), 130),
}


def place_of_b(lane: int, i: int) -> tuple[int, int]:
    """PTX ISA, "Matrix fragments for mma.m16n8k32", B of 8 bits: row and column of element i."""
    group, thread = lane >> 2, lane % 4
    return thread * 4 + (i & 3) if i < 4 else thread * 4 + (i & 3) + 16, group


def place_of_c(lane: int, i: int) -> tuple[int, int]:
    """The same of C and D."""
    group, thread = lane >> 2, lane % 4
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


@pytest.mark.parametrize(("window", "outputs"), WINDOWS.values(), ids=WINDOWS)
def test_each_lane_finds_its_fragments_side_by_side(window: Window, outputs: int) -> None:
    tiles = Tiles(window, outputs, TileCut(64, 64))
    weights = np.random.default_rng(0).integers(-128, 128, (outputs, window.channels, *window.kernel)).astype(np.int8)
    packed = tiles.order(weights).reshape(tiles.panels, tiles.steps, 2, 2, LANES, 4, 8)
    depth = weights[0].size
    matrix = np.zeros((tiles.steps * STEP, tiles.panels * 64), np.int8)
    matrix[:depth, :outputs] = weights.transpose(2, 3, 1, 0).reshape(depth, outputs)
    columns = channels_of_sums(tiles)
    for lane in range(LANES):
        for i in range(8):
            row, column = place_of_b(lane, i)
            for part in range(2):
                wanted = matrix.reshape(tiles.steps, STEP, -1)[:, part * 32 + row]
                for block in range(8):
                    panels = wanted.reshape(tiles.steps, tiles.panels, 64)[..., columns[block, column]]
                    result = packed[:, :, block // 4, part, lane, block % 4, i]
                    np.testing.assert_array_equal(result, panels.T)


def channels_of_sums(tiles: Tiles) -> np.ndarray:
    """The channel of a panel for each column of each block, so that a lane's sums of a row are eight neighbours.

    A warp takes four blocks, of which a lane has two columns each (`place_of_c`).
    """
    result = np.full((tiles.cut.columns // 8, 8), -1)
    for block in range(tiles.cut.columns // 8):
        for thread in range(4):
            for i in range(2):
                _, column = place_of_c(thread, i)
                result[block, column] = block // 4 * 32 + thread * 8 + block % 4 * 2 + i
    assert sorted(result.reshape(-1)) == list(range(tiles.cut.columns))
    return result


def test_warps_share_a_tile_by_rows_columns_and_parts_of_a_step() -> None:
    tiles = Tiles(Window(16, (9, 9)), 70, TileCut(64, 64, row_tiles=1, shares=2))
    assert (tiles.warps, tiles.warp_rows, tiles.threads) == ((2, 4, 2), 16, 512)


def test_numbers_of_channels_that_do_not_exist_are_zero() -> None:
    tiles = Tiles(Window(16, (9, 9)), 70, TileCut(64, 64))
    packed = tiles.pack_channels(np.ones(70, np.int32))
    assert (packed.size, packed.sum()) == (128, 70)
