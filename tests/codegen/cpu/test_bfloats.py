"""Layers that read bfloat16 give what ONNX Runtime gives, whether or not the processor multiplies such numbers."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, best_and_slowly_least, present, run
from graphs import noise, parse
from lowering import CONSTANTS, FLOAT_GRAPHS, RESIDUAL, SMALL, Quantized, quantized, samples
from together import compared, program_of
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cpu import isa, tuning
from ptqc.codegen.kernels import writing
from ptqc.codegen.kernels.families import dense, functions
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Layout
from ptqc.codegen.program.program import Window
from ptqc.errors import NoKernel
from ptqc.formats import FLOAT16, to_bfloat16
from ptqc.ir.integer_arithmetic import im2col

HERE = present(isa.AVX512_BF16)
SETS = pytest.mark.parametrize("chosen", best_and_slowly_least(HERE))
MULTIPLIES = pytest.mark.skipif(isa.AVX512_BF16 not in HERE, reason="this processor has no products of bfloat16")
BATCH = 2
GEOMETRIES = [
    (Window(2, (1, 1)), 1, 1),
    (Window(66, (1, 1)), 10, 1),
    (Window(12, (9, 11), (3, 3)), 16, 1),
    (Window(14, (7, 7), (1, 1), (2, 2)), 37, 1),
    (Window(4, (11, 13), (3, 3), (1, 1), (2, 3)), 9, 1),
    (Window(12, (8, 8), (3, 3), (2, 1)), 18, 3),
    (Window(32, (6, 6), (3, 3)), 64, 1),
    (Window(160, (13, 13)), 48, 1),
]


def codes(window: Window, outputs: int, groups: int, seed: int) -> dense.CodedWeights:
    random = np.random.default_rng(seed)
    shape = (outputs, window.channels // groups, *window.kernel)
    values = random.integers(-128, 128, shape).astype(np.int8)
    return dense.CodedWeights(values, random.uniform(1e-3, 1e-2, outputs).astype(np.float32))


def in_float64(x: np.ndarray, window: Window, weights: np.ndarray, groups: int) -> np.ndarray:
    columns = im2col(
        x.astype(np.float64), window.kernel, strides=window.strides, pads=[0] * 4, dilations=window.dilations
    )
    outputs, size = len(weights), weights[0].size
    columns = columns.reshape(len(x), groups, size, -1)
    products = np.einsum("gok,ngkp->ngop", weights.reshape(groups, outputs // groups, size), columns)
    return np.asarray(products.reshape(len(x), outputs, *window.output))


@MULTIPLIES
def test_products_of_bfloat16_are_close_to_float64(tmp_path: Path) -> None:
    check_products(GEOMETRIES, isa.AVX512_BF16, tmp_path)


def case(window: Window, outputs: int, groups: int, chosen: Isa, seed: int) -> tuple[Case, np.ndarray]:
    """A layer that reads bfloat16, and what float64 gives."""
    weights, random = codes(window, outputs, groups, seed), np.random.default_rng(seed)
    bias = random.standard_normal(outputs).astype(np.float32)
    x = to_bfloat16(random.standard_normal((BATCH, window.channels, *window.size)).astype(np.float32))
    source, target = Layout(x.shape[1:], BFLOAT16), Layout((outputs, *window.output), "float32")
    kernel = dense.bfloat(source, target, Dense(window, outputs, groups, chosen, 2), weights, bias)
    scaled = weights.codes.astype(np.float64) * weights.scale.reshape(-1, 1, 1, 1)
    return Case(kernel, [source], [x], target), in_float64(x, window, scaled, groups) + bias.reshape(-1, 1, 1)


def bfloat_cases(chosen: Isa) -> Iterator[tuple[Case, np.ndarray]]:
    """The same of all geometries."""
    return (case(*geometry, chosen, seed) for seed, geometry in enumerate(GEOMETRIES))


def check_products(geometries: Sequence[tuple[Window, int, int]], chosen: Isa, folder: Path) -> None:
    """Compare layers with what float64 gives."""
    cases = [case(*geometry, chosen, seed) for seed, geometry in enumerate(geometries)]
    for result, (_, expected) in zip(run([one for one, _ in cases], chosen, folder), cases, strict=True):
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


@MULTIPLIES
def test_kernels_in_bfloat16_are_tuned(tmp_path: Path) -> None:
    program = program_of(rounded(CHAIN, TAPS, "cs"), samples(2, 6, 8, 8), isa.AVX512_BF16, tmp_path / "g")
    table = tuning.measure(program, isa.AVX512_BF16, "quick", None)
    assert sum(name.startswith("dense_bfloat") for name in table) == 3
    assert compared({"g": tuning.tuned(program, table)}, isa.AVX512_BF16, tmp_path).wrong == {}


@SETS
def test_rounding_is_that_of_numpy(chosen: Isa, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal((1, 40, 5, 7)) * 10.0 ** random.uniform(-30, 30, (1, 40, 5, 7))).astype(np.float32)
    x.flat[:6] = 0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38
    x.flat[6:10] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    source, cases = Layout(x.shape[1:], "float32"), []
    for dtype in ("float32", BFLOAT16):
        target = Layout(x.shape[1:], dtype)
        cases.append(Case(functions.unary([Function(ROUNDED)], source, target, chosen), [source], [x], target))
    for result in run(cases, chosen, tmp_path):
        np.testing.assert_array_equal(result, to_bfloat16(x))


def rounded(body: str, constants: dict[str, np.ndarray], kept: str = "", **formats: Any) -> Quantized:
    used = {name: array for name, array in constants.items() if re.search(rf"[(,] *{name} *[,)]", body)}
    model, feeds = parse(body, **used), samples(2, 6, 8, 8)
    return quantized(model, feeds, keep_float=lambda _: True, is_rounded=lambda site: site not in kept, **formats)


@pytest.mark.slow
@SETS
def test_networks_give_what_onnxruntime_gives(chosen: Isa, tmp_path: Path) -> None:
    check_networks(chosen, tmp_path)


def check_networks(chosen: Isa, folder: Path) -> None:
    """Compare networks of layers that read bfloat16."""
    programs, feeds = {}, samples(2, 6, 8, 8)
    for number, body in enumerate(FLOAT_GRAPHS.values()):
        with suppress(NoKernel):  # for some ways of padding there is none
            programs[str(number)] = program_of(rounded(body, SMALL), feeds, chosen, folder / str(number))
    assert len(programs) >= len(FLOAT_GRAPHS) - 3
    images = samples(2, 3, 8, 8)
    network = quantized(parse(RESIDUAL, **CONSTANTS), images, keep_float=lambda _: True, is_rounded=lambda _: True)
    programs["residual"] = program_of(network, images, chosen, folder / "residual")
    mixed = quantized(
        parse(RESIDUAL, **CONSTANTS), images, keep_float=lambda s: s in ("q", "t"), is_rounded=lambda _: True
    )
    programs["mixed"] = program_of(mixed, images, chosen, folder / "mixed")
    assert compared(programs, chosen, folder).wrong == {}


CHAIN = """g (float[N, 6, 8, 8] x) => (float[N, 6, 8, 8] y) {
    c = Conv(x, w)
    s = Sigmoid(c)
    m = Mul(c, s)
    d = Conv(x, w)
    j = Concat <axis = 1> (m, d)
    e = Conv <pads = [1, 1, 1, 1], group = 12> (j, taps)
    r = Relu(e)
    y = Conv(r, wide)
}"""
TAPS = {**SMALL, "taps": noise(12, 1, 3, 3, scale=0.3), "wide": noise(6, 12, 1, 1, seed=3)}


def families(network: Quantized, chosen: Isa, folder: Path) -> Counter[str]:
    program = program_of(network, samples(2, 6, 8, 8), chosen, folder)
    return Counter(step.kernel.family for step in program.steps if step.kernel.family != "copy")


@MULTIPLIES
def test_values_stay_in_16_bits_from_layer_to_layer(tmp_path: Path) -> None:
    """Rounded in the layer that makes them, joined and bordered as they lie, and read by depthwise layers too."""
    assert families(rounded(CHAIN, TAPS, "cs"), isa.AVX512_BF16, tmp_path / "job") == {
        "rounded": 1,
        "dense_bfloat_gated_sigmoid_rounded": 1,
        "dense_bfloat_rounded": 1,
        "concat": 1,
        "border": 1,
        "depthwise_float_relu_rounded": 1,
        "dense_bfloat": 1,
    }


@MULTIPLIES
def test_weights_without_codes_are_multiplied_in_float32(tmp_path: Path) -> None:
    counts = families(rounded(CHAIN, TAPS, "cs", forms={"wide": FLOAT16}), isa.AVX512_BF16, tmp_path / "job")
    assert (counts["dense_float"], counts["dense_bfloat"]) == (1, 0)


@SETS
def test_rounding_otherwise_is_found(chosen: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def truncated(x: Any, lanes: int) -> Any:
        bits = T.reinterpret(writing.vector("int32", lanes), x)
        return T.reinterpret(
            writing.vector("float32", lanes), T.bitwise_and(bits, writing.fill(T.int32(-65536), lanes))
        )

    monkeypatch.setattr(writing, "rounded", truncated)
    program = program_of(rounded(CHAIN, TAPS, "cs"), samples(2, 6, 8, 8), chosen, tmp_path / "g")
    assert "rounded" in compared({"g": program}, chosen, tmp_path).wrong["g"]
