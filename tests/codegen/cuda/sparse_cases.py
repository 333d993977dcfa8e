"""Layers of codes on sparse tensor cores, one kernel each, with what they have to give; imports TVM."""

import re
from collections.abc import Callable, Iterator

import numpy as np
from dense_cases import POINTS, WINDOW, Drawn
from fours import two_of_four
from single_kernels import Case

from ptqc.codegen.cuda import mma_sparse
from ptqc.codegen.cuda.sparse_codes import SparseCodes
from ptqc.codegen.cuda.tiles import TileCut, Tiles
from ptqc.codegen.program.program import Window

CUTS = {
    "few rows": TileCut(32, 32, 1),
    "tall": TileCut(128, 32, 4, 1, 4),
    "wide": TileCut(32, 128, 2, 1, 6),
    "square": TileCut(64, 64),
}
WINDOWS = {"a window": (WINDOW, 70), "a product": (POINTS, 33), "3 × 3": (Window(64, (9, 6), (3, 3)), 64)}
FOUR = r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}"
MULTIPLY = rf"(mma\.sp\S+\s+){FOUR}, {FOUR}, {FOUR}, {FOUR}, (%r\d+), 0;"


def operands(to: str) -> Callable[[str], str]:
    """Other operands. Groups: 2 to 5 new sums, 6 to 9 weights, 10 to 13 inputs, 14 to 17 old sums, 18 metadata."""
    return lambda ptx: re.sub(MULTIPLY, rf"\1{to};", ptx)


SUMS, KEPT, INPUTS, OLD = r"{\2, \3, \4, \5}", r"{\6, \7, \8, \9}", r"{\10, \11, \12, \13}", r"{\14, \15, \16, \17}"
# Of the kind "few".
FAULTS: dict[str, Callable[[str], str]] = {
    "metadata of the other matrix": lambda ptx: re.sub(
        r"(ld\.shared\.v2\.[bu]32\s+)\{(%r\d+), (%r\d+)\}", r"\1{\3, \2}", ptx
    ),
    "metadata of another place": lambda ptx: re.sub(
        r"(ld\.shared\.v2\.[bu]32\s+\{[^}]*\}, \[%r\d+)(?:\+(\d+))?\]",
        lambda found: f"{found[1]}+{int(found[2] or 0) + 8}]",
        ptx,
    ),
    "codes for metadata": operands(rf"{SUMS}, {KEPT}, {INPUTS}, {OLD}, \6, 0"),
    "another selector": operands(rf"{SUMS}, {KEPT}, {INPUTS}, {OLD}, \18, 1"),
    "rows of weights exchanged": operands(rf"{SUMS}, {{\7, \6, \9, \8}}, {INPUTS}, {OLD}, \18, 0"),
    "halves of weights exchanged": operands(rf"{SUMS}, {{\8, \9, \6, \7}}, {INPUTS}, {OLD}, \18, 0"),
    "pieces of inputs exchanged": operands(rf"{SUMS}, {KEPT}, {{\10, \12, \11, \13}}, {OLD}, \18, 0"),
    "sums exchanged": operands(rf"{{\3, \2, \5, \4}}, {KEPT}, {INPUTS}, {OLD}, \18, 0"),
    "sums of the other rows": operands(rf"{{\4, \5, \2, \3}}, {KEPT}, {INPUTS}, {OLD}, \18, 0"),
    "inputs with a sign": lambda ptx: ptx.replace("s32.s8.u8.s32", "s32.s8.s8.s32"),
    "weights without a sign": lambda ptx: ptx.replace("s32.s8.u8.s32", "s32.u8.u8.s32"),
    "copies waited for too late": lambda ptx: re.sub(r"wait_group\s+(\d+);", r"wait_group 1\1;", ptx),
    "pieces of a row exchanged otherwise": lambda ptx: ptx.replace("xor.b32", "or.b32"),
    "rounded down": lambda ptx: ptx.replace("cvt.rni.f32.f32", "cvt.rmi.f32.f32"),
    "factors of the next channel": lambda ptx: re.sub(r"(ld\.global\.nc\.f32[^;]*)\+4\];", r"\1+8];", ptx),
}  # fmt: skip


def case(levels: np.ndarray, cut: TileCut, seed: int, window: Window, outputs: int, ends: bool) -> Case:
    """A layer with random codes. ends: inputs are 0 or 255."""
    shape = (outputs, window.channels, *window.kernel)
    weights = two_of_four(np.random.default_rng(seed).choice(levels, shape).astype(np.int8), seed)
    result = Drawn.of(weights, seed, window, ends=ends)
    codes = SparseCodes.of(weights)
    assert codes is not None
    coding = codes.coding()
    tiles = Tiles(window, outputs, cut, coding.bits, is_sparse=True)
    return result.case(mma_sparse.write(tiles, coding, codes, result.layer(window, weights)))


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Codes of several widths, lists and ends of the range, in several cuts. kind: few or all."""
    codes = {f"{bits} bits": np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in (8, 3, 5, 7, 2, 4, 6)}
    codes |= {"the ends": np.array([-127, 127, -128, 127]), "a list": np.array([-90, -7, 33, 64, 120])}
    chosen = codes if kind == "all" else {name: codes[name] for name in ("8 bits", "3 bits")}
    windows, cuts = list(WINDOWS.items()), list(CUTS.items())
    for seed, (name, levels) in enumerate(chosen.items()):
        (place, (window, outputs)), (label, cut) = windows[seed % len(windows)], cuts[seed % len(cuts)]
        yield f"{name}, {place}, {label}", case(levels, cut, seed, window, outputs, ends=name == "the ends")
