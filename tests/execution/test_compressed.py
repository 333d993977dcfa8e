import numpy as np
import pytest
from graphs import noise
from hypothesis import given
from hypothesis import strategies as st

from ptqc.execution.tensors import SMALLEST_SCALE, STEPS, Compressed
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.integer_arithmetic import fake_quantize


@given(st.floats(-30, 30), st.integers(0, 255), st.integers(0, 100))
def test_a_quantized_tensor_loses_nothing_more(exponent: float, zero_point: int, seed: int) -> None:
    params = QuantParams(UINT8, float(np.float32(2.0**exponent)), zero_point)
    x = noise(3, 7, seed=seed, scale=params.scale * 100)
    kept = Compressed.of(x, params)
    np.testing.assert_array_equal(np.asarray(kept), fake_quantize(x, params))
    assert kept.nbytes == 21


@given(st.floats(-37, 37), st.integers(0, 100))
def test_other_values_are_within_half_a_step_of_16_bits(exponent: float, seed: int) -> None:
    x = noise(4, 5, seed=seed, scale=10.0**exponent)
    kept = Compressed.of(x)
    assert isinstance(kept, Compressed)
    assert (kept.nbytes, kept.shape, kept.ndim, len(kept), kept.dtype) == (40, (4, 5), 2, 4, np.float32)
    largest = float(np.abs(x).max())
    assert np.abs(np.asarray(kept) - x).max() <= 0.51 * max(largest / STEPS, SMALLEST_SCALE)


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3), np.float32), np.zeros((1, 4), np.float32), np.array([[1e-44]], np.float32)]
)
def test_nothing_and_next_to_nothing(array: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(Compressed.of(array)), array, atol=1e-40)


@pytest.mark.parametrize("array", [np.arange(5), np.array([True, False]), np.array([[1.0, np.inf]], np.float32)])
def test_what_16_bits_do_not_hold_stays(array: np.ndarray) -> None:
    assert Compressed.of(array) is array


MASKS = [float(np.finfo(np.float32).min), -1e30, -1e9, -65504.0, -10000.0, 1e9]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_mask_leaves_the_rest_exact(mask: float, share: float) -> None:
    x = noise(8, 500, scale=3)
    x[np.random.default_rng(1).random(x.shape) < share] += np.float32(mask)
    assert Compressed.of(x) is x


@given(st.floats(0, 6), st.integers(0, 100))
def test_large_values_of_one_kind_are_no_mask(exponent: float, seed: int) -> None:
    """Wide as they are: the delivered bytes of a model hang on the 16 bits."""
    x = noise(500, 8, seed=seed, scale=3 * 10**exponent) ** 3
    step = np.float32(np.abs(x).max() / STEPS)
    np.testing.assert_array_equal(np.asarray(Compressed.of(x)), np.rint(x / step) * step)


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_alone(mask: float) -> None:
    x = np.where(noise(8, 50) > 0, np.float32(mask), np.float32(0))
    np.testing.assert_allclose(np.asarray(Compressed.of(x)), x, rtol=1e-6)


def test_small_numbers_that_count_are_kept() -> None:
    power: np.ndarray = np.abs(noise(8, 500)) ** 8
    assert isinstance(Compressed.of(power), Compressed)
    assert Compressed.of(power, fine=True) is power
    assert isinstance(Compressed.of(power + np.max(power), fine=True), Compressed)


def test_factors_stay_exact() -> None:
    array = np.array([1, 1, 1.5, 2.94], np.float32)  # of a Resize, say, where 0.99997 would not be 1
    assert Compressed.of(array) is array


@pytest.mark.parametrize("params", [None, QuantParams(UINT8, 0.25, 3)])
def test_a_single_number(params: QuantParams | None) -> None:
    kept = np.asarray(Compressed.of(np.array(1.5, np.float32), params))
    assert (kept.shape, kept.dtype) == ((), np.float32)
    np.testing.assert_allclose(kept, 1.5, rtol=1e-4)


@pytest.mark.parametrize(("shape", "axis"), [((40, 24), 1), ((3, 20, 24), 2), ((3, 24, 6, 5), 1)])
def test_channels_of_other_units_have_steps_of_their_own(shape: tuple[int, ...], axis: int) -> None:
    """As columns of a table have: of each as many digits are left."""
    sizes = [24 if place == axis else 1 for place in range(len(shape))]
    units = (10.0 ** np.linspace(-4, 6, 24)).astype(np.float32).reshape(sizes)
    x = noise(*shape) * units
    kept = Compressed.of(x)
    assert isinstance(kept, Compressed)
    assert kept.nbytes == 2 * x.size + 4 * 24
    others = tuple(place for place in range(len(shape)) if place != axis)
    assert (np.abs(np.asarray(kept) - x).max(others) <= 0.51 * np.abs(x).max(others) / STEPS).all()
    assert np.asarray(kept.with_codes(lambda values, _: values[1:])).shape == (shape[0] - 1, *shape[1:])


def test_what_no_steps_hold_stays() -> None:
    """Small places of a channel beside small channels of a place."""
    x = (
        noise(4, 24, 24)
        * (10.0 ** np.linspace(0, 8, 24)).astype(np.float32)
        * 10.0 ** np.linspace(8, 0, 24, dtype=np.float32).reshape(1, 24, 1)
    )
    assert Compressed.of(x) is x
