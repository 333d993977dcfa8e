"""Weights as tensor cores read them: what lies where, against the tables of the PTX ISA."""

import numpy as np
import pytest

from ptqc.codegen.cuda.tiles import LANES, STEP, Tiles
from ptqc.codegen.program.window import Window

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
def test_each_lane_finds_its_fragment_in_one_piece(window: Window, outputs: int) -> None:
    tiles = Tiles.of(window, outputs)
    weights = np.random.default_rng(0).integers(-128, 128, (outputs, window.channels, *window.kernel)).astype(np.int8)
    packed = tiles.order(weights).reshape(tiles.panels, tiles.steps, tiles.columns // 8, LANES, 2, 8)
    depth = weights[0].size
    matrix = np.zeros((tiles.steps * STEP, tiles.panels * tiles.columns), np.int8)
    matrix[:depth, :outputs] = weights.transpose(2, 3, 1, 0).reshape(depth, outputs)
    columns = channels_of_sums(tiles)
    for lane in range(LANES):
        for i in range(8):
            row, column = place_of_b(lane, i)
            for half in range(2):
                wanted = matrix.reshape(tiles.steps, STEP, -1)[:, half * 32 + row]
                for block in range(tiles.columns // 8):
                    panels = wanted.reshape(tiles.steps, tiles.panels, tiles.columns)[..., columns[block, column]]
                    np.testing.assert_array_equal(packed[:, :, block, lane, half, i], panels.T)


def channels_of_sums(tiles: Tiles) -> np.ndarray:
    """The channel of a panel for each column of each block, so that a lane's sums of a row are eight neighbours.

    A warp takes four blocks, of which a lane has two columns each (`place_of_c`).
    """
    found = np.full((tiles.columns // 8, 8), -1)
    for block in range(tiles.columns // 8):
        for thread in range(4):
            for i in range(2):
                _, column = place_of_c(thread, i)
                found[block, column] = block // 4 * 32 + thread * 8 + block % 4 * 2 + i
    assert sorted(found.reshape(-1)) == list(range(tiles.columns))
    return found


def test_few_channels_and_pixels_take_smaller_tiles() -> None:
    assert (Tiles.of(Window(16, (4, 4)), 10).rows, Tiles.of(Window(16, (4, 4)), 10).columns) == (32, 32)
    large = Tiles.of(Window(16, (9, 9)), 33)
    assert (large.rows, large.columns, large.threads, large.panels) == (64, 64, 128, 1)


def test_numbers_of_channels_that_do_not_exist_are_zero() -> None:
    tiles = Tiles.of(Window(16, (9, 9)), 70)
    packed = tiles.pack_channels(np.ones(70, np.int32))
    assert (packed.size, packed.sum()) == (128, 70)
