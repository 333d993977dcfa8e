import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.errors import PassError
from ptqc.formats import UINT8, Integer, QuantParams, VectorCodebook
from ptqc.ir.integer_arithmetic import (
    FEW,
    MANY,
    accumulator_scale,
    bias_codes,
    bits_for,
    codes_of,
    recovered_bias,
    stored_bias,
    usable_scale,
)

biases = hnp.arrays(np.float32, 6, elements=st.floats(-50, 50, width=32))
positive = st.floats(1e-6, 1.0)
scales = st.lists(positive, min_size=6, max_size=6).map(lambda x: np.array(x, np.float32))


def test_the_scale_of_sums() -> None:
    scale = accumulator_scale(QuantParams(UINT8, 0.3, 7), np.array([0.1, 0.7], np.float64))
    assert scale.dtype == np.float32
    assert scale.tolist() == [np.float32(0.3) * np.float32(0.1), np.float32(0.3) * np.float32(0.7)]


@given(bias=biases, scale=scales, bits=st.sampled_from((FEW, MANY)))
def test_codes_are_those_of_a_bias_of_few_bits(bias: np.ndarray, scale: np.ndarray, bits: int) -> None:
    assume((np.abs(bias) / scale).max() < 2**30)
    stored, unit = stored_bias(bias, bits)
    assert np.abs(stored).max() < 2 ** (bits - 1)
    error = np.abs(stored * np.float64(unit) - bias)
    assert (error <= max(np.abs(bias).max(), 2.0**-100) / 2 ** (bits - 1) * 1.02).all()
    codes = bias_codes(bias, scale, bits)
    assert codes.dtype == np.int32
    exact = stored * np.float64(unit) / scale
    assert (np.abs(codes - exact) <= 0.5 + np.abs(exact) * 2.0**-22).all()


@given(bias=biases, scale=scales, bits=st.sampled_from((FEW, MANY)))
def test_what_is_stored_is_found_in_the_codes(bias: np.ndarray, scale: np.ndarray, bits: int) -> None:
    assume((np.abs(bias) / scale).max() < 2**30)
    codes = bias_codes(bias, scale, bits)
    result = recovered_bias(codes, scale)
    assert result is not None
    assert result[0].dtype in ((np.int8,) if bits == FEW else (np.int8, np.int16))
    np.testing.assert_array_equal(codes_of(*result, scale), codes)


def test_other_codes_are_not_found() -> None:
    assert recovered_bias(np.array([1_000_000, 999_999, 3], np.int32), np.ones(3, np.float32)) is None


def test_few_bits_are_enough_for_coarse_weights_and_an_output_of_codes() -> None:
    y, bias = QuantParams(UINT8, 0.1, 3), np.array([6.0, -7.0], np.float32)
    assert [bits_for(form, bias, y) for form in (Integer(4), VectorCodebook(8), Integer(5))] == [FEW, FEW, MANY]
    assert bits_for(Integer(2), 2 * bias, y) == MANY
    assert bits_for(Integer(2), bias, None) == MANY


@given(bias=hnp.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32)), scale=scales, step=positive)
def test_usable_scales_let_every_bias_fit(bias: np.ndarray, scale: np.ndarray, step: float) -> None:
    x = QuantParams(UINT8, step, 0)
    usable = usable_scale(scale, bias, x)
    assert (usable >= scale).all()
    codes = bias_codes(bias, accumulator_scale(x, usable), MANY)
    assert np.abs(codes.astype(np.int64)).max() <= 2**30 * 1.0001
    fits = np.abs(bias) / (step * scale.astype(np.float64)) < 2**29 * 0.999
    np.testing.assert_array_equal(usable[fits], scale[fits])
    assert (np.frexp(usable[usable > scale])[0] == 0.5).all()


def test_a_bias_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PassError, match=r"a bias of 5e\+09 accumulator steps does not fit int32"):
        bias_codes(np.array([5.0], np.float32), np.array([1e-9], np.float32), MANY)


def test_no_bias() -> None:
    for bits in (FEW, MANY):
        assert bias_codes(np.zeros(3, np.float32), np.ones(3, np.float32), bits).tolist() == [0, 0, 0]
