"""bfloat16: the nearest of the float32 values that end in 16 zero bits."""

import numpy as np

from ptqc.formats import to_bfloat16


def neighbours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of 16 bits on both sides of finite ones, towards zero and away from it."""
    towards = (x.view(np.uint32) >> 16) << 16
    return towards.view(np.float32), (towards + (1 << 16)).view(np.float32)


def test_values_become_the_nearest_and_halves_the_even_one() -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal(10_000) * 10.0 ** random.uniform(-30, 30, 10_000)).astype(np.float32)
    half = ((random.integers(0x3F80, 0x4200, 1000).astype(np.uint32) << 16) + (1 << 15)).view(np.float32)
    x = np.concatenate([x, half, -half])
    lower, upper = neighbours(x)
    result = to_bfloat16(x).astype(np.float64)
    below, above = np.abs(result - x), np.minimum(np.abs(lower - x.astype(np.float64)), np.abs(upper - x.astype(float)))
    np.testing.assert_array_equal(below, above)
    assert not np.any(to_bfloat16(np.concatenate([half, -half])).view(np.uint32) & (1 << 16))


def test_what_has_no_more_digits_stays() -> None:
    x = np.array([0.0, -0.0, 1.0, -255.0, 256.0, 2.0**-120, np.inf, -np.inf], np.float32)
    assert to_bfloat16(x).tobytes() == x.tobytes()
    assert np.isnan(to_bfloat16(np.array([np.nan], np.float32))).all()
