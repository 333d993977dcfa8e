"""Layers of matrix instructions that take several pixels: of the shape of i8mm, emulated on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import run
from test_dense import FOUR, Geometry, integer_case
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels.isa import DOT, Isa, TileShape
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program.program import Window
from ptqc.utils.machine import machine

SHAPE = TileShape(2, 2, 8)
MATRIX = Isa("matrix", isa.AVX2.cpu, isa.AVX2.features, lanes=4, registers=32, working=8, tiles=(SHAPE,))
GEOMETRIES = [
    Geometry(Window(24, (5, 7), (3, 3)), 70),
    Geometry(Window(5, (4, 11), (2, 3)), 13),
    Geometry(Window(24, (10, 21)), 96, groups=2),
    Geometry(Window(7, (9, 4), (2, 2), (2, 1), (1, 2)), 33, reach=FOUR),
]


def multiply(self: Isa, tile: TileShape, total: Any, x: Any, places: Sequence[Any], w: Any, offset: Any) -> Any:
    """What `Isa.multiply` says, number by number."""
    del self
    total, sums = T.Bind(total), []
    for i in range(tile.m * tile.n):
        (row, column), output = places[i // tile.n], i % tile.n
        products = (
            T.Cast("int32", x[row, column + k]) * T.Cast("int32", w[offset + output * tile.k + k])
            for k in range(tile.k)
        )
        sums.append(T.Bind(sum(products, start=T.Shuffle([total], [T.int32(i)]))))
    return T.Shuffle(sums, [T.int32(i) for i in range(len(sums))])


@pytest.mark.slow
@pytest.mark.skipif(machine() != "x86_64", reason="is about x86-64")
def test_layers_of_tiles_give_the_references_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isa, "multiply", multiply)
    cases = [integer_case(geometry, MATRIX, seed) for seed, geometry in enumerate(GEOMETRIES)]
    results = run([case for case, _ in cases], MATRIX, tmp_path)
    for geometry, result, (_, wanted) in zip(GEOMETRIES, results, cases, strict=True):
        np.testing.assert_array_equal(result, wanted, str(geometry))


def test_a_tile_of_more_rows_than_pixels_is_not_taken() -> None:
    def loops(width: int, size: int = 1) -> Dense:
        return Dense(Window(8, (1, width)), 8, 1, MATRIX, size)

    assert (loops(1).tile, loops(5, 4).tile) == (TileShape(1, 4, DOT), TileShape(1, 4, 1))
    assert loops(2).tile == loops(5).tile == SHAPE
    assert all(cut.pixels % SHAPE.m == 0 for cut in loops(5).cuts)
