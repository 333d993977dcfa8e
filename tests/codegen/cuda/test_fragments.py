"""Codes packed as lanes unpack them: how few bits, and which bit lies where."""

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda.packed_weights import LANES, Coding


def every_code(bits: int) -> np.ndarray:
    """int8 (3, lanes, registers, codes)."""
    half = 2 ** (bits - 1)
    codes = np.resize(np.arange(-half, half), 3 * LANES * 32)
    return np.random.default_rng(bits).permutation(codes).astype(np.int8).reshape(3, LANES, 8, 4)


def words(packed: np.ndarray, bits: int) -> list[np.ndarray]:
    """Planes (3, lanes, words), the one with the highest bits first."""
    rest, result = packed.reshape(3, -1), []
    for width in (width for width in (4, 2, 1) if bits & width):
        plane, rest = rest[:, : LANES * width * 4], rest[:, LANES * width * 4 :]
        result.append(np.ascontiguousarray(plane).view("<u4").reshape(3, LANES, width))
    assert rest.size == 0
    return result


@pytest.mark.parametrize("bits", range(1, 8))
def test_registers_lie_one_above_the_other_in_the_bytes_of_a_plane(bits: int) -> None:
    codes = every_code(bits)
    coding = Coding.of(codes, 100)
    packed = coding.pack(codes)
    assert (coding.bits, coding.shift, coding.table, packed.nbytes * 8) == (bits, 8 - bits, None, codes.size * bits)
    made, left = np.zeros(codes.shape, np.int64), bits
    for plane in words(packed, bits):
        width = plane.shape[-1]
        left -= width
        for register in range(8):
            word, place = divmod(register * width, 8)
            for code in range(4):
                made[:, :, register, code] |= (plane[..., word] >> (8 * code + place) & (2**width - 1)) << left
    np.testing.assert_array_equal(np.where(made >= 2 ** (bits - 1), made - 2**bits, made), codes)


@pytest.mark.parametrize(("count", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_places_of_listed_codes_lie_in_half_bytes(count: int, bits: int) -> None:
    listed = np.sort(np.random.default_rng(count).choice(np.arange(-128, 100), count, replace=False)).astype(np.int8)
    codes = np.random.default_rng(1).choice(listed, (3, LANES, 8, 4))
    coding = Coding.of(codes, 100)
    assert (coding.bits, coding.shift) == (bits, 0)
    assert coding.table is not None
    table, made, left = coding.table.view(np.int8), np.zeros(codes.shape, np.int64), bits
    for plane in words(coding.pack(codes), bits):
        width = plane.shape[-1]
        left -= width
        for register in range(8):
            word, place = divmod(register // 2 * width, 4)
            for code in range(4):
                half = 4 * (register % 2 * 4 + code)
                made[:, :, register, code] |= (plane[..., word] >> (half + place) & (2**width - 1)) << left
    np.testing.assert_array_equal(table[made], codes)


def test_whole_bytes_lie_as_they_are_four_registers_after_the_other_four() -> None:
    codes = every_code(8)
    packed = Coding.of(codes, 100).pack(codes).view(np.int8).reshape(3, 2, LANES, 4, 4)
    np.testing.assert_array_equal(packed.transpose(0, 2, 1, 3, 4).reshape(codes.shape), codes)


@pytest.mark.parametrize(("low", "high", "bits"), [(-8, 7, 4), (-8, 8, 5), (0, 20, 6), (-1, 0, 1), (-128, 0, 8)])
def test_evenly_spaced_codes_have_a_sign(low: int, high: int, bits: int) -> None:
    assert Coding.of(np.arange(low, high + 1).astype(np.int8), 100).bits == bits


def test_codes_that_fill_up_the_last_step_need_not_be_listed() -> None:
    listed = np.array([-93, -31, 31, 93], np.int8)
    coding = Coding.of(listed, 100)
    codes = np.where(np.arange(LANES * 32) % 5, np.resize(listed, LANES * 32), 0).astype(np.int8)
    assert coding.bits == 2
    assert coding.pack(codes).nbytes == LANES * 32 // 4


def test_long_sums_take_codes_as_they_are() -> None:
    assert Coding.of(np.array([-1, 0], np.int8), 2**31 // (255 * 128) + 1).bits == 8
