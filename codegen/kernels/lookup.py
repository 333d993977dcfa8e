"""Tables of 256 codes, looked up for a whole vector at once by the processor's permutations of bytes."""

from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import DOT, Isa
from ptqc.codegen.kernels.kernel import fill, span, vector

CODES = 256
# A table in rows of as many codes as a part of a vector holds.
ROW = 16
# Picking gives 0 for places of 128 and more: added with saturation, this leaves the codes of one row below that.
BEYOND = 0x70


def arranged(isa: Isa, entries: np.ndarray) -> np.ndarray:
    """The table as `look_up` reads it: where bytes are picked within parts, each row once for every part."""
    entries = entries.astype(np.uint8)
    if isa.permute or not isa.pick:
        return entries
    parts = isa.lanes * DOT // ROW
    return np.repeat(entries.reshape(-1, 1, ROW), parts, axis=1).reshape(-1)


def look_up(isa: Isa, table: Any, codes: Any, count: int) -> Any:
    """The entries of `count` codes; where bytes can be permuted, of a whole vector of them."""
    if isa.permute:
        return _permuted(isa, table, codes)
    if isa.pick:
        return _picked(isa, table, codes)
    return table[T.Cast(vector("int32", count), codes)]


def _permuted(isa: Isa, table: Any, codes: Any) -> Any:
    """Look up codes in two vectors of the table at a time; the code's higher bits choose among what was found."""
    wide = DOT * isa.lanes
    parts = [table[span(start, wide)] for start in range(0, CODES, wide)]
    found = [isa.permute_bytes(low, codes, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    reach = 2 * wide
    while len(found) > 1:
        within = T.bitwise_and(codes, fill(T.uint8(2 * reach - 1), wide))
        is_upper = within >= fill(T.uint8(reach), wide)
        found = [T.Select(is_upper, high, low) for low, high in zip(found[::2], found[1::2], strict=True)]
        reach *= 2
    return found[0]


def _picked(isa: Isa, table: Any, codes: Any) -> Any:
    """Row by row: what a row does not hold is 0 there."""
    wide = DOT * isa.lanes
    total = None
    for row in range(CODES // ROW):
        within = T.bitwise_xor(codes, fill(T.uint8(row * ROW), wide))
        places = T.call_llvm_pure_intrin(vector("uint8", wide), "llvm.uadd.sat", within, fill(T.uint8(BEYOND), wide))
        found = isa.pick_bytes(table[span(row * wide, wide)], places)
        total = found if total is None else T.bitwise_or(total, found)
    return total
