"""Weights as warpgroups read them: what lies where, against the tables of the PTX ISA; what can be launched."""

import numpy as np
import pytest
import warpgroup_tables as tables

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.async_copy import exchanged
from ptqc.codegen.cuda.packed_weights import Coding
from ptqc.codegen.cuda.tiles import LANES, STEP, TileCut
from ptqc.codegen.cuda.wgmma_tiles import GroupTiles
from ptqc.codegen.program.program import Window

WINDOWS = {
    "a product": (Window(48, (1, 5)), 130),
    "a window": (Window(16, (6, 7), (3, 2)), 40),
    "whole steps": (Window(64, (3, 3), (2, 2), (1, 1), (1, 1)), 256),
}
LARGE = Window(4096, (1, 4096))


def channel_of(warp: int, matrix: int, row: int) -> int:
    """Of a panel: a lane has, of each pixel, rows g and g + 8 of both matrices, which are four neighbours."""
    return warp * 32 + row % 8 * 4 + matrix * 2 + row // 8


@pytest.mark.parametrize(("window", "outputs"), WINDOWS.values(), ids=WINDOWS)
def test_each_lane_finds_the_registers_of_its_left_matrices(window: Window, outputs: int) -> None:
    tiles = GroupTiles(window, outputs, TileCut(64, 128, 4))
    weights = np.random.default_rng(0).integers(-128, 128, (outputs, window.channels, *window.kernel)).astype(np.int8)
    packed = tiles.order(weights).reshape(tiles.panels, tiles.steps, 4, 2, LANES, 2, 16)
    halves = tiles.order_of_bytes(weights).reshape(tiles.panels, tiles.steps, 4, 2, 2, LANES, 16)
    np.testing.assert_array_equal(packed, np.moveaxis(halves, 4, 5))
    depth = weights[0].size
    matrix = np.zeros((tiles.panels * 128, tiles.steps * STEP), np.int8)
    matrix[:outputs, :depth] = weights.transpose(0, 2, 3, 1).reshape(outputs, depth)
    by_panel = matrix.reshape(tiles.panels, 128, tiles.steps, STEP)
    for thread in range(4 * LANES):
        for i in range(16):
            row, k = tables.place_of_a(thread, i)
            warp, lane = divmod(thread, LANES)
            for channels in range(2):
                for part in range(2):
                    wanted = by_panel[:, channel_of(warp, channels, row - 16 * warp), :, part * 32 + k]
                    np.testing.assert_array_equal(packed[:, :, warp, part, lane, channels, i], wanted)


def test_rows_of_pixels_lie_as_a_matrix_that_is_swizzled_by_64_bytes() -> None:
    for row in range(64):
        for k in range(STEP):
            piece = k // 16 ^ int(exchanged(row).value)
            assert row * STEP + piece * 16 + k % 16 == tables.place_in_shared(2, row, k, leading=16, stride=8 * STEP)


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_candidates_can_be_launched_on_every_chip(bits: int) -> None:
    result = list(costs.group_candidates(LARGE, 4096, bits, 512))
    assert len(result) >= 8
    for tiles in result:
        assert tiles.shared_bytes + 512 <= 99 * 1024
        assert tiles.threads % 128 == 0
        assert tiles.threads <= 512
        assert tiles.cut.rows % tiles.warp_rows == 0
        assert tiles.input_bytes % 512 == tiles.step_bytes % 512 == 0  # where patterns begin


@pytest.mark.parametrize("bits", [8, 4])
def test_large_products_are_predicted_to_be_faster_than_by_single_warps(bits: int) -> None:
    coding = Coding(bits)
    groups = costs.predicted(costs.ranked_groups(LARGE, 4096, coding)[0], coding)
    warps = costs.predicted(costs.ranked(LARGE, 4096, coding)[0], coding)
    least = 4096**3 / (4096 * 132 * 1.83e3)
    assert least < groups["sm_90a"] < 0.8 * warps["sm_90a"]
