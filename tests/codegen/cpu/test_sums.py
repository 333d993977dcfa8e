"""Sums of products in 16 bits never overflow, and are as long as that allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels.int16_accumulation import (
    LARGEST_CODE,
    LARGEST_SUM,
    LONGEST,
    PAIR,
    Int16Accumulation,
    overflows,
)
from ptqc.codegen.kernels.isa import Isa

WORDS = range(-(LARGEST_SUM + 1), LARGEST_SUM + 1)


SETS = pytest.mark.parametrize("chosen", [isa.AVX2, isa.AVX2.signed, isa.ARM_NEON], ids=["avx2", "signed", "neon"])


@SETS
@pytest.mark.parametrize("reach", [1, 2, 4, 8, 16, 32, 64, 127, 128])
def test_the_largest_codes_and_weights_stay_in_range(reach: int, chosen: Isa) -> None:
    sums = Int16Accumulation.of(chosen, np.array([-reach, reach - 1], np.int8))
    halved, most = -(-reach // sums.parts), chosen.largest_input
    assert sums.safe * PAIR * most * -halved in WORDS
    assert sums.parts == (2 if PAIR * most * reach > LARGEST_SUM else 1)
    assert sums.safe == LONGEST or sums.parts == 2 or (sums.safe + 1) * PAIR * most * reach > LARGEST_SUM
    further = sums.safe if chosen.signed_inputs else 2 * sums.safe
    assert sums.chain == (1 if sums.parts == 2 else min(further, LONGEST))
    assert sums.all_safe.safe == sums.all_safe.chain == sums.chain


def test_only_sums_in_words_have_limits() -> None:
    weights = np.array([-128, 127], np.int8)
    assert (
        Int16Accumulation.of(isa.AVX512_VNNI, weights)
        == Int16Accumulation.of(isa.C, weights)
        == Int16Accumulation(parts=1, chain=1)
    )
    assert Int16Accumulation.of(isa.AVX2, np.array([0, 64], np.int8)) == Int16Accumulation(parts=1, chain=2, safe=1)


@given(hnp.arrays(np.int8, (3, 5, PAIR), elements=st.integers(-64, 64)))
def test_what_overflows_is_what_some_codes_drive_out_of_range(weights: np.ndarray) -> None:
    """Codes that are largest where weights are positive, and those that are largest where they are negative."""
    wide = weights.astype(int)
    most, least = (np.where(chosen, LARGEST_CODE * wide, 0).sum((0, 2)) for chosen in (wide > 0, wide < 0))
    np.testing.assert_array_equal(overflows(weights), (most > LARGEST_SUM) | (least < -LARGEST_SUM))


@given(st.integers(1, 5000), st.integers(1, LONGEST))
def test_chains_cover_a_run_and_read_little_more(units: int, chain: int) -> None:
    count, length = Int16Accumulation(chain=chain).links(units)
    assert length <= chain
    assert 0 <= count * length - units < LONGEST
