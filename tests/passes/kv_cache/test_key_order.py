"""Sorted keys lose less in block floating point, never more on held-back samples, and give the same scores."""

import math
from fractions import Fraction

import numpy as np
import pytest

from ptqc.passes.kv_cache.key_order import Pairs, block_rounded, divergence, order_of, sort_head

SIZE, LENGTH, SAMPLES = 64, 128, 8
PLAIN, HALVES, NEIGHBOURS = Pairs(), Pairs(halves=True), Pairs(neighbours=True)


def planted(seed: int, count: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of a head, of which some channels have a large mean, in pairs of the halves that turn slowly."""
    rng = np.random.default_rng(seed)
    offset = np.zeros(SIZE)
    offset[[3, 17, 29, 35, 49, 61]] = 12, -9, 10, -11, 9, 13
    keys = rng.normal(size=(count, LENGTH, SIZE)) + offset
    return rng.normal(size=(count, LENGTH, SIZE)) * 0.8, keys


def by_hand(keys: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Block floating point of a vector, in exact arithmetic."""
    result = []
    for start in range(0, len(keys), block):
        part = [Fraction(float(x)) for x in keys[start : start + block]]
        most = max(map(abs, part))
        exponent = math.floor(math.log2(most)) if most else 0
        step = Fraction(2) ** (exponent - (bits - 2))
        top = 2 ** (bits - 1) - 1
        result += [float(max(-top, min(top, round(x / step))) * step) for x in part]
    return np.array(result)


@pytest.mark.parametrize("block", [16, 32, 64])
def test_rounding_is_that_of_the_format(block: int) -> None:
    keys = np.random.default_rng(0).normal(size=SIZE) * np.exp(np.random.default_rng(1).normal(size=SIZE) * 2)
    keys[:block] = 0 if block == 16 else keys[:block]
    assert np.array_equal(block_rounded(keys, 4, block), by_hand(keys, 4, block))


@pytest.mark.parametrize("pairs", [PLAIN, HALVES, NEIGHBOURS])
def test_pairs_stay_pairs_and_energy_falls(pairs: Pairs) -> None:
    _, keys = planted(0)
    order, sets = order_of(keys, pairs), pairs.of(SIZE)
    assert sorted(order) == list(range(SIZE))
    moved = order[sets]
    assert {tuple(x) for x in moved.tolist()} == {tuple(x) for x in sets.tolist()}
    energy = (keys**2).mean((0, 1))[moved].sum(1)
    assert (np.diff(energy) <= 0).all()


def test_divergence_falls_by_a_sixth_at_blocks_of_half_the_head() -> None:
    _, keys = planted(0)
    result = sort_head(keys, *planted(1), NEIGHBOURS)
    assert result.losses[1] <= 0.85 * result.losses[0]
    queries, others = planted(2)  # neither sorted nor accepted on
    plain = divergence(queries, others, block_rounded(others))
    queries, others = queries[..., result.order], others[..., result.order]
    assert divergence(queries, others, block_rounded(others)) <= 0.85 * plain


def test_one_block_for_the_whole_head_gains_nothing() -> None:
    _, keys = planted(0)
    result = sort_head(keys, *planted(1), PLAIN, block=SIZE)
    assert result.losses[0] == pytest.approx(result.losses[1], rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_it_never_loses_more_on_held_back_samples(seed: int) -> None:
    """Many outliers of mean zero: sorting them loses, and is then not done."""
    rng = np.random.default_rng(seed)
    scales = np.where(rng.random(SIZE) < 0.06, 12.0, 1.0)
    keys, held = (rng.normal(size=(2, LENGTH, SIZE)) * scales for _ in range(2))
    result = sort_head(keys, rng.normal(size=(2, LENGTH, SIZE)), held, PLAIN, block=16)
    assert result.losses[1] <= result.losses[0]
    assert result.is_sorted == (result.losses[1] < result.losses[0])


def test_scores_are_the_same_in_any_order() -> None:
    queries, keys = planted(3)
    order = order_of(keys, HALVES)
    before, after = (q @ k.swapaxes(-1, -2) for q, k in ((queries, keys), (queries[..., order], keys[..., order])))
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()
