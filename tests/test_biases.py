import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.biases import INT16_REACH, NEGLIGIBLE, accumulator_scale, bias_codes, usable_scale
from ptqc.errors import PassError
from ptqc.formats import UINT8, QuantParams

biases = hnp.arrays(np.float32, 6, elements=st.floats(-50, 50, width=32))
positive = st.floats(1e-6, 1.0)
scales = st.lists(positive, min_size=6, max_size=6).map(lambda x: np.array(x, np.float32))


def test_the_scale_of_sums() -> None:
    scale = accumulator_scale(QuantParams(UINT8, 0.3, 7), np.array([0.1, 0.7], np.float64))
    assert scale.dtype == np.float32
    assert scale.tolist() == [np.float32(0.3) * np.float32(0.1), np.float32(0.3) * np.float32(0.7)]


@given(bias=biases, scale=scales)
def test_for_a_float_output_every_bit_is_kept(bias: np.ndarray, scale: np.ndarray) -> None:
    assume((np.abs(bias) / scale).max() < 2**30)
    codes = bias_codes(bias, scale, None)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, np.rint(bias.astype(np.float64) / scale))


@given(bias=biases, scale=scales, step=positive)
def test_bits_are_given_up_only_where_the_output_hides_it(bias: np.ndarray, scale: np.ndarray, step: float) -> None:
    exact = bias.astype(np.float64) / scale
    assume(np.abs(exact).max() < 2**30)
    codes = bias_codes(bias, scale, step)
    error = np.abs(codes * scale.astype(np.float64) - bias)
    assert (error <= np.maximum(scale, NEGLIGIBLE * step) * 0.5001).all()
    if np.abs(exact).max() <= INT16_REACH:
        np.testing.assert_array_equal(codes, np.rint(exact))


@given(bias=biases, scale=scales)
def test_a_coarse_output_lets_every_bias_fit_16_bits(bias: np.ndarray, scale: np.ndarray) -> None:
    assume((np.abs(bias) / scale).max() < 2**30)
    codes = bias_codes(bias, scale, 1e6).astype(np.int64)
    factor = max(1, int(np.bitwise_or.reduce(codes)) & -int(np.bitwise_or.reduce(codes)))
    assert np.abs(codes // factor).max() <= INT16_REACH


@given(bias=hnp.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32)), scale=scales, step=positive)
def test_usable_scales_let_every_bias_fit(bias: np.ndarray, scale: np.ndarray, step: float) -> None:
    x = QuantParams(UINT8, step, 0)
    usable = usable_scale(scale, bias, x)
    assert (usable >= scale).all()
    codes = bias_codes(bias, accumulator_scale(x, usable), None)
    assert np.abs(codes.astype(np.int64)).max() <= 2**30 + 2**8
    fits = np.abs(bias) / (step * scale.astype(np.float64)) < 2**30 * 0.999
    np.testing.assert_array_equal(usable[fits], scale[fits])
    assert (np.frexp(usable[usable > scale])[0] == 0.5).all()


def test_an_output_as_fine_as_two_steps_of_the_bias_keeps_every_bit() -> None:
    bias, scale = np.array([40_001.0], np.float32), np.ones(1, np.float32)
    assert bias_codes(bias, scale, 2 / NEGLIGIBLE * 0.99).tolist() == [40_001]
    assert bias_codes(bias, scale, 2 / NEGLIGIBLE * 1.01).tolist() == [40_000]


def test_a_bias_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PassError, match=r"a bias of 5e\+09 accumulator steps does not fit int32"):
        bias_codes(np.array([5.0], np.float32), np.array([1e-9], np.float32), None)


def test_no_bias() -> None:
    assert bias_codes(np.zeros(3, np.float32), np.ones(3, np.float32), 0.1).tolist() == [0, 0, 0]
