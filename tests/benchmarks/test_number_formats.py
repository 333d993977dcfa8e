"""Simulated formats round as other implementations of them do, and count the bits that they would store."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from number_formats import ACTIVATIONS, BEYOND, PRODUCT, AdditionsFormat, NumberFormat, Rows, SparseFormat, decibels
from number_formats.levels import E2M1, E2M3, E3M2, E3M4, E4M3, E5M2, FloatLevels, dynamic, normal_float, powers_of_two
from number_formats.scaled import ScaledFormat
from number_formats.scaling import CeilingExponent, FloorExponent, SearchedExponent, ShareOfRow

from ptqc.formats import Codebook, Entropy, Scaled

TYPES = {
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    E3M4: ml_dtypes.float8_e3m4,
    E3M2: ml_dtypes.float6_e3m2fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E2M1: ml_dtypes.float4_e2m1fn,
}
ALL = {form.name: form for form in (*PRODUCT, *BEYOND, *ACTIVATIONS)}


def normal(shape: tuple[int, ...] = (8, 96), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("levels", TYPES, ids=str)
def test_floats_of_few_bits_are_those_of_ml_dtypes(levels: FloatLevels) -> None:
    numbers = np.random.default_rng(0).standard_normal(4000) * 2.0 ** np.random.default_rng(1).uniform(-20, 4, 4000)
    halves = np.arange(-64, 65) / 2.0**8 * levels.largest  # many of them halfway between two levels
    numbers = np.concatenate([numbers, halves, halves / 64]).astype(np.float32)
    numbers = numbers[np.abs(numbers) <= levels.largest]
    np.testing.assert_array_equal(levels.nearest(numbers), numbers.astype(TYPES[levels]).astype(np.float32))
    assert levels.nearest(np.array([1e9, -1e9])).tolist() == [levels.largest, -levels.largest]
    assert float(ml_dtypes.finfo(TYPES[levels]).max) == levels.largest


def test_listed_levels_are_those_of_their_papers() -> None:
    assert len(dynamic(8).values) == 256
    assert dynamic(4).values == pytest.approx(  # by hand: means of the halves of [0.1, 1] and so on
        [-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0]
        + [0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1]
    )
    published = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
    published += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
    assert normal_float().values == pytest.approx(published, abs=1e-6)
    assert powers_of_two(3).values == (-1, -0.5, -0.25, 0, 0.25, 0.5, 1)


def test_exponents_of_blocks_follow_the_two_rules() -> None:
    block = np.array([[[7.0, -1.0]], [[6.0, 0.4]], [[4.0, 1.0]], [[0.75, 0.1]]], np.float32)
    one = np.ones_like(block)
    # E2M1 reaches 6 = 1.5 · 2²: ⌊log₂ 7⌋ − 2 = 0 cuts 7 off, ⌈log₂(7 / 6)⌉ = 1 does not.
    assert FloorExponent().scale(block, one, E2M1).ravel().tolist() == [1, 1, 1, 0.125]
    assert CeilingExponent().scale(block, one, E2M1).ravel().tolist() == [2, 1, 1, 0.125]


def test_a_share_of_a_row_makes_codes_of_eight_bits() -> None:
    form = next(form for form in BEYOND if form.name == "int4, blocks of 16, 4-bit shares")
    assert isinstance(form, ScaledFormat)
    values = normal((4, 64)) * np.repeat([1, 0.3, 0.1, 0.02], 16).astype(np.float32)
    blocks = values.reshape(4, 4, 16)
    scale = ShareOfRow(4).scale(blocks, np.ones_like(blocks), form.levels)
    stored = form.store(Rows.of(values)).values
    codes = stored / (scale.max(1) / 16)[:, None]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-3)
    assert np.rint(codes).min() >= -128
    assert np.rint(codes).max() <= 127


def test_a_power_of_two_is_the_best_one() -> None:
    values = normal((6, 1, 40))
    levels = E2M1
    scale = SearchedExponent().scale(values, np.ones_like(values), levels)[:, 0]

    def errors(tried: np.ndarray) -> np.ndarray:
        return np.square(values[:, 0] - levels.nearest(values[:, 0] / tried[:, None]) * tried[:, None]).sum(-1)

    several = np.array([errors(np.full(6, 2.0**k)) for k in range(-12, 5)])
    np.testing.assert_allclose(errors(scale), several.min(0), rtol=1e-5)


def test_the_numbers_of_least_loss_are_zero() -> None:
    values = np.array([[1, -2, 3, -4, 0.5, 6, 7, 8]], np.float32)
    importance = np.array([[1, 100, 1, 1, 1, 1, 1, 1]], np.float32)
    kept = SparseFormat("2:4", 8, 2, 4).store(Rows.of(values, importance)).values != 0
    assert kept.tolist() == [[False, True, False, True, False, False, True, True]]
    half = SparseFormat("half", 8, 50).store(Rows.of(values)).values != 0
    assert half.tolist() == [[False, False, False, True, False, True, True, True]]
    assert SparseFormat("2:4", 4, 2, 4).store(Rows.of(normal((16, 64)))).bits == 16 * 64 * (3 + 2 * 4) / 4 + 16 * 16
    assert SparseFormat("4:8", 4, 4, 8).store(Rows.of(normal((16, 64)))).bits == 16 * 64 * (7 + 4 * 4) / 8 + 16 * 16


def test_neighbours_are_inputs_of_one_tap() -> None:
    values = normal((16, 7 * 9))  # 7 inputs, each with 9 taps
    kept = SparseFormat("2:4", 8, 2, 4).store(replace(Rows.of(values), taps=9)).values.reshape(16, 7, 9) != 0
    assert (kept[:, :4].sum(1) == 2).all()
    assert (kept[:, 4:].sum(1) == 2).all()
    assert not SparseFormat("2:4", 8, 2, 4).fits(replace(Rows.of(normal((16, 9))), taps=9))


def test_additions_are_as_many_as_asked_for() -> None:
    values = normal((4, 4096))
    stored = AdditionsFormat("PANN", 3).store(Rows.of(values)).values
    step = np.abs(values).mean(-1, keepdims=True) / 3
    assert np.abs(stored / step).mean() == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("form", PRODUCT, ids=str)
def test_bits_are_those_of_what_ptqc_writes_and_of_scales_as_in_other_formats(form: NumberFormat) -> None:
    product: Scaled = form.form  # type: ignore[attr-defined]
    values = normal((16, 96))
    codes, scale = product.rounded(values, 0)
    shared = [array.tobytes() for array in product.shared.values()]
    packed = sum(array.nbytes for array in product.pack(codes, scale)[:-1] if array.tobytes() not in shared)
    stored = form.store(Rows.of(values))
    assert stored.bits == 8 * packed + 16 * len(scale)
    np.testing.assert_array_equal(stored.values, product.decode(codes, scale, 0))
    if isinstance(product, Entropy):
        return  # its bits are those of the numbers
    table = 2**product.bits * product.group * 8 if isinstance(product, Codebook) else 0
    wide = form.store(Rows.of(values[:4], count=16)).bits  # a sample of the channels stands for all of them
    assert wide == stored.bits
    assert stored.bits == values.size * product.bits_per_weight + 16 * 16 + table


@pytest.mark.parametrize("form", ALL.values(), ids=list(ALL))
def test_every_format_keeps_what_its_bits_allow(form: NumberFormat) -> None:
    rows = Rows.of(normal((32, 130)))  # the last block of a channel is a short one
    stored = form.store(rows)
    bits = stored.bits / rows.size
    assert stored.values.shape == rows.values.shape
    assert stored.values.dtype == np.float32
    assert 1 < bits <= 16.5
    # No code of so many bits has less noise (the rate of a Gaussian source); those that keep all have half of it.
    worth = decibels(rows, stored) / (20 * np.log10(2))
    assert worth <= bits + 0.01
    assert worth >= 0.45 * bits or isinstance(form, SparseFormat)
    assert not np.any(form.store(Rows.of(np.zeros((2, 64), np.float32) + np.float32(1e-30))).values > 1e-3)
