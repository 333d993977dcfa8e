"""Moves by whole vectors give what moves by element would, for rows shorter, as long and longer than a vector."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, present, run

from ptqc.codegen.kernels.families import move, planes
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import pieces
from ptqc.codegen.program.layout import Layout

INSTRUCTION_SETS = pytest.mark.parametrize("chosen", present(), ids=lambda chosen: chosen.name)
SHAPES = [(1, 3, 2), (3, 5, 21), (3, 4, 200), (64, 2, 3), (37, 3, 4), (130, 1, 1)]
BATCH = 2


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (BATCH, *shape)).astype(dtype)


@INSTRUCTION_SETS
def test_borders(chosen: Isa, tmp_path: Path) -> None:
    cases, wanted = [], []
    for dtype in ("uint8", "float32"):
        for number, (channels, height, width) in enumerate(SHAPES):
            top, left, bottom, right = ((number + i) % 4 for i in range(4))
            x = Layout((channels, height, width), dtype)
            y = Layout((channels, height + top + bottom, width + left + right), dtype)
            values = drawn(x.shape, dtype)
            cases.append(Case(move.pad(x, y, (0, top, left), 7, chosen), [x], [values], y))
            wanted.append(np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=7))
    for result, expected in zip(run(cases, chosen, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@INSTRUCTION_SETS
def test_concatenation_along_every_axis(chosen: Isa, tmp_path: Path) -> None:
    cases, wanted = [], []
    for plain in (False, True):
        for axis in range(3):
            shapes = [tuple(size + (i * 5 if a == axis else 0) for a, size in enumerate((9, 4, 6))) for i in range(3)]
            values = [drawn(shape, "uint8") for shape in shapes]
            joined = np.concatenate(values, axis + 1)
            value = [Layout(shape, "uint8", row_major=plain) for shape in shapes]
            y = Layout(joined.shape[1:], "uint8", row_major=plain)
            cases.append(Case(move.concat(value, y, axis, chosen), value, values, y))
            wanted.append(joined)
    for result, expected in zip(run(cases, chosen, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@INSTRUCTION_SETS
def test_codes_of_planes(chosen: Isa, tmp_path: Path) -> None:
    cases, wanted = [], []
    for channels in range(1, planes.MOST_CHANNELS + 1):
        x, y = Layout((channels, 9, 11), "float32", is_io=True), Layout((channels, 9, 11), "uint8")
        values = np.random.default_rng(channels).normal(0, 30, (BATCH, *x.shape)).astype(np.float32)
        values.flat[:6] = [1e30, -1e30, np.inf, -np.inf, 0.5, 1.5]
        assert planes.takes(x, y, chosen)
        cases.append(Case(planes.quantize(x, y, chosen, 0.37, 100), [x], [values], y))
        steps = np.rint(values / np.float32(0.37)) + np.float32(100)
        wanted.append(np.clip(steps, 0, 255).astype(np.uint8))
    for result, expected in zip(run(cases, chosen, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("widest", [1, 8, 64])
def test_pieces_cover_everything_once(widest: int) -> None:
    for count in range(200):
        covered = [place for start, length in pieces(count, widest) for place in range(start, start + length)]
        assert covered == list(range(count))
