"""Matrix instructions of tensor cores, a row each, and what PTX calls them.

A kernel cuts its work into tiles of 16 × 8 sums of 32 products (`tiles.py`); an instruction that takes part of such a
tile is issued for each part. Another instruction is a row of DENSE: all rows are variants of every layer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ptqc.codegen.cuda.tiles import CHUNK, PART, ROWS, SUMS
from ptqc.codegen.kernels.isa import TileShape

# Inputs are the left matrix. The first row is what is taken where nothing was measured.
DENSE = (TileShape(16, 8, 32),)
# Weights are the left matrix.
SWAPPED = TileShape(16, 8, 32)
# Weights are the left matrix, of which half is stored.
SPARSE = TileShape(16, 8, 64)
# Of warpgroups: weights are the left matrix, the right one has as many columns as a tile has pixels.
GROUPED = TileShape(64, 256, 32)


def size(tile: TileShape) -> str:
    """The size of a shape, as PTX names it."""
    return f"m{tile.m}n{tile.n}k{tile.k}"


def mma(tile: TileShape) -> str:
    """The product with inputs as the left matrix."""
    return f"mma.sync.aligned.{size(tile)}.row.col.{tile.sums}.{tile.inputs}.{tile.weights}.{tile.sums}"


def mma_swapped(tile: TileShape, kind: str = "mma") -> str:
    """The product with weights as the left matrix."""
    return f"{kind}.sync.aligned.{size(tile)}.row.col.{tile.sums}.{tile.weights}.{tile.inputs}.{tile.sums}"


def mma_sparse(tile: TileShape) -> str:
    """The same, with weights of which two of each four are stored."""
    return mma_swapped(tile, "mma.sp::ordered_metadata")


def wgmma(tile: TileShape, columns: int) -> str:
    """The product of a warpgroup."""
    return f"wgmma.mma_async.sync.aligned.m{tile.m}n{columns}k{tile.k}.{tile.sums}.{tile.weights}.{tile.inputs}"


def parts(
    tile: TileShape, sums: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any]
) -> Iterator[tuple[Sequence[Any], Sequence[Any], Sequence[Any]]]:
    """Cut the registers of 16 × 8 sums of 32 products into those of each instruction.

    inputs: 16 bytes of rows 0 … 7, of rows 8 … 15, and the same of the next 16 bytes. weights: of 16 bytes each.
    """
    halves, rows = tile.k // CHUNK, tile.m // 8
    for first in range(0, PART // CHUNK, halves):
        for row in range(0, ROWS // 8, rows):
            left = [inputs[2 * k + r] for k in range(first, first + halves) for r in range(row, row + rows)]
            yield sums[row * SUMS // 2 :][: rows * SUMS // 2], left, weights[first : first + halves]
