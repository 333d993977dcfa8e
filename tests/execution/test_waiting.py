"""Activations in files in 16 bits: 11 significant bits whatever their size, and what they cannot hold as it is."""

import numpy as np
import pytest
from graphs import noise

from ptqc.execution import tensors
from ptqc.execution.tensors import Waiting


@pytest.mark.parametrize("size", [1e-38, 1e-12, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("small", [0, 2**20])
def test_numbers_of_every_size_keep_eleven_bits(size: float, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "SMALL", small)
    array = noise(5, 400) * np.float32(size)
    held = Waiting.of(array)
    assert held.codes.dtype == np.float16
    assert held.real.dtype == np.float32
    assert np.abs(held.real - array).max() <= 2.0**-11 * np.abs(array).max()
    near = np.abs(array) >= 1e-6 * np.abs(array).max()
    assert (np.abs(held.real - array) <= 2.0**-11 * np.abs(array))[near].all()


def test_a_few_large_values_cost_the_others_nothing() -> None:
    array = noise(64, 64)
    array[0, 0] = 5000
    assert (np.abs(Waiting.of(array).real - array) <= 2.0**-11 * np.abs(array)).all()


@pytest.mark.parametrize(
    "array",
    [
        np.where(np.tri(200, dtype=bool), noise(200, 200), np.float32(-1e9)),
        np.array([1.0, np.inf, np.nan], np.float32),
        np.zeros((3, 4), np.float32),
        np.arange(30_000),
        np.array([["a", "b"]], object),
        noise(3).astype(np.float16),
        np.empty((0, 3), np.float32),
    ],
)
def test_what_sixteen_bits_do_not_suit_is_kept(array: np.ndarray) -> None:
    held = Waiting.of(array).real
    assert held.dtype == array.dtype
    assert held.shape == array.shape
    assert np.array_equal(held, array, equal_nan=array.dtype.kind == "f")
