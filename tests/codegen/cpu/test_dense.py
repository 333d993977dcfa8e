"""Convolutions and products give the reference's integers for any geometry, and float32 as close as it can be."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, best_and_slowly_least, present, run
from mostly_slow import mostly_slow

from ptqc.codegen.cpu.isa import AVX2
from ptqc.codegen.kernels import tiling
from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.kernels.families import dense, depthwise, depthwise_dot4
from ptqc.codegen.kernels.int16_accumulation import PAIR, Int16Accumulation, overflows, suited
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.op_lowerings.layers import _with_zero_point
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program.constants import Nibbles
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window
from ptqc.formats import UINT8, QuantParams
from ptqc.ir import integer_arithmetic as integer

INSTRUCTION_SETS = pytest.mark.parametrize("chosen", present(), ids=lambda chosen: chosen.name)
BEST_OF_THEM = pytest.mark.parametrize("chosen", best_and_slowly_least(present()))
BATCH = 2
FULL, EIGHT, SEVEN, FOUR, THREE, TWO = 128, 127, 64, 8, 4, 2


@dataclass(frozen=True)
class Geometry:
    """A layer. reach: weights are codes from −reach to reach − 1."""

    window: Window
    outputs: int
    groups: int = 1
    reach: int = FULL

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.window.channels == self.outputs and self.groups > 1

    @property
    def given(self) -> tuple[int, ...]:
        return (self.window.channels, *self.window.size)

    @property
    def made(self) -> tuple[int, ...]:
        return (self.outputs, *self.window.output)


CHOSEN = [
    Geometry(Window(1, (1, 1)), 1),
    Geometry(Window(67, (1, 1)), 10),
    Geometry(Window(128, (1, 1)), 37, reach=SEVEN),
    Geometry(Window(3, (9, 11), (3, 3)), 16),
    Geometry(Window(13, (7, 7), (1, 1)), 17),
    Geometry(Window(8, (9, 9), (1, 1), (3, 3)), 24),
    Geometry(Window(5, (12, 10), (3, 2), (4, 5)), 7),
    Geometry(Window(4, (11, 13), (3, 3), (1, 1), (2, 3)), 9),
    Geometry(Window(12, (8, 8), (3, 3), (2, 1)), 18, 3),
    Geometry(Window(6, (5, 6), (1, 1)), 6, 2),
    Geometry(Window(4, (6, 6), (3, 3)), 8, 4),
    Geometry(Window(7, (1, 31), (1, 5), (1, 2), (1, 2)), 11),
    Geometry(Window(1, (10, 10), (5, 5)), 1),
    Geometry(Window(32, (6, 6), (3, 3)), 64, reach=SEVEN),
    Geometry(Window(32, (6, 6), (3, 3)), 40, reach=FOUR),
    Geometry(Window(24, (6, 6), (3, 3)), 40, reach=EIGHT),
    Geometry(Window(66, (5, 5)), 20, groups=2, reach=EIGHT),
    Geometry(Window(80, (5, 7)), 72, reach=THREE),
    Geometry(Window(11, (6, 9), (3, 3)), 27, reach=TWO),
    Geometry(Window(5, (9, 9), (3, 3)), 5, 5),
    Geometry(Window(32, (7, 9), (3, 3), (2, 2)), 32, 32),
    Geometry(Window(19, (9, 10), (3, 2), (1, 1), (2, 2)), 19, 19),
    Geometry(Window(2, (1, 20), (1, 7)), 2, 2),
    Geometry(Window(150, (6, 5), (3, 3)), 150, 150, reach=FOUR),
    Geometry(Window(70, (3, 9)), 70, 70),
    Geometry(Window(70, (6, 9), (3, 3)), 70, 70, reach=EIGHT),
    Geometry(Window(96, (9, 12), (5, 5), (2, 2)), 96, 96),
    Geometry(Window(64, (9, 12), (2, 3), (1, 2)), 64, 64, reach=SEVEN),
]


def drawn(seed: int) -> Geometry:
    random = np.random.default_rng(seed)
    kernel = tuple(int(n) for n in random.integers(1, 4, 2))
    strides, dilations = (tuple(int(n) for n in random.integers(1, 4, 2)) for _ in range(2))
    size = tuple(int(random.integers(3, 9)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True))
    groups = int(random.integers(1, 4))
    channels, outputs = (groups * int(random.integers(1, 14)) for _ in range(2))
    window = Window(
        channels, (size[0], size[1]), (kernel[0], kernel[1]), (strides[0], strides[1]), (dilations[0], dilations[1])
    )
    return Geometry(window, outputs, groups, int(random.choice([FOUR, SEVEN, FULL])))


GEOMETRIES = [*CHOSEN, *(drawn(seed) for seed in range(8))]


def integer_case(geometry: Geometry, chosen: Isa, seed: int, stretch: float = 1.0) -> tuple[Case, np.ndarray]:
    """A kernel on random codes, and the codes that it must give. stretch: of what sums are scaled by."""
    random = np.random.default_rng(seed)
    window, reach = geometry.window, geometry.reach
    weights = random.integers(-reach, reach, (geometry.outputs, window.channels // geometry.groups, *window.kernel))
    weights[0].flat[0], weights[-1].flat[-1] = -reach, reach - 1
    if geometry.outputs > 2:
        weights[1] = 0
    weights = weights.astype(np.int8)
    chosen = suited(chosen, weights)
    bias = random.integers(-3000, 3000, geometry.outputs).astype(np.int32)
    x = random.integers(0, 256, (BATCH, *geometry.given)).astype(np.uint8)
    zero_point = int(random.integers(0, 256))
    total = integer.conv_accumulator(
        x, zero_point, weights, bias, strides=window.strides, pads=[0] * 4, dilations=window.dilations,
        groups=geometry.groups,
    )  # fmt: skip
    y = QuantParams(UINT8, 1.0, int(random.integers(60, 200)))
    factor = random.uniform(0.5, 1.5, geometry.outputs) * 60 * stretch / max(1.0, float(total.std()))
    factor = factor.astype(np.float32)
    wanted = integer.requantize(total, factor.reshape(1, -1, 1, 1), y)
    value, made = Layout(geometry.given, "uint8"), Layout(geometry.made, "uint8")
    requantization = Requantization(_with_zero_point(weights, bias, zero_point), factor, y.zero_point)
    layer = LayerSpec(value, made, window, weights, requantization, groups=geometry.groups)
    if geometry.is_depthwise and depthwise_dot4.takes(window, chosen):
        isa = depthwise_dot4.fitting_isa(chosen, window.channels)
        loops = depthwise_dot4.ColumnLoops(window, isa, Int16Accumulation.of(isa, weights))
        kernel = depthwise_dot4.integer(layer, loops)
    elif geometry.is_depthwise:
        kernel = depthwise.integer(layer, chosen)
    else:
        cut = Dense(window, geometry.outputs, geometry.groups, chosen, 1, Int16Accumulation.of(chosen, weights))
        kernel = dense.integer(layer, cut)
    return Case(kernel, [value], [x], made), wanted


def real_case(geometry: Geometry, chosen: Isa, seed: int) -> tuple[Case, np.ndarray]:
    """A float kernel on random numbers, and what float64 gives."""
    random = np.random.default_rng(seed)
    window = geometry.window
    shape = (geometry.outputs, window.channels // geometry.groups, *window.kernel)
    weights = random.standard_normal(shape).astype(np.float32)
    bias = random.standard_normal(geometry.outputs).astype(np.float32)
    x = random.standard_normal((BATCH, *geometry.given)).astype(np.float32)
    columns = integer.im2col(
        x.astype(np.float64), window.kernel, strides=window.strides, pads=[0] * 4, dilations=window.dilations
    )
    columns = columns.reshape(BATCH, geometry.groups, shape[1] * shape[2] * shape[3], -1)
    kernels = weights.astype(np.float64).reshape(geometry.groups, geometry.outputs // geometry.groups, -1)
    wanted = np.einsum("gok,ngkp->ngop", kernels, columns).reshape(BATCH, *geometry.made) + bias.reshape(-1, 1, 1)
    value, made = Layout(geometry.given, "float32"), Layout(geometry.made, "float32")
    if geometry.is_depthwise:
        kernel = depthwise.real(value, made, window, chosen, weights, bias)
    else:
        kernel = dense.real(value, made, Dense(window, geometry.outputs, geometry.groups, chosen, 4), weights, bias)
    return Case(kernel, [value], [x], made), wanted


@INSTRUCTION_SETS
@pytest.mark.parametrize("every", mostly_slow([1, 3], 3))
def test_integer_layers_give_the_references_codes(every: int, chosen: Isa, tmp_path: Path) -> None:
    geometries = GEOMETRIES[::every]
    cases = [integer_case(geometry, chosen, seed) for seed, geometry in enumerate(geometries)]
    for geometry, result, (_, wanted) in zip(
        geometries, run([c for c, _ in cases], chosen, tmp_path), cases, strict=True
    ):
        np.testing.assert_array_equal(result, wanted, str(geometry))
        assert wanted.size < 50 or len(np.unique(wanted)) > 10


@INSTRUCTION_SETS
def test_weights_that_are_used_once_stay_two_to_a_byte(
    chosen: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "CACHED_WEIGHTS", 1000)
    packed = [
        Geometry(Window(64, (1, 1)), 64, reach=8),
        Geometry(Window(128, (1, 3)), 37, reach=8),
        Geometry(Window(4, (1, 1)), 1000, reach=2),
        Geometry(Window(516, (1, 4)), 130, reach=1),
        Geometry(Window(63, (1, 1)), 64, reach=8),
        Geometry(Window(16, (3, 3), (3, 3)), 40, reach=4),
    ]
    apart = [  # too many values, too many pixels, and weights that stay in a cache
        Geometry(Window(64, (1, 1)), 64, reach=9),
        Geometry(Window(64, (1, 5)), 64, reach=8),
        Geometry(Window(16, (1, 1)), 16, reach=8),
    ]
    cases = [integer_case(geometry, chosen, seed) for seed, geometry in enumerate([*packed, *apart])]
    stay = [isinstance(case.kernel.constants[0], Nibbles) for case, _ in cases]
    assert stay == [True] * len(packed) + [False] * len(apart)
    for result, (_, wanted) in zip(run([c for c, _ in cases], chosen, tmp_path), cases, strict=True):
        np.testing.assert_array_equal(result, wanted)


@INSTRUCTION_SETS
def test_listed_values_beyond_four_bits_stay_two_to_a_byte(
    chosen: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the 256 codes, without 0 among them: what fills up a run has to be 0."""
    monkeypatch.setattr(tiling, "CACHED_WEIGHTS", 1000)
    random = np.random.default_rng(0)
    y, bias, cases, wanted = Layout((48, 1, 1), "float32"), np.arange(48, dtype=np.int32), [], []
    for inputs, count, stays in ((40, 16, True), (39, 16, False), (39, 15, True)):
        x = Layout((inputs, 1, 1), "uint8")
        values = random.choice([*range(-128, 0), *range(1, 128)], count, replace=False)
        weights = random.choice(values, (48, inputs, 1, 1)).astype(np.int8)
        weights.reshape(-1)[:count] = values
        codes = random.integers(0, 256, (BATCH, inputs, 1, 1)).astype(np.uint8)
        suitable = suited(chosen, weights)
        loops = Dense(Window(inputs, (1, 1)), 48, 1, suitable, 1, Int16Accumulation.of(suitable, weights))
        requantization = Requantization(bias, np.ones(48, np.float32))
        kernel = dense.integer(LayerSpec(x, y, loops.window, weights, requantization), loops)
        assert isinstance(kernel.constants[0], Nibbles) == stays
        cases.append(Case(kernel, [x], [codes], y))
        wanted.append(codes.reshape(BATCH, -1).astype(np.int64) @ weights.reshape(48, -1).T.astype(np.int64) + bias)
    for result, expected in zip(run(cases, chosen, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(result.reshape(BATCH, -1), expected)


@pytest.mark.long
def test_chains_that_would_overflow_are_taken_apart(tmp_path: Path) -> None:
    """Codes that are largest where the weights of an output are positive, or negative, drive its sums to the limits."""
    named = {(large, reach): extreme_case(large, reach) for large in EXTREME for reach in (8, 16, 32, 64)}
    for (name, (_, wanted)), result in zip(
        named.items(), run([case for case, _ in named.values()], AVX2, tmp_path), strict=True
    ):
        np.testing.assert_array_equal(result, wanted, err_msg=str(name))


@INSTRUCTION_SETS
def test_the_largest_inputs_times_the_largest_weights(chosen: Isa, tmp_path: Path) -> None:
    """Every pair of products is as large, and as negative, as weights within ±127 allow."""
    x, y = Layout((8, 1, 4), "uint8"), Layout((6, 1, 4), "float32")
    weights = np.resize(np.array([127, -127, 127, 127, -127, -127, -127], np.int8), (6, 8, 1, 1))
    codes = np.resize(np.array([0, 255, 0, 0, 255, 255, 128, 127, 255], np.uint8), (1, 8, 1, 4))
    suitable = suited(chosen, weights)
    loops = Dense(Window(8, (1, 4)), 6, 1, suitable, 1, Int16Accumulation.of(suitable, weights))
    assert loops.accumulation.parts == 1
    layer = LayerSpec(x, y, loops.window, weights, Requantization(np.zeros(6, np.int32), np.ones(6, np.float32)))
    (result,) = run([Case(dense.integer(layer, loops), [x], [codes], y)], chosen, tmp_path)
    np.testing.assert_array_equal(result, np.einsum("bcyx,oc->boyx", codes.astype(int), weights[..., 0, 0].astype(int)))


def test_safe_pairs_of_large_weights_are_multiplied_as_they_are(tmp_path: Path) -> None:
    """Inputs that are unsigned bytes drive pairs to the limits."""
    x, y = Layout((10, 6, 7), "uint8"), Layout((20, 4, 5), "float32")
    random = np.random.default_rng(0)
    first = random.integers(1, 128, (20, 3, 3, 5))
    pairs = np.stack([first, 128 - first], -1) * random.choice([-1, 1], first.shape)[..., None]
    weights = np.moveaxis(pairs.reshape(20, 3, 3, 10), -1, 1).astype(np.int8)
    codes = random.choice([0, 255], (BATCH, 10, 6, 7)).astype(np.uint8)
    assert suited(AVX2, weights) is AVX2
    loops = Dense(Window(10, (6, 7), (3, 3)), 20, 1, AVX2, 1, Int16Accumulation.of(AVX2, weights))
    assert loops.accumulation == Int16Accumulation()
    layer = LayerSpec(x, y, loops.window, weights, Requantization(np.zeros(20, np.int32), np.ones(20, np.float32)))
    (result,) = run([Case(dense.integer(layer, loops), [x], [codes], y)], AVX2, tmp_path)
    windows = np.lib.stride_tricks.sliding_window_view(codes.astype(np.float64), (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(result, np.einsum("bcyxij,ocij->boyx", windows, weights.astype(np.float64)))


# Chains of weights that are all as negative as they can be.
EXTREME: dict[str, Any] = {"none": slice(0), "few": (3, slice(None), 0), "all": slice(None)}


def extreme_case(large: str, reach: int) -> tuple[Case, np.ndarray]:
    """A layer whose weights reach from -reach, and its sums."""
    outputs = 70
    x, y = Layout((24, 5, 5), "uint8"), Layout((outputs, 3, 3), "float32")
    weights = np.random.default_rng(reach).integers(-reach // 4, reach // 4, (outputs, 24, 3, 3)).astype(np.int8)
    weights[EXTREME[large]] = -reach
    weights[0, 0] = -reach
    signs = np.where(np.arange(outputs) % 2, -1, 1)[:, None, None, None] * weights > 0
    codes = np.tile(np.where(signs, 255, 0).astype(np.uint8), (1, 1, 2, 2))[..., :5, :5]
    loops = Dense(Window(24, (5, 5), (3, 3)), outputs, 1, AVX2, 1, Int16Accumulation.of(AVX2, weights))
    share = loops.unsafe_chains(weights).mean()
    assert {"none": share == 0, "few": 0 < share < 0.5, "all": share > 0.5}[large]
    bias, ones = np.zeros(outputs, np.int32), np.ones(outputs, np.float32)
    layer = LayerSpec(x, y, loops.window, weights, Requantization(bias, ones))
    case = Case(dense.integer(layer, loops), [x], [codes], y)
    assert len(case.kernel.constants) == (4 if large == "none" else 5)
    windows = np.lib.stride_tricks.sliding_window_view(codes.astype(np.float64), (3, 3), axis=(2, 3))
    return case, np.einsum("bcyxij,ocij->boyx", windows, weights.astype(np.float64), optimize=True)  # exact


@settings(deadline=None, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 999))
def test_risky_chains_are_those_of_the_weights_in_the_order_of_the_kernel(data: st.DataObject, seed: int) -> None:
    groups, kernel = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([(1, 1), (3, 3), (1, 4)]))
    inputs, outputs = groups * data.draw(st.integers(2, 20)), groups * data.draw(st.integers(1, 40))
    window = Window(inputs, (7, 7), kernel, dilations=(1, data.draw(st.sampled_from([1, 2]))))
    weights = np.random.default_rng(seed).integers(-64, 64, (outputs, inputs // groups, *kernel)).astype(np.int8)
    weights[np.random.default_rng(seed).random(weights.shape) < data.draw(st.sampled_from([0.0, 0.9, 0.999]))] = 1
    weights.reshape(-1)[0] = -64
    loops = Dense(window, outputs, groups, AVX2, 1, Int16Accumulation.of(AVX2, weights))
    rows, columns, _ = loops.runs
    ordered = loops.order(weights).reshape(groups * loops.panels, rows * columns, *loops.links, -1, PAIR)
    np.testing.assert_array_equal(loops.unsafe_chains(weights), overflows(ordered).any(-1).reshape(-1))


@pytest.mark.slow
@BEST_OF_THEM
def test_float_layers_are_close_to_float64(chosen: Isa, tmp_path: Path) -> None:
    cases = [real_case(geometry, chosen, seed) for seed, geometry in enumerate(GEOMETRIES)]
    for geometry, result, (_, wanted) in zip(
        GEOMETRIES, run([c for c, _ in cases], chosen, tmp_path), cases, strict=True
    ):
        assert np.abs(result - wanted).max() <= 1e-5 * np.abs(wanted).max(), geometry


@INSTRUCTION_SETS
def test_scaled_sums_beyond_int32_saturate(chosen: Isa, tmp_path: Path) -> None:
    geometries = [Geometry(Window(16, (5, 5), (3, 3)), 24), Geometry(Window(40, (5, 5), (3, 3)), 40, 40)]
    cases = [integer_case(geometry, chosen, seed, 1e9) for seed, geometry in enumerate(geometries)]
    for result, (_, wanted) in zip(run([c for c, _ in cases], chosen, tmp_path), cases, strict=True):
        np.testing.assert_array_equal(result, wanted)
