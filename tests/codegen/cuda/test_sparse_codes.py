"""Weights of which two of each four are kept: what lies where, against the tables of the PTX ISA."""

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from fours import two_of_four
from sparse_tables import place_of_a, place_of_e
from test_emulator_threads import place_of_c

from ptqc.codegen.cuda.packed_weights import LANES, Coding
from ptqc.codegen.cuda.sparse_codes import SparseCodes
from ptqc.codegen.cuda.swap_ab import first_channel_of
from ptqc.codegen.cuda.tiles import STEP, TileCut, Tiles
from ptqc.codegen.program.program import Window

WINDOWS = {
    "a product": (Window(48, (1, 5)), 10),
    "a window": (Window(16, (6, 7), (3, 2)), 40),
    "whole steps": (Window(64, (3, 3), (2, 2), (1, 1), (1, 1)), 64),
    "many channels": (Window(32, (9, 9), (1, 3)), 130),
}


def codes_of(shape: tuple[int, ...]) -> np.ndarray:
    """int8 codes (outputs, inputs, *kernel), at most two of each four inputs not zero."""
    return two_of_four(np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8))


def channel_of(warp: int, matrix: int, row: int) -> int:
    """The channel of a panel that is a row of a matrix, so that a lane's (rows of c) are four neighbours."""
    return warp * 32 + row % 8 * 4 + matrix * 2 + row // 8


@pytest.mark.parametrize(("window", "outputs"), WINDOWS.values(), ids=WINDOWS)
def test_each_lane_finds_its_kept_weights_and_places(window: Window, outputs: int) -> None:
    """All that is multiplied, put together again from what the tables say that lanes hold."""
    tiles = Tiles(window, outputs, TileCut(64, 64), is_sparse=True)
    codes = codes_of((outputs, window.channels, *window.kernel))
    result = SparseCodes.of(codes)
    assert result is not None
    registers = result.in_registers(tiles).reshape(tiles.panels, tiles.steps, 2, LANES, 2, 16)
    words = result.in_words(tiles)
    made = np.zeros((tiles.panels * 64, tiles.steps * STEP), np.int8)
    for lane in range(LANES):
        for i in range(16):
            row, kept = place_of_a(lane, i)
            four, which = divmod(kept, 2)
            owner, bit = next((o, b) for o in range(LANES) for b in range(0, 32, 4) if place_of_e(o, b) == (row, four))
            for warp in range(2):
                for matrix in range(2):
                    place = words[:, :, warp, owner, matrix] >> (bit + 2 * which) & 3
                    for panel in range(tiles.panels):
                        channel = panel * 64 + channel_of(warp, matrix, row)
                        columns = np.arange(tiles.steps) * STEP + 4 * four + place[panel]
                        made[channel, columns] += registers[panel, :, warp, lane, matrix, i]
    depth = codes[0].size
    np.testing.assert_array_equal(made[:outputs, :depth], np.moveaxis(codes, 1, -1).reshape(outputs, depth))
    assert not made[outputs:].any()
    assert not made[:, depth:].any()


def test_the_sums_of_a_lane_are_four_neighbouring_channels() -> None:
    for lane in range(LANES):
        rows = [place_of_c(lane, i)[0] for i in (0, 2)]
        result = [channel_of(0, matrix, row) for matrix in range(2) for row in rows]
        assert result == [first_channel_of(lane // 4) + i for i in range(4)]


def test_places_ascend_and_what_fills_up_is_valid() -> None:
    window, outputs = WINDOWS["a window"]
    tiles = Tiles(window, outputs, TileCut(64, 64), is_sparse=True)
    result = SparseCodes.of(codes_of((outputs, window.channels, *window.kernel)))
    assert result is not None
    pairs = result.in_words(tiles).reshape(-1, 1) >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    assert (pairs & 3 < pairs >> 2).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_unit_has_the_packed_codes_and_then_the_places(bits: int) -> None:
    window, outputs = WINDOWS["a product"]
    tiles = Tiles(window, outputs, TileCut(64, 64), bits, is_sparse=True)
    result = SparseCodes.of(codes_of((outputs, window.channels, *window.kernel)) >> (8 - bits))
    assert result is not None
    coding = Coding(bits)
    packed = result.pack(tiles, coding).reshape(tiles.panels * tiles.steps * 2, -1)
    assert packed.shape[1] == tiles.unit_bytes == 128 * bits + 256
    np.testing.assert_array_equal(packed[:, : 128 * bits].reshape(-1), coding.pack(result.in_registers(tiles)))
    np.testing.assert_array_equal(
        packed[:, 128 * bits :].reshape(-1), result.in_words(tiles).reshape(-1).view(np.uint8)
    )


def test_more_than_two_of_four_inputs_of_a_tap_are_refused() -> None:
    codes = codes_of((8, 16, 3, 3))
    assert SparseCodes.of(codes) is not None
    assert SparseCodes.of(np.ascontiguousarray(codes.reshape(8, 9, 16).swapaxes(1, 2)).reshape(8, 16, 3, 3)) is None
    codes[3, 4:7, 1, 2] = 1
    assert SparseCodes.of(codes) is None
    assert SparseCodes.of(codes_of((8, 16, 1, 1))[:, :6]) is None
