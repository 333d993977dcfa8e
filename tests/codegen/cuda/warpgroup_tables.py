"""Where the numbers of wgmma.m64nNk32 of 8 bits lie, by the PTX ISA, its tables and its figures.

Threads are those of a warpgroup, 0 to 127; a warp of them has 16 rows.
"""

# By the swizzling mode of a descriptor: bytes between neighbouring rows of eight, and for each of these which piece of
# 16 bytes of the matrix lies at which place within so many bytes (figures "K major … swizzling").
WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
PIECES = {
    0: ["0"] * 8,
    1: ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"],
    2: ["0123", "0123", "1032", "1032", "2301", "2301", "3210", "3210"],
    3: ["01", "01", "01", "01", "10", "10", "10", "10"],
}


def place_of_a(thread: int, i: int) -> tuple[int, int]:
    """ "Register fragment layout for matrix A" of .m64nNk32: row and column of element i of 16."""
    warp, group, within = thread // 32, thread % 32 // 4, thread % 4
    row = 16 * warp + group + (8 if i // 4 % 2 else 0)
    return row, within * 4 + i % 4 + (16 if i >= 8 else 0)


def place_of_d(thread: int, i: int) -> tuple[int, int]:
    """ "Accumulator matrix D" of the same: row and column of register i of N / 2."""
    warp, group, within = thread // 32, thread % 32 // 4, thread % 4
    row = 16 * warp + group + (8 if i % 4 >= 2 else 0)
    return row, i // 4 * 8 + within * 2 + i % 2


def place_in_shared(mode: int, column: int, k: int, leading: int, stride: int) -> int:
    """Of element k of a column of B, K-major, in bytes from where a pattern begins.

    leading: bytes between pieces of 16, only without swizzling. stride: bytes from eight columns to the next eight.
    """
    width, piece = WIDTHS[mode], k // 16
    front = column // 8 * stride + column % 8 * width
    if mode == 0:
        return front + piece * leading + k % 16
    return front + PIECES[mode][column % 8].index(str(piece)) * 16 + k % 16


def descriptor(mode: int, leading: int, stride: int) -> int:
    """ "Matrix descriptor format", less the address where the matrix begins."""
    return mode << 62 | stride >> 4 << 32 | leading >> 4 << 16
