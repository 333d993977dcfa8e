"""Operators on codes give the reference's integers for all codes; functions in float32 are close to float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, present, run
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels import epilogue
from ptqc.codegen.kernels.families import build, functions, pointwise, pool
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import span
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window
from ptqc.formats import UINT8, QuantParams
from ptqc.ir import integer_arithmetic as integer

INSTRUCTION_SETS = pytest.mark.parametrize("chosen", present(), ids=lambda chosen: chosen.name)
CODES = np.arange(256, dtype=np.uint8)
PAIRS = Layout((256, 256), "uint8")
LEFT, RIGHT = (array.reshape(1, 256, 256) for array in np.meshgrid(CODES, CODES, indexing="ij"))
AWKWARD: list[tuple[float, int, float, int, float, int]] = [(0.1, 3, 0.2, 250, 0.3, 128)]
AWKWARD += [
    (1 / 3, 0, 1 / 64, 255, 0.5, 7),
    (0.5, 128, 0.25, 128, 0.5, 128),
]
AWKWARD += [(7.25, 17, 1e-3, 99, 3.1, 0), (1e-4, 255, 9.7, 1, 8.3, 255)]
PARAMETERS = [
    [QuantParams(UINT8, float(np.float32(step)), zero) for step, zero in ((a, b), (c, d), (e, f))]
    for a, b, c, d, e, f in AWKWARD
]


@INSTRUCTION_SETS
def test_sums_and_products_of_all_pairs_of_codes(chosen: Isa, tmp_path: Path) -> None:
    cases, wanted = [], []
    for a, b, y in PARAMETERS:
        numbers = np.array(integer.add_numbers(a, b, y), np.float32)
        zeros = (a.zero_point, b.zero_point, y.zero_point)
        factor = float(integer.multiplier(a, np.asarray(b.scale), y))
        for kernel in (
            pointwise.add([PAIRS, PAIRS], PAIRS, chosen, numbers),
            pointwise.mul([PAIRS, PAIRS], PAIRS, chosen, zeros, factor),
        ):
            cases.append(Case(kernel, [PAIRS, PAIRS], [LEFT, RIGHT], PAIRS))
        wanted += [integer.add(LEFT, a, RIGHT, b, y), integer.mul(LEFT, a, RIGHT, b, y)]
    for result, expected in zip(run(cases, chosen, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@INSTRUCTION_SETS
def test_rounding_tables_and_limits(chosen: Isa, tmp_path: Path) -> None:
    y = QuantParams(UINT8, 0.5, 3)
    halves = np.arange(-40, 300, 0.25, dtype=np.float32)
    x = np.concatenate([halves, np.array([np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0], np.float32)])[None]
    real, codes, all_codes = Layout(x.shape[1:], "float32"), Layout(x.shape[1:], "uint8"), Layout((256,), "uint8")
    entries = np.random.default_rng(0).permutation(256).astype(np.uint8)
    cases = [
        Case(pointwise.quantize(real, codes, chosen, y.scale, y.zero_point), [real], [x], codes),
        Case(pointwise.quantize_moved(real, codes, chosen, y.scale, y.zero_point), [real], [x], codes),
        Case(pointwise.table(all_codes, all_codes, chosen, entries), [all_codes], [CODES[None]], all_codes),
        Case(pointwise.limit(all_codes, all_codes, chosen, 17, 200), [all_codes], [CODES[None]], all_codes),
    ]
    rounded, moved, looked_up, limited = run(cases, chosen, tmp_path)
    np.testing.assert_array_equal(rounded, integer.quantize(x, y))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(moved, np.clip(np.rint(x / np.float32(y.scale) + np.float32(3)), 0, 255))
    assert (moved != rounded).any()
    np.testing.assert_array_equal(looked_up[0], entries)
    np.testing.assert_array_equal(limited[0], np.clip(CODES, 17, 200))


def looked_up(chosen: Isa, entries: np.ndarray) -> Case:
    """All codes through a table, a whole vector at a time."""
    wide, codes = 4 * chosen.lanes, Layout((256,), "uint8")

    def body(_batch: Any, x: Any, table: Any, out: Any) -> None:
        for start in range(0, 256, wide):
            vector = T.Bind(x[0, span(start, wide)])
            T.buffer_store(out, epilogue.look_up(chosen, table, vector, wide), [0, span(start, wide)])

    return Case(
        build("lookup", [codes], [epilogue.arranged(chosen, entries)], codes, body), [codes], [CODES[None]], codes
    )


@pytest.mark.parametrize("chosen", present(isa.AVX512_VBMI), ids=lambda chosen: chosen.name)
def test_tables_of_whole_vectors(chosen: Isa, tmp_path: Path) -> None:
    tables = [np.random.default_rng(seed).integers(0, 256, 256).astype(np.uint8) for seed in range(2)]
    sets = [each for each in (chosen, chosen.half) if each is not None]
    cases = [looked_up(each, entries) for each in sets for entries in tables]
    for result, entries in zip(run(cases, chosen, tmp_path), tables * len(sets), strict=True):
        np.testing.assert_array_equal(result[0], entries)


@INSTRUCTION_SETS
@pytest.mark.parametrize("channels", [1, 13, 40])
def test_pools(chosen: Isa, channels: int, tmp_path: Path) -> None:
    shape, window = (channels, 7, 9), Window(channels, (7, 9), (3, 2), (2, 3))
    x = np.random.default_rng(channels).integers(0, 256, (2, *shape)).astype(np.uint8)
    a, y = QuantParams(UINT8, 0.1, 100), QuantParams(UINT8, 0.013, 120)
    value, made, mean = (
        Layout(shape, "uint8"),
        Layout((channels, *window.output), "uint8"),
        Layout((channels, 1, 1), "uint8"),
    )
    factor = float(np.float32(a.scale) / (np.float32(y.scale) * np.float32(63)))
    cases = [
        Case(pool.largest(value, made, window, chosen), [value], [x], made),
        Case(pool.mean_codes(value, mean, chosen, (a.zero_point, y.zero_point), factor), [value], [x], mean),
    ]
    largest, means = run(cases, chosen, tmp_path)
    taps = integer.im2col(x, window.kernel, strides=window.strides, pads=[0] * 4, dilations=window.dilations)
    np.testing.assert_array_equal(largest, taps.max(2))
    np.testing.assert_array_equal(means, integer.global_average_pool(x, a, y))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Exp": np.exp,
}


@INSTRUCTION_SETS
def test_functions_are_close_to_float64(chosen: Isa, tmp_path: Path) -> None:
    x = np.concatenate([np.linspace(-90, 0, 4000), np.linspace(-1, 1, 999)]).astype(np.float32)[None]
    layout = Layout(x.shape[1:], "float32")
    cases = [
        Case(functions.unary([Function(name)], layout, layout, chosen), [layout], [x], layout) for name in FUNCTIONS
    ]
    for name, result in zip(FUNCTIONS, run(cases, chosen, tmp_path), strict=True):
        assert np.abs(result - FUNCTIONS[name](x.astype(np.float64))).max() <= 1e-6, name
