"""Drawn pictures: what they have in common with photographs."""

import numpy as np
import pytest

from ptqc.calibration.synthetic import MEAN, STD, picture


def draw(count: int, channels: int = 3, size: tuple[int, int] = (64, 64), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([picture(rng, channels, *size) for _ in range(count)])


@pytest.mark.parametrize(("channels", "size"), [(1, (49, 10)), (3, (32, 32)), (3, (1, 7)), (1, (1, 1))])
def test_any_size_gives_pixels_from_0_to_1(channels: int, size: tuple[int, int]) -> None:
    result = draw(4, channels, size)
    assert result.shape == (4, channels, *size)
    assert result.dtype == np.float32
    assert result.min() >= 0
    assert result.max() <= 1


def test_the_same_generator_gives_the_same_pictures() -> None:
    assert np.array_equal(draw(2), draw(2))
    assert not np.array_equal(draw(2), draw(2, seed=1))


def test_mean_and_spread_are_those_of_photographs() -> None:
    result = draw(200)
    assert abs(result.mean() - MEAN) < 0.05
    assert abs(result.std() - STD) < 0.05


def test_amplitudes_fall_as_one_over_the_frequency() -> None:
    luma = draw(60).mean(1)
    power = (np.abs(np.fft.fft2(luma - luma.mean((1, 2), keepdims=True))) ** 2).mean(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(64), np.fft.fftfreq(64)))
    band = (frequency > 0.03) & (frequency < 0.4)
    slope = np.polyfit(np.log(frequency[band]), np.log(power[band]), 1)[0]
    assert -3 < slope < -1.5  # of the power: twice that of the amplitudes


def test_channels_and_neighbours_vary_together() -> None:
    result = draw(60)
    between_channels = np.corrcoef(result.transpose(1, 0, 2, 3).reshape(3, -1))
    assert between_channels.min() > 0.6
    assert np.corrcoef(result[..., 1:].ravel(), result[..., :-1].ravel())[0, 1] > 0.8


def test_pictures_differ_in_brightness_and_contrast() -> None:
    result = draw(100)
    assert result.mean((1, 2, 3)).std() > 0.08
    assert result.std((1, 2, 3)).std() > 0.03
