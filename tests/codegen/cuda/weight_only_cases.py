"""Products with codes that have a scale for each block of inputs, and what float64 gives for them; imports TVM."""

import re
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from single_kernels import Case

from ptqc.codegen.cuda import weight_only
from ptqc.codegen.cuda.loops import ThreadLoops
from ptqc.codegen.program.layout import Layout

BLOCKS = (32, 64, 128)
# Of the norm of float64's results: float32 is rounded at the end of each block, float16 once.
TOLERANCE = {"float32": 1e-6, "float16": 1e-3}

PAIR_OF_INPUTS = r"(\}, \{)(%r\d+), (%r\d+)(\}, \{)"
# Of the kind "few".
FAULTS: dict[str, Callable[[str], str]] = {
    "a barrier left out": lambda ptx: re.sub(r"\n\s*bar(rier)?\.sync[^;]*;", "\n", ptx),
    "another zero point of lower half bytes": lambda ptx: ptx.replace(" 1678271496;", " 1678205959;"),
    "another zero point of upper half bytes": lambda ptx: ptx.replace(" -729754496;", " -738208768;"),
    "another zero point of bytes": lambda ptx: ptx.replace(" 1686135936;", " 1677747200;"),
    "upper half bytes not divided": lambda ptx: ptx.replace(" 738208768;", " 1006648320;"),
    "half bytes exchanged": lambda ptx: ptx.replace(" 983055;", " 15728880;"),
    "bytes exchanged": lambda ptx: ptx.replace(" 20816;", " 20561;"),
    "words of the wrong inputs": lambda ptx: re.sub(r"(shr\.u32\s+%r\d+, %r\d+), 8;", r"\1, 4;", ptx),
    "outputs exchanged": lambda ptx: re.sub(
        r"(\}, \{)(%r\d+), (%r\d+), (%r\d+), (%r\d+)(\}, \{%r)", r"\1\3, \2, \5, \4\6", ptx
    ),
    "inputs of weights exchanged": lambda ptx: re.sub(
        r"(\}, \{)(%r\d+), (%r\d+), (%r\d+), (%r\d+)(\}, \{%r)", r"\1\4, \5, \2, \3\6", ptx
    ),
    "inputs exchanged": lambda ptx: re.sub(PAIR_OF_INPUTS, r"\1\3, \2\4", ptx),
    "rows of sums exchanged": lambda ptx: re.sub(r"(\.f32\s*)\{(%f\d+), (%f\d+), ", r"\1{\3, \2, ", ptx),
    "scales of output g for output g + 8": lambda ptx: re.sub(
        r"(ld\.global\.nc\.(?:u16|f32)\s+%\w+, \[%rd\d+)\+(16|32)\];", r"\1];", ptx
    ),
    "scales multiplied behind the sum": lambda ptx: re.sub(
        r"mul\.rn\.f32(\s+)(%f\d+), (%f\d+), (%f\d+);\s+add\.rn\.f32\s+(%f\d+), (%f\d+), \2;",
        r"add.rn.f32\1\2, \6, \3; mul.rn.f32 \5, \2, \4;", ptx
    ),
    "the sums of a warp left out": lambda ptx: re.sub(
        r"ld\.shared\.f32(\s+%f\d+), \[%r\d+\+\d+\];", r"mov.f32\1, 0f00000000;", ptx
    ),
    "sums of another warp's lane": lambda ptx: re.sub(
        r"(ld\.shared\.f32\s+%f\d+, \[%r\d+\+)(\d+)\];", lambda found: f"{found[1]}{int(found[2]) - 4}];", ptx
    ),
}  # fmt: skip


def case(bits: int, block: int, rows: int, sizes: tuple[int, int], dtype: str, seed: int = 0) -> Case:
    """sizes: outputs and inputs."""
    random, (outputs, inputs) = np.random.default_rng(seed), sizes
    x = random.standard_normal((rows, inputs)).astype(np.float16)
    codes = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, inputs)).astype(np.int8)
    scales = (random.uniform(0.5, 2, (outputs, inputs // block)) / 2 ** (bits + 2)).astype(np.float16)
    scales = scales if seed % 2 else scales.astype(np.float32)
    wanted = x.astype(np.float64) @ (codes * np.repeat(scales.astype(np.float64), block, axis=1)).T
    given, made = Layout((inputs,), "float16", row_major=True), Layout((outputs,), dtype, row_major=True)
    weights = weight_only.WeightOnly(bits, outputs, inputs, block, 8 if rows <= 8 else 16)
    kernel = weight_only.product(given, made, weights, codes, scales).compile(ThreadLoops())
    return Case(kernel, given, made, x, wanted, TOLERANCE[dtype])


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """kind: few, or all widths, blocks and numbers of rows."""
    if kind == "few":
        yield "4 bits", case(4, 32, 9, (40, 320), "float16", 1)
        yield "8 bits", case(8, 64, 3, (24, 192), "float32")
        return
    rows = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 37]
    for seed, (bits, block) in enumerate(product((4, 8), BLOCKS)):
        for i in range(6):
            count, dtype = rows[(6 * seed + i) % len(rows)], ("float32", "float16")[i % 2]
            sizes = (16 * (i + 1) + 5 * (i % 2), 128 * (1 + 3 * i))
            yield f"{bits} bits, blocks of {block}, {count} rows, {dtype}", case(bits, block, count, sizes, dtype, seed)
