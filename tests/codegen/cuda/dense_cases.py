"""Layers of codes on tensor cores, one kernel each, with what they have to give; imports TVM."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from single_kernels import Case

from ptqc.codegen.cuda import mma
from ptqc.codegen.cuda.backend import CUDA
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.instructions import DENSE, size
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.tiles import TileCut, Tiles
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.kernels.isa import TileShape
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window

# Its last step is not full, and neither is the last tile of rows.
WINDOW = Window(48, (7, 8), (3, 2), (1, 2), (2, 1))
POINTS = Window(80, (5, 9), (1, 1), (1, 2))
SAMPLES, OUTPUTS = 3, 70
# Instructions that kernels may be given.
SMALLER = (TileShape(16, 8, 16), TileShape(8, 8, 16))
CUTS = {
    "few rows": TileCut(16, 32, 1),
    "shared steps": TileCut(16, 64, 1, 2),
    "tall": TileCut(128, 32, 4, 1, 2),
    "tall and shared": TileCut(64, 64, 4, 2, 4),
    "wide": TileCut(32, 128, 2, 1, 5),
}


def behind_steps(change: Callable[[str], str]) -> Callable[[str], str]:
    """A change of what each kernel does once all steps are multiplied."""
    return lambda ptx: re.sub(r"cp\.async\.wait_all;[\s\S]*?(?=\.entry|\Z)", lambda result: change(result[0]), ptx)


# Of the kind "few".
FAULTS: dict[str, Callable[[str], str]] = {
    "barriers left out": lambda ptx: re.sub(r"\n\s*bar(rier)?\.sync[^;]*;", "\n", ptx),
    "no barriers around the sums of shares": behind_steps(lambda ptx: re.sub(r"bar\.sync\s+0;", "", ptx)),
    "copies waited for too late": lambda ptx: re.sub(r"wait_group\s+(\d+);", r"wait_group 1\1;", ptx),
    "copies never waited for": lambda ptx: re.sub(
        r"cp\.async\.wait_(group\s+\d+|all);", "cp.async.commit_group;", ptx
    ),
    "pieces of a row exchanged otherwise": lambda ptx: ptx.replace("xor.b32", "or.b32"),
    "the last step not filled with zeros": lambda ptx: re.sub(r"\], 16, %r\d+;", "], 16;", ptx),
    "inputs with a sign": lambda ptx: ptx.replace("s32.u8.s8.s32", "s32.s8.s8.s32"),
    "weights without a sign": lambda ptx: ptx.replace("s32.u8.s8.s32", "s32.u8.u8.s32"),
    "registers of weights exchanged": lambda ptx: re.sub(r"\{(%r\d+), (%r\d+)\}, \{", r"{\2, \1}, {", ptx),
    "rows of inputs exchanged": lambda ptx: re.sub(
        r"(\}, \{)(%r\d+), (%r\d+), (%r\d+, %r\d+\}, \{%r\d+, %r\d+\}, \{)", r"\1\3, \2, \4", ptx
    ),
    "sums exchanged": lambda ptx: re.sub(r"(\.s32\s*)\{(%r\d+), (%r\d+), ", r"\1{\3, \2, ", ptx),
    "the lower plane one bit lower": lambda ptx: ptx.replace(" 538976288;", " 269488144;"),
    "the upper plane one bit lower": lambda ptx: ptx.replace(" -1061109568;", " 1616928864;"),
    "sums divided by too little": behind_steps(lambda ptx: re.sub(r"(shr\.s32\s+%r\d+, %r\d+), 5;", r"\1, 4;", ptx)),
    "sums divided without a sign": behind_steps(
        lambda ptx: re.sub(r"shr\.s32(\s+%r\d+, %r\d+, 5;)", r"shr.u32\1", ptx)
    ),
    "the upper half of a list left out": lambda ptx: re.sub(r" (1145324612|17476);", " 0;", ptx),
    "places with the bit of the upper half": lambda ptx: re.sub(r" (2004318071|30583);", " -1;", ptx),
    "codes of a list exchanged": lambda ptx: re.sub(r"(ld\.global\.nc\.u32\s+%r\d+, \[%rd\d+)\+12\]", r"\1+8]", ptx),
    "the sums of a share left out": lambda ptx: re.sub(r"ld\.shared\.u32(\s+%r\d+), [^;]*;", r"mov.u32\1, 0;", ptx),
    "sums of a share of another register": lambda ptx: re.sub(r"(ld\.shared\.u32[^;]*)\+128\];", r"\1+256];", ptx),
    "the next pair of the table": lambda ptx: re.sub(r"(ld\.shared\.u16\s+%\w+, \[%\w+)\];", r"\1+2];", ptx),
    "pairs exchanged": lambda ptx: re.sub(r"\{(%rs\d+), (%rs\d+)\};", r"{\2, \1};", ptx),
    "rounded down": lambda ptx: ptx.replace("cvt.rni.f32.f32", "cvt.rmi.f32.f32"),
    "codes above 255": lambda ptx: ptx.replace("0f437F0000", "0f43FF0000"),
    "codes below 0": lambda ptx: re.sub(r"max\.f32(\s+%f\d+, %f\d+), %f\d+;", r"max.f32\1, 0fC3000000;", ptx),
    "the zero point subtracted": lambda ptx: re.sub(r"add\.rn\.f32", "sub.rn.f32", ptx),
    "factors of the next channel": lambda ptx: re.sub(r"(ld\.global\.nc\.f32[^;]*)\+4\];", r"\1+8];", ptx),
}  # fmt: skip


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """int8 codes of so many bits, so many listed ones, or so many pairs (of places in their list)."""
    random = np.random.default_rng(seed)
    sort, number = kind.split()
    if sort == "bits":
        half = 2 ** (int(number) - 1)
        return random.integers(-half, half, shape).astype(np.int8)
    if sort in ("pairs", "places"):
        pairs = random.integers(-128, 128, (int(number), 2)).astype(np.int8)
        return pairs[random.integers(0, int(number), np.prod(shape) // 2)].reshape(shape)
    listed = [-128, 127, *random.choice(np.arange(-127, 127), int(number) - 2, replace=False)]
    return random.choice(np.array(listed, np.int8), shape)


def layer(x: np.ndarray, weights: np.ndarray, window: Window) -> np.ndarray:
    """Sums (samples, outputs, rows, columns) of codes (samples, channels, rows, columns), tap by tap."""
    rows, columns = window.output
    made = np.zeros((len(x), len(weights), rows, columns), np.int64)
    for row in range(window.kernel[0]):
        for column in range(window.kernel[1]):
            top, left = row * window.dilations[0], column * window.dilations[1]
            seen = x[:, :, top : top + rows * window.strides[0] : window.strides[0]]
            seen = seen[..., left : left + columns * window.strides[1] : window.strides[1]][:, :, :rows, :columns]
            made += np.einsum("nchw,oc->nohw", seen.astype(np.int64), weights[:, :, row, column].astype(np.int64))
    return made


@dataclass(frozen=True)
class Drawn:
    """A layer with random inputs, and what it gives."""

    x: np.ndarray
    numbers: Requantization
    wanted: np.ndarray

    @classmethod
    def of(cls, weights: np.ndarray, seed: int, window: Window, *, ends: bool = False) -> "Drawn":
        """Of codes (outputs, inputs, *kernel). ends: inputs are 0 or 255."""
        random, outputs = np.random.default_rng(seed), len(weights)
        x = random.integers(0, 256, (SAMPLES, window.channels, *window.size)).astype(np.uint8)
        x = np.where(x < 128, np.uint8(0), np.uint8(255)) if ends else x
        sums = layer(x, weights, window)
        bias = random.integers(-9999, 9999, outputs).astype(np.int32)
        factor = (random.uniform(60, 300, outputs) / np.abs(sums).max()).astype(np.float32)
        scaled = (sums + bias[:, None, None]).astype(np.float32) * factor[:, None, None]
        wanted = np.clip(np.rint(scaled) + 101, 0, 255).astype(np.uint8)
        return cls(x, Requantization(bias, factor, 101), wanted)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """Of the input and the output."""
        return Layout(self.x.shape[1:], "uint8"), Layout(self.wanted.shape[1:], "uint8")

    def layer(self, window: Window, weights: np.ndarray) -> CodedLayer:
        """What computes it."""
        return CodedLayer(*self.layouts, window, weights, self.numbers)

    def case(self, kernel: KernelSource) -> Case:
        """With the kernel that is to compute it."""
        return Case(kernel.compile(CUDA.loops), *self.layouts, self.x, self.wanted)


def case(kind: str, cut: TileCut, seed: int, window: Window, shape: TileShape = DENSE[0]) -> Case:
    """A layer with random codes, by an instruction."""
    weights = drawn(kind, (OUTPUTS, window.channels, *window.kernel), seed)
    result = Drawn.of(weights, seed, window)
    pairs = PairCoding.of(weights) if kind.startswith("places") else None
    coding = pairs or Coding.of(weights, weights[0].size)
    tiles = Tiles(window, OUTPUTS, cut, coding.bits)
    return result.case(mma.write(tiles, coding, result.layer(window, weights), shape))


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Of each way to pack codes, all in one cut or each in one of several. kind: few, all, or parts: instructions that
    take parts of a tile.
    """
    if kind == "parts":
        for place, shape in enumerate(SMALLER):
            yield size(shape), case("bits 8", CUTS["few rows"], place, WINDOW, shape)
        return
    kinds = [*(f"bits {bits}" for bits in range(1, 9)), *(f"levels {count}" for count in (2, 4, 7, 16)), "pairs 64"]
    kinds += [f"places {count}" for count in (3, 16, 50, 200)]
    cuts = list(CUTS.items())
    chosen = (
        [(name, cuts[i % len(cuts)]) for i, name in enumerate(kinds)]
        if kind == "all"
        else [("bits 3", cuts[1]), ("bits 8", cuts[0]), ("levels 16", cuts[0]), ("places 50", cuts[1])]
    )
    for seed, (name, (label, cut)) in enumerate(chosen):
        yield f"{name}, {label}", case(name, cut, seed, POINTS if name.startswith("places") else WINDOW)
