"""Where the numbers of mma.sp.m16n8k64 of 8 bits lie, by the PTX ISA and its figures."""


def place_of_a(lane: int, i: int) -> tuple[int, int]:
    """ "Matrix fragments for sparse mma.m16n8k64", A: row, and which of the row's 32 kept numbers element i is.

    The ISA says of which eight neighbours (from `first` on) four elements are kept: of each four two.
    """
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    first = thread * 8 if i < 8 else thread * 8 + 32
    return row, first // 2 + (i & 3)


def place_of_b(lane: int, i: int) -> tuple[int, int]:
    """The same of B: row and column."""
    group, thread = lane >> 2, lane % 4
    return thread * 4 + (i & 3) + i // 4 * 16, group


def place_of_e(lane: int, bit: int) -> tuple[int, int]:
    """The same of the metadata, by its two figures: row, and the four neighbours whose places begin at a bit.

    Columns 0 to 31 of a row are with the first or second thread of a group, columns 32 to 63 with the others.
    """
    group, thread = lane >> 2, lane % 4
    return group + 8 * (thread & 1), thread // 2 * 8 + bit // 4
