import numpy as np
import pytest

from ptqc.calibration.plausibility import outlier_warning, preprocessing_warning
from ptqc.calibration.ranges import RangeObserver

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, size=(1, 3, 32, 32)).astype(np.float32)
NORMALIZED = (PIXELS / 255 - 0.45) / 0.225
WEIGHTS = RNG.normal(size=(8, 3))


def observed(values):
    observer = RangeObserver()
    observer.update(values)
    return observer


def statistics(values):
    """Mean and standard deviation per channel of a 1 x 1 convolution."""
    outputs = np.einsum("oc,nchw->onhw", WEIGHTS, values).reshape(8, -1)
    return outputs.mean(axis=1), outputs.std(axis=1)


def warning(values):
    return preprocessing_warning(observed(values), *statistics(NORMALIZED), *statistics(values))


@pytest.mark.parametrize("values", [NORMALIZED, NORMALIZED * 3, NORMALIZED / 3, NORMALIZED + 0.5])
def test_plausible_data_pass(values):
    assert warning(values.astype(np.float32)) is None


def test_raw_pixels_are_told_to_be_scaled():
    message = warning(PIXELS)
    assert message is not None
    assert "from 0 to 255" in message
    assert "larger than" in message
    assert "--scale 255" in message
    spread = np.median(statistics(NORMALIZED)[1])
    assert f"{spread:.3g} seen in training" in message


def test_a_division_done_twice_is_noticed():
    message = warning(NORMALIZED / 255)
    assert message is not None
    assert "smaller than" in message
    assert "division done twice" in message


def test_a_constant_far_off_is_noticed():
    message = warning(np.full_like(NORMALIZED, 100.0))
    assert message is not None
    assert "larger than" in message


def test_without_batch_norm_only_whole_bytes_are_remarked_on():
    assert "like raw pixels" in (preprocessing_warning(observed(PIXELS)) or "")
    assert preprocessing_warning(observed(NORMALIZED)) is None
    assert preprocessing_warning(observed(PIXELS + 0.5)) is None
    assert preprocessing_warning(observed(PIXELS - 128)) is None
    assert preprocessing_warning(RangeObserver()) is None


def test_dead_channels_do_not_divide_by_zero():
    zeros = np.zeros(8)
    assert preprocessing_warning(observed(NORMALIZED), zeros, zeros, *statistics(NORMALIZED)) is None


NAMES = [f"sample {number}" for number in range(32)]


def test_a_sample_far_larger_than_the_others_is_named():
    largest = [2.0 + 0.01 * number for number in range(32)]
    assert outlier_warning(largest, NAMES) is None
    largest[7] = 2e5
    message = outlier_warning(largest, NAMES)
    assert message is not None
    assert message.startswith("sample 7 of 32 samples reach 2e+05")


def test_several_are_counted():
    largest = [1e4 if number < 5 else 1.0 for number in range(32)]
    assert (outlier_warning(largest, NAMES) or "").startswith("sample 0, sample 1, sample 2 and 2 more of 32 samples")


@pytest.mark.parametrize("largest", [[0.0] * 31 + [5.0], list(np.geomspace(1, 1e4, 32))])
def test_empty_inputs_and_wide_spreads_are_no_mistake(largest):
    assert outlier_warning(largest, NAMES) is None
