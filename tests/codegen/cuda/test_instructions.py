"""Instructions of tensor cores: how PTX names them, and which registers of a tile each takes."""

import numpy as np
import pytest

from ptqc.codegen.cuda import instructions
from ptqc.codegen.kernels.isa import TileShape


def test_names_are_those_of_ptx() -> None:
    assert instructions.mma(TileShape(8, 8, 16)) == "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32"
    assert instructions.mma_swapped(instructions.SWAPPED) == "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32"
    named = "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.u8.s32"
    assert instructions.mma_sparse(instructions.SPARSE) == named
    assert instructions.wgmma(instructions.GROUPED, 24) == "wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.u8"


@pytest.mark.parametrize("shape", [*instructions.DENSE, TileShape(16, 8, 16), TileShape(8, 8, 32), TileShape(8, 8, 16)])
def test_parts_of_a_tile_add_up_to_its_products(shape: TileShape) -> None:
    """Registers as the PTX ISA's figures have them, each with 4 bytes or 1 sum of every lane."""
    random = np.random.default_rng(0)
    a, b = random.integers(0, 256, (16, 32)), random.integers(-128, 128, (32, 8))
    inputs = [a[8 * (i % 2) :][:8, 16 * (i // 2) :][:, :16] for i in range(4)]
    weights = [b[:16], b[16:]]
    sums: list[list[np.ndarray]] = [[np.zeros((8, 8), int)] for _ in range(2)]
    for own, left, right in instructions.parts(shape, [sums[0], sums[0], sums[1], sums[1]], inputs, weights):
        rows = shape.m // 8
        for k, weight in enumerate(right):
            for row in range(rows):
                own[2 * row][0] = own[2 * row][0] + left[k * rows + row] @ weight
    np.testing.assert_array_equal(np.concatenate([sums[0][0], sums[1][0]]), a @ b)
