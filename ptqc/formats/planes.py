"""Bit planes: codes of 2 to 7 bits as planes of 4, 2 and 1 bits, each plane packed into whole bytes.

Byte i of a plane of p bits holds elements i, i + m, i + 2m, …, lowest bits first, where m is the plane's length in
bytes: unpacking is then one broadcast shift, one mask and one reshape. The highest bits of a code are in the widest
plane. Of close planes (`pack_close`) it holds neighbours: a byte can be looked up whole, and rows have bytes of their
own. Single bits (`pack_bits`) are one array whatever the width, so that one function unpacks all widths.
"""

import numpy as np

PLANES = (4, 2, 1)
# Elements are padded to a multiple of this, so that planes of all widths have the same padded length.
MULTIPLE = 8


def planes_of(bits: int) -> tuple[int, ...]:
    """Widths of the planes of a code of `bits` bits; () for 8 bits, which are stored as they are."""
    return tuple(p for p in PLANES if bits & p) if bits < 8 else ()


def pack(index: np.ndarray, bits: int) -> tuple[np.ndarray, ...]:
    """uint8 planes of indices 0 … 2^bits − 1 (any shape)."""
    flat = index.astype(np.uint8).ravel()
    flat = np.pad(flat, (0, -flat.size % MULTIPLE))
    planes, shift = [], bits
    for width in planes_of(bits):
        shift -= width
        parts = ((flat >> shift) & (2**width - 1)).reshape(8 // width, -1)
        offsets = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        planes.append(np.bitwise_or.reduce(parts << offsets, axis=0).astype(np.uint8))
    return tuple(planes)


def pack_close(index: np.ndarray, bits: int) -> tuple[np.ndarray, ...]:
    """The same of indices (…, n) with neighbours in one byte, lowest bits first; n is a multiple of MULTIPLE.

    A plane of p bits has the shape (…, n / 8, 2, …) with as many 2 as make p. What each bit combination of a byte
    stands for has as many 2 as make 8 / p, so that all planes together have the shape (…, n / 8, 2, 2, 2).
    """
    planes, shift = [], bits
    for width in planes_of(bits):
        shift -= width
        parts = ((index.astype(np.uint8) >> shift) & (2**width - 1)).reshape(*index.shape[:-1], -1, 8 // width)
        joined = np.bitwise_or.reduce(parts << np.arange(0, 8, width, dtype=np.uint8), axis=-1).astype(np.uint8)
        planes.append(joined.reshape(*index.shape[:-1], -1, *halves(width)))
    return tuple(planes)


def pack_bits(index: np.ndarray, bits: int) -> np.ndarray:
    """uint8 (bits, 1, ⌈n / 8⌉): row i has bit i of n indices (any shape), apart as in planes."""
    flat = index.astype(np.uint8).ravel()
    return far_bits((flat >> np.arange(bits, dtype=np.uint8)[:, None]) & 1)[:, None]


def far_bits(bits: np.ndarray) -> np.ndarray:
    """Bytes (…, m = ⌈n / 8⌉) of single bits (…, n): byte i holds bits i, i + m, i + 2m, …, the lowest first.

    ONNX Runtime takes single bits out of such bytes in long rows, a quarter of the time that neighbours take.
    """
    padded = np.pad(bits, [*((0, 0),) * (bits.ndim - 1), (0, -bits.shape[-1] % MULTIPLE)])
    rows = padded.reshape(*bits.shape[:-1], MULTIPLE, -1)
    return np.packbits(rows, axis=-2, bitorder="little")[..., 0, :]


def halves(count: int) -> tuple[int, ...]:
    """Axes of 2 that hold so many numbers: a power of two."""
    return (2,) * (count.bit_length() - 1)


def unpack(planes: tuple[np.ndarray, ...], bits: int, size: int) -> np.ndarray:
    """Indices (size,) uint8: inverse of `pack`, the oracle for the functions in the file."""
    total, shift = np.zeros(0, np.uint8), bits
    for width, plane in zip(planes_of(bits), planes, strict=True):
        shift -= width
        offsets = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        part = ((plane[None] >> offsets) & (2**width - 1)).ravel() << shift
        total = part if not total.size else total | part
    return total[:size].astype(np.uint8)


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of all planes of `size` codes."""
    padded = size + -size % MULTIPLE
    return padded * bits // 8 if bits < 8 else size
