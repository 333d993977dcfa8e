"""Layers of codes on tensor cores, one kernel each, with what they have to give; imports TVM."""

from collections.abc import Iterator

import numpy as np
from single_kernels import Case

from ptqc.codegen.cuda import tensor_cores
from ptqc.codegen.cuda.fragments import Coding
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.tiles import TileCut, Tiles
from ptqc.codegen.kernels.epilogue import NOTHING
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.window import Window

# Its last step is not full, and neither is the last tile of rows.
WINDOW = Window(48, (7, 8), (3, 2), (1, 2), (2, 1))
SAMPLES, OUTPUTS = 3, 70
CUTS = {
    "few rows": TileCut(16, 32, 1),
    "shared steps": TileCut(16, 64, 1, 2),
    "tall": TileCut(128, 32, 4, 1, 2),
    "tall and shared": TileCut(64, 64, 4, 2, 4),
    "wide": TileCut(32, 128, 2, 1, 5),
}


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """int8 codes of so many bits, so many listed ones, or pairs of codes of which there are so many."""
    random = np.random.default_rng(seed)
    sort, number = kind.split()
    if sort == "bits":
        half = 2 ** (int(number) - 1)
        return random.integers(-half, half, shape).astype(np.int8)
    if sort == "pairs":
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


def case(kind: str, cut: TileCut, seed: int, window: Window = WINDOW) -> Case:
    """A layer with random codes."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 256, (SAMPLES, window.channels, *window.size)).astype(np.uint8)
    weights = drawn(kind, (OUTPUTS, window.channels, *window.kernel), seed)
    sums = layer(x, weights, window)
    bias = random.integers(-9999, 9999, OUTPUTS).astype(np.int32)
    factor = (random.uniform(40, 120, OUTPUTS) / np.abs(sums).max()).astype(np.float32)
    scaled = (sums + bias[:, None, None]).astype(np.float32) * factor[:, None, None]
    wanted = np.clip(np.rint(scaled) + 101, 0, 255).astype(np.uint8)
    given, made = Layout(x.shape[1:], "uint8"), Layout(wanted.shape[1:], "uint8")
    coding = Coding.of(weights, weights[0].size)
    tiles = Tiles(window, OUTPUTS, cut, coding.bits)
    built = tensor_cores.write(
        tiles, coding, given, made, BY_ELEMENT, weights, Requantization(bias, factor, 101), NOTHING
    )
    return Case(built, given, made, x, wanted)


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Of each way to pack codes, all in one cut or each in one of several. kind: few or all."""
    kinds = [*(f"bits {bits}" for bits in range(1, 9)), *(f"levels {count}" for count in (2, 4, 7, 16)), "pairs 64"]
    cuts = list(CUTS.items())
    chosen = (
        [(name, cuts[i % len(cuts)]) for i, name in enumerate(kinds)]
        if kind == "all"
        else [("bits 3", cuts[1]), ("bits 8", cuts[3]), ("levels 16", cuts[0])]
    )
    for seed, (name, (told, cut)) in enumerate(chosen):
        yield f"{name}, {told}", case(name, cut, seed)
