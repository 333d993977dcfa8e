"""Requantization in whole numbers: shown to be exact where it is, and by brute force where it is not."""

import numpy as np

from ptqc.codegen.c.requantize import in_whole_numbers, is_exact, reference

ZERO = 7


def codes(steps: np.ndarray) -> np.ndarray:
    return np.clip(steps + ZERO, 0, 255)


def test_the_proof_agrees_with_every_sum() -> None:
    random = np.random.default_rng(0)
    results = []
    for _ in range(300):
        factor = np.exp(random.uniform(-8, -2, 3)).astype(np.float32)
        if random.random() < 0.5:  # products then end in halves, or nearly
            factor = (np.rint(factor * 2**10) / 2**10 + 2**-10 + random.choice([0, 2**-24], 3)).astype(np.float32)
        reach = int(random.integers(1000, 60000))
        sums = np.arange(-reach, reach + 1)[:, None]
        same = np.array_equal(codes(reference(sums, factor)), codes(in_whole_numbers(sums, factor)))
        limits = np.full(3, -reach), np.full(3, reach)
        assert is_exact(factor, *limits, ZERO) == same
        results.append(same)
    assert 0 < sum(results) <= len(results)


def test_sums_beyond_24_digits_are_rounded_first_by_the_reference() -> None:
    factor = np.array([2.0**-17], np.float32)  # a half lies between codes at odd sums of 25 digits
    sums = np.array([2**24 + 2**16 + 1])
    assert reference(sums, factor) != in_whole_numbers(sums, factor)
    assert not is_exact(factor, np.array([0]), np.array([2**25]), 0)
    assert is_exact(factor, np.array([0]), np.array([2**23]), 0)


def test_powers_of_two_are_shifts() -> None:
    factor = np.full(2, 2.0**-9, np.float32)
    assert is_exact(factor, np.full(2, -(2**23)), np.full(2, 2**23), 128)
    sums = np.array([256, 768, -256, 257])
    assert in_whole_numbers(sums, factor[:1]).tolist() == [0, 2, 0, 1]


def test_factors_beyond_its_range_are_not_exact() -> None:
    reach = np.array([-1000]), np.array([1000])
    assert not is_exact(np.array([2.0**30], np.float32), *reach, 0)
    assert not is_exact(np.array([np.inf], np.float32), *reach, 0)
    assert not is_exact(np.array([0.0], np.float32), *reach, 0)
