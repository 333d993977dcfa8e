"""Bit planes: codes of 2 to 7 bits as planes of 4, 2 and 1 bits, each plane packed into whole bytes.

Byte i of a plane of p bits holds elements i, i + m, i + 2m, …, lowest bits first, where m is the plane's length in
bytes: unpacking is then one broadcast shift, one mask and one reshape. The highest bits of a code are in the widest
plane.
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
    return tuple(plane.ravel() for plane in pack_rows(flat[None], bits))


def pack_rows(index: np.ndarray, bits: int) -> tuple[np.ndarray, ...]:
    """uint8 planes (rows, 1, bytes) of indices (rows, n), each row for itself; n is a multiple of MULTIPLE.

    A row can be picked from them as it is stored. All together are unpacked as flat planes are: the shift is broadcast
    over the rows.
    """
    index = index.astype(np.uint8)
    planes, shift = [], bits
    for width in planes_of(bits):
        shift -= width
        parts = ((index >> shift) & (2**width - 1)).reshape(len(index), 8 // width, -1)
        offsets = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        planes.append(np.bitwise_or.reduce(parts << offsets, axis=1, keepdims=True).astype(np.uint8))
    return tuple(planes)


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
