"""Pairs of codes as places in a table: which are taken, and which bit lies where."""

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda.packed_weights import LANES, PairCoding


def drawn(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """int8 codes (…, even) of which so many pairs of neighbours occur, each at least once."""
    random = np.random.default_rng(count)
    pairs = random.choice(2**16, count, replace=False).astype(np.uint16)
    chosen = np.concatenate([pairs, random.choice(pairs, np.prod(shape) // 2 - count)])
    return random.permutation(chosen).view(np.int8).reshape(shape)


@pytest.mark.parametrize(("count", "bits"), [(1, 2), (4, 2), (5, 4), (16, 4), (17, 6), (64, 6), (65, 8), (256, 8)])
def test_places_lie_one_above_the_other_in_the_bytes_of_a_plane(count: int, bits: int) -> None:
    coding = PairCoding.of(drawn(count, (64, 32, 1, 1)))
    assert coding is not None
    assert (coding.place_bits, coding.bits, coding.table.size) == (bits, bits // 2, 2**bits)
    assert coding.shared_bytes == 2 * 2**bits
    codes = np.random.default_rng(0).choice(coding.pairs, (3, LANES, 16)).view(np.int8)
    rest = coding.pack(codes).reshape(3, -1)
    assert rest.shape[1] * 8 == LANES * 16 * bits
    places, left = np.zeros((3, LANES, 16), np.int64), bits
    for width in [width for width in (8, 4, 2) if bits & width]:
        plane = rest[:, : LANES * width * 2].reshape(3, LANES, -1, 4)
        rest, left = rest[:, LANES * width * 2 :], left - width
        for place in range(16):
            word, up = divmod(place // 4 * width, 8)
            places[:, :, place] |= (plane[:, :, word, place % 4].astype(int) >> up & (2**width - 1)) << left
    np.testing.assert_array_equal(coding.table[places].view(np.int8), codes)


def test_pairs_have_to_be_neighbours_in_the_sum_and_few() -> None:
    assert PairCoding.of(drawn(8, (4, 8, 1, 3))) is None
    assert PairCoding.of(drawn(8, (4, 8, 1, 1))[:, :7]) is None
    assert PairCoding.of(drawn(257, (64, 32, 1, 1))) is None


def test_codes_that_fill_up_the_last_step_need_not_be_listed() -> None:
    coding = PairCoding.of(np.array([[5, 7, 9, 11]], np.int8)[..., None, None])
    assert coding is not None
    assert coding.pack(np.zeros((LANES, 8, 4), np.int8)).nbytes == LANES * 16 * 2 // 8
