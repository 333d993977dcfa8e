"""Layers of FP8 on tensor cores and roundings to it, one kernel each, with what they have to give; imports TVM.

Each has PTX for chips that multiply FP8 and for those that do not; both are run.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
from dense_cases import CUTS, POINTS, SAMPLES, WINDOW, layer
from single_kernels import Case

from ptqc.codegen.cuda import mma_fp8
from ptqc.codegen.cuda.backend import CUDA
from ptqc.codegen.cuda.packed_weights import code
from ptqc.codegen.cuda.tiles import TileCut, Tiles
from ptqc.codegen.kernels.backend import Float8LayerSpec
from ptqc.codegen.kernels.families import pointwise
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.families.real_stages import RealStage, WithVector
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window

GPUS = ("sm_80", "sm_86", "sm_89", "sm_90a")
# Of the norm of sums in float64: each 32 products are rounded once, and so are their sums.
TOLERANCE = 1e-6
# Five steps of it would take more than a block's shared memory.
FITTING = {**CUTS, "wide": TileCut(32, 128, 2, 1, 4)}
FOUR, TWO = r"\{(%[rf]\d+), (%[rf]\d+), (%[rf]\d+), (%[rf]\d+)\}", r"\{(%r\d+), (%r\d+)\}"
MULTIPLY = rf"(mma\.sync\S+\s+){FOUR}, {FOUR}, {TWO}, {FOUR};"


def operands(to: str) -> Callable[[str], str]:
    """Other operands. Groups: 2 to 5 new sums, 6 to 9 inputs, 10 and 11 weights, 12 to 15 old sums."""
    return lambda ptx: re.sub(MULTIPLY, rf"\1{to};", ptx)


NEW, INPUTS, WEIGHTS, OLD = r"{\2, \3, \4, \5}", r"{\6, \7, \8, \9}", r"{\10, \11}", r"{\12, \13, \14, \15}"
# Of the kind "few".
FAULTS: dict[str, Callable[[str], str]] = {
    "rows of inputs exchanged": operands(rf"{NEW}, {{\7, \6, \9, \8}}, {WEIGHTS}, {OLD}"),
    "halves of inputs exchanged": operands(rf"{NEW}, {{\8, \9, \6, \7}}, {WEIGHTS}, {OLD}"),
    "halves of weights exchanged": operands(rf"{NEW}, {INPUTS}, {{\11, \10}}, {OLD}"),
    "sums exchanged": operands(rf"{{\3, \2, \5, \4}}, {INPUTS}, {WEIGHTS}, {OLD}"),
    "sums of the other rows": operands(rf"{{\4, \5, \2, \3}}, {INPUTS}, {WEIGHTS}, {OLD}"),
    "a product left out": lambda ptx: re.sub(r"mma\.sync[^;]*;", "", ptx, count=1),
    "signs left out": lambda ptx: re.sub(r"-2147450880", "0", ptx),
    "digits one bit higher": lambda ptx: ptx.replace("1065369472", "2130738944"),
    "the upper pair twice": lambda ptx: ptx.replace(" 5124;", " 13348;"),
    "sums of float16 divided by too much": lambda ptx: ptx.replace("0f47800000", "0f47000000"),
    "sums not added": lambda ptx: re.sub(
        r"fma\.rn\.f32(\s+%f\d+), (%f\d+), (0f47800000|%f\d+), %f\d+;", r"mov.f32\1, \2;", ptx
    ),
    "copies waited for too late": lambda ptx: re.sub(r"wait_group\s+(\d+);", r"wait_group 1\1;", ptx),
    "the sums of a share left out": lambda ptx: re.sub(
        r"ld\.shared\.f32(\s+%f\d+), [^;]*;", r"mov.f32\1, 0f00000000;", ptx
    ),
    "sums of a share of another register": lambda ptx: re.sub(r"(ld\.shared\.f32[^;]*)\+128\];", r"\1+256];", ptx),
    "factors of the next channel": lambda ptx: re.sub(r"(ld\.global\.nc\.f32[^;]*)\+4\];", r"\1+8];", ptx),
    "a Relu left out": lambda ptx: re.sub(r"max\.f32(\s+%f\d+), (%f\d+), %f\d+;", r"mov.f32\1, \2;", ptx),
    "rounded codes exchanged": lambda ptx: re.sub(
        r"(cvt\.rn\.satfinite\S+\s+%\w+), (\S+), (%f\d+);", r"\1, \3, \2;", ptx
    ),
    "codes rounded down": lambda ptx: ptx.replace(", 524287;", ", 0;"),
    "halves not to even": lambda ptx: re.sub(r"(add\.s32\s+%r\d+, %r\d+), 524287;", r"\1, 524288;", ptx),
    "small codes cut": lambda ptx: ptx.replace("cvt.rni.u32.f32", "cvt.rzi.u32.f32"),
    "codes beyond 448": lambda ptx: ptx.replace(" 1138753535", " 2139095040"),
    "no number rounded to 448": lambda ptx: ptx.replace(" 2139095040", " 2147483647"),
}  # fmt: skip


def numbers(codes: np.ndarray) -> np.ndarray:
    """What codes stand for, float64."""
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def drawn(shape: Sequence[int], seed: int, *, wide: bool) -> np.ndarray:
    """Codes of normal numbers, or any that are numbers."""
    random = np.random.default_rng(seed)
    if wide:
        codes = random.integers(0, 256, shape).astype(np.uint8)
        return np.where(codes & 127 == 127, np.uint8(0), codes)
    return random.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def product(window: Window, cut: TileCut, outputs: int, seed: int, *, wide: bool, stages: Sequence[str]) -> Case:
    """A layer. stages: of relu and scaled."""
    x = drawn((SAMPLES, window.channels, *window.size), seed, wide=wide)
    weights = drawn((outputs, window.channels, *window.kernel), seed + 1, wide=wide)
    random = np.random.default_rng(seed)
    factor, vector = (random.uniform(0.5, 2, outputs).astype(np.float32) for _ in range(2))
    sums = layer_of_reals(numbers(x), numbers(weights), window)
    bias = (random.standard_normal(outputs) * sums.std()).astype(np.float32)
    wanted = sums * factor[:, None, None] + bias[:, None, None]
    behind: list[RealStage] = []
    for stage in stages:
        behind.append(Function("Relu") if stage == "relu" else WithVector("Mul", 0, vector))
        wanted = np.maximum(wanted, 0) if stage == "relu" else wanted * vector[:, None, None]
    value, made = Layout(x.shape[1:], "uint8"), Layout(wanted.shape[1:], "float32")
    tiles = Tiles(window, outputs, cut, is_float8=True)
    layer = Float8LayerSpec(value, made, window, weights, factor, bias, behind)
    return Case(mma_fp8.write(tiles, layer).compile(CUDA.loops), value, made, x, wanted, TOLERANCE)


def layer_of_reals(x: np.ndarray, weights: np.ndarray, window: Window) -> np.ndarray:
    """`dense_cases.layer` of numbers that are whole in steps of 2⁻⁹, whose products fit in 64 bits."""
    inputs, others = (np.rint(numbers * 512).astype(np.int64) for numbers in (x, weights))
    return layer(inputs, others, window) / 512.0**2


def rounding(scale: float) -> Case:
    """Every number, every middle between two and their neighbours, and what is beyond; times a scale."""
    finite = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.sort(finite[np.isfinite(finite)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    beyond = [449, 464, 465, 1e30, -1e30, np.inf, -np.inf, 1e-40, -1e-40, np.nan]
    drawn = np.random.default_rng(0).standard_normal(500) * 100
    x = np.concatenate([finite, middles, *near, beyond, drawn]).astype(np.float32)[None] * np.float32(scale)
    with np.errstate(over="ignore"):
        ratio = x / np.float32(scale)
    codes = np.clip(ratio, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes = np.where(np.isnan(ratio), np.uint8(127), codes)
    value, made = Layout(x.shape[1:], "float32", row_major=True), Layout(x.shape[1:], "uint8", row_major=True)
    return Case(
        pointwise.quantize_float8(value, made, CUDA.isa, scale, code).compile(CUDA.loops), value, made, x, codes
    )


def going_back(scale: float) -> Case:
    """Every code that is a number."""
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[codes & 127 != 127][None]
    value, made = (Layout(codes.shape[1:], dtype, row_major=True) for dtype in ("uint8", "float32"))
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale)
    return Case(
        pointwise.dequantize_float8(value, made, CUDA.isa, scale).compile(CUDA.loops), value, made, codes, wanted
    )


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Layers in several cuts. kind: few or all."""
    yield "rounding", rounding(1.0)
    yield "shared steps", product(WINDOW, CUTS["shared steps"], 70, 1, wide=True, stages=("relu",))
    yield "few rows", product(POINTS, CUTS["few rows"], 33, 2, wide=False, stages=())
    if kind == "few":
        return
    yield "rounding with a scale", rounding(0.0372)
    yield "going back", going_back(0.0372)
    others = [Window(64, (9, 6), (3, 3)), Window(16, (4, 5)), POINTS, replace(WINDOW, strides=(2, 1)), WINDOW]
    for seed, ((name, cut), window) in enumerate(zip(FITTING.items(), others, strict=True)):
        for stages in ((), ("scaled", "relu")):
            label = f"{name}, {' and '.join(stages) or 'alone'}"
            yield (
                label,
                product(window, cut, (64, 33, 7)[seed % 3], 10 + seed, wide=seed % 2 == 0, stages=stages),
            )
