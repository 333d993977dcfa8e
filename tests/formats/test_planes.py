import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats.planes import far_bits, halves, pack, pack_bits, pack_close, packed_bytes, planes_of, unpack


@st.composite
def indices(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """A width of 1 to 7 bits, and indices of any shape."""
    bits = draw(st.integers(1, 7))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9))
    return bits, draw(hnp.arrays(np.int32, shape, elements=st.integers(0, 2**bits - 1)))


@given(indices())
def test_packing_is_undone(case: tuple[int, np.ndarray]) -> None:
    bits, index = case
    planes = pack(index, bits)
    assert all(plane.dtype == np.uint8 and plane.ndim == 1 for plane in planes)
    np.testing.assert_array_equal(unpack(planes, bits, index.size), index.ravel())
    assert sum(plane.nbytes for plane in planes) == packed_bytes(index.size, bits)


@pytest.mark.parametrize(
    ("bits", "widths"),
    [(1, (1,)), (2, (2,)), (3, (2, 1)), (4, (4,)), (5, (4, 1)), (6, (4, 2)), (7, (4, 2, 1)), (8, ())],
)
def test_planes(bits: int, widths: tuple[int, ...]) -> None:
    assert planes_of(bits) == widths
    assert sum(widths) == (bits if bits < 8 else 0)


def test_layout() -> None:
    """As the docstring says: byte i of a plane of two bits holds elements i, i + m, i + 2m, i + 3m."""
    (plane,) = pack(np.array([0, 1, 2, 3, 3, 2, 1, 0]), 2)
    assert plane.tolist() == [0 | 2 << 2 | 3 << 4 | 1 << 6, 1 | 3 << 2 | 2 << 4 | 0 << 6]
    high, low = pack(np.array([0b101] + [0] * 7), 3)
    assert (high.tolist(), low.tolist()) == ([0b10, 0], [1])


@given(indices())
def test_single_bits_are_one_array(case: tuple[int, np.ndarray]) -> None:
    """Bit i of element k is in row i, in byte k % m, at place k // m."""
    bits, index = case
    stored = pack_bits(index, bits)
    count = -(-index.size // 8)
    assert (stored.dtype, stored.shape) == (np.uint8, (bits, 1, count))
    for k, element in enumerate(index.ravel().tolist()):
        assert [byte >> k // count & 1 for byte in stored[:, 0, k % count].tolist()] == [
            element >> bit & 1 for bit in range(bits)
        ]


def test_bits_are_far_apart_in_each_row() -> None:
    rows = np.array([[1, 0, 0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 1, 0, 0, 0, 0, 0]])
    assert far_bits(rows).tolist() == [[1 | 1 << 4, 1 << 4], [1 << 2, 1]]


@pytest.mark.parametrize(("size", "bits", "expected"), [(1, 2, 2), (8, 3, 3), (9, 3, 6), (64, 7, 56), (13, 8, 13)])
def test_bytes(size: int, bits: int, expected: int) -> None:
    assert packed_bytes(size, bits) == expected


@pytest.mark.parametrize("bits", range(1, 8))
def test_close_planes_hold_neighbours(bits: int) -> None:
    """Bytes that stand for all their bits in order are the same elements again, in rows of their own."""
    index = np.random.default_rng(bits).integers(0, 2**bits, (5, 24))
    total, shift = np.zeros((5, 3, 2, 2, 2), int), bits
    for width, plane in zip(planes_of(bits), pack_close(index, bits), strict=True):
        shift -= width
        assert plane.shape == (5, 3, *halves(width))
        parts = np.arange(256).reshape(-1, 1) >> np.arange(0, 8, width) & (2**width - 1)
        total |= parts.reshape(256, *halves(8 // width))[plane] << shift
    np.testing.assert_array_equal(total.reshape(index.shape), index)


def test_the_layout_of_close_planes() -> None:
    (plane,) = pack_close(np.array([0, 1, 2, 3, 3, 2, 1, 0]), 2)
    assert plane.tolist() == [[0 | 1 << 2 | 2 << 4 | 3 << 6, 3 | 2 << 2 | 1 << 4 | 0 << 6]]
