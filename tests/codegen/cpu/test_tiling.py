"""Tiles fit the registers and cover the output; packed weights hold every weight once, in the order of the loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels.families.depthwise_dot4 import ColumnLoops
from ptqc.codegen.kernels.int16_accumulation import Int16Accumulation
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.tiling import Cut, Dense
from ptqc.codegen.program.program import Window

SETS = st.sampled_from([isa.AVX2, isa.AVX512_VNNI, isa.ARM_NEON, isa.ARM_DOTPROD, isa.ARM_I8MM])


@given(SETS, st.integers(1, 60), st.integers(1, 300), st.integers(1, 3))
def test_a_tile_fits_the_registers(chosen: Isa, width: int, outputs: int, kernel: int) -> None:
    loops = Dense(Window(8, (kernel, width + kernel - 1), (kernel, kernel)), outputs, 1, chosen, 1)
    for pixels, panel, _ in loops.cuts:
        assert pixels * panel + panel + chosen.working <= chosen.registers
        assert 1 <= pixels <= width
    assert loops.panels * loops.cut.vectors * chosen.lanes >= outputs


@given(SETS, st.integers(1, 60), st.integers(1, 2000), st.integers(1, 600), st.sampled_from([1, 4]))
def test_other_cuts_leave_as_many_pieces_for_threads(
    chosen: Isa, width: int, outputs: int, inputs: int, size: int
) -> None:
    loops = Dense(Window(inputs, (width, width)), outputs, 1, chosen, size)

    def pieces(cut: Cut) -> int:
        tiles = -(-(width * width) // cut.pixels)
        return -(-outputs // (cut.vectors * chosen.lanes)) if cut.stay >= tiles else -(-tiles // cut.stay)

    first, *others = map(pieces, loops.cuts)
    assert all(result >= min(first, 16) for result in others)
    assert len(set(loops.cuts)) == len(loops.cuts)


@given(st.sampled_from([isa.AVX2, isa.AVX512_VNNI]), st.integers(1, 200), st.integers(2, 7), st.sampled_from([3, 100]))
def test_columns_hold_every_weight_once(chosen: Isa, channels: int, tall: int, reach: int) -> None:
    window = Window(channels, (9, 9), (tall, 3))
    weights = np.random.default_rng(channels).integers(-reach, reach, (channels, tall, 3)).astype(np.int8)
    loops = ColumnLoops(window, chosen, Int16Accumulation.of(chosen, weights))
    packed = loops.weight_order(weights).astype(int).reshape(len(loops.starts), -1)
    for start, block in zip(loops.starts, packed, strict=True):
        assert block.sum() == weights[start : start + loops.wide].astype(int).sum()


@pytest.mark.parametrize("chosen", [isa.AVX2, isa.AVX512_VNNI])
def test_a_block_of_columns_is_ordered_as_bytes_interleave(chosen: Isa) -> None:
    order = ColumnLoops(Window(64, (5, 5), (3, 3)), chosen, Int16Accumulation()).order
    assert sorted(order.reshape(-1)) == list(range(4 * chosen.lanes))
    np.testing.assert_array_equal(order[0, :8], [0, 1, 2, 3, 16, 17, 18, 19])
    np.testing.assert_array_equal(order[1, :4], [4, 5, 6, 7])
