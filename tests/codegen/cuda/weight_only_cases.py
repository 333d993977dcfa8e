"""Products with codes that have a scale for each block of inputs, and what float64 gives for them; imports TVM."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from single_kernels import Case

from ptqc.codegen.cuda import weight_only
from ptqc.codegen.program.layout import Layout

BLOCKS = (32, 64, 128)
# Of the norm of float64's results: float32 is rounded at the end of each block, float16 once.
TOLERANCE = {"float32": 1e-6, "float16": 1e-3}


def case(bits: int, block: int, rows: int, sizes: tuple[int, int], dtype: str, seed: int = 0) -> Case:
    """sizes: outputs and inputs."""
    random, (outputs, inputs) = np.random.default_rng(seed), sizes
    x = random.standard_normal((rows, inputs)).astype(np.float16)
    codes = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, inputs)).astype(np.int8)
    scales = (random.uniform(0.5, 2, (outputs, inputs // block)) / 2 ** (bits + 2)).astype(np.float16)
    scales = scales if seed % 2 else scales.astype(np.float32)
    wanted = x.astype(np.float64) @ (codes * np.repeat(scales.astype(np.float64), block, axis=1)).T
    given, made = Layout((inputs,), "float16", plain=True), Layout((outputs,), dtype, plain=True)
    weights = weight_only.WeightOnly(bits, outputs, inputs, block, 8 if rows <= 8 else 16)
    built = weight_only.product(given, made, weights, codes, scales)
    return Case(built, given, made, x, wanted, TOLERANCE[dtype])


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
