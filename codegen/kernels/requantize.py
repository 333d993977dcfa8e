"""From accumulators to codes: four vectors of real numbers at once, rounded and saturated by the processor's packs.

Packs work within parts of 128 bits, so what they leave of four vectors is their 32-bit pieces transposed, (part,
vector); one permutation puts it right.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.kernel import fill, span, to_codes, vector

# Vectors of 32-bit numbers that become one vector of codes.
PACKED = 4
PART = 4
# What the conversion to int32 takes for certain.
LARGEST = 2.0**30
LARGEST_CODE = 255


def fits(weights: np.ndarray, bias: np.ndarray, factor: np.ndarray) -> bool:
    """Whether no accumulator of these layers can leave int32 once it is scaled; weights, bias, factor: by output."""
    largest = np.abs(weights.reshape(len(weights), -1).astype(np.float64)).sum(1) * LARGEST_CODE
    return bool(((largest + np.abs(bias.astype(np.float64))) * np.abs(factor) < LARGEST).all())


def narrow(
    isa: Isa, values: Sequence[Any], zero_point: Any, out: Any, *, fitting: bool, transposed: bool = False
) -> None:
    """Store the codes clip(rint(value) + zero_point) of up to PACKED float32 vectors in a local buffer.

    zero_point: float32. fitting: every value is within int32. out: room for PACKED vectors. transposed: the vectors
    hold what packs put right (only where there are packs).
    """
    if isa.packs is None:
        for place, value in enumerate(values):
            codes = to_codes(T.nearbyint(value) + fill(zero_point, isa.lanes), isa.lanes)
            T.buffer_store(out, codes, [span(place * isa.lanes, isa.lanes)])
        return
    four = [value if fitting else _limited(value, isa.lanes) for value in values]
    codes = _packed(isa, [*four, *[four[-1]] * (PACKED - len(four))], zero_point)
    T.buffer_store(out, codes if transposed else _ordered(isa, codes), [span(0, PACKED * isa.lanes)])


def rounded(isa: Isa, value: Any, zero_point: Any) -> Any:
    """The codes of a float32 vector, as float32."""
    lowest, highest = (fill(T.float32(code), isa.lanes) for code in (0, LARGEST_CODE))
    return T.min(T.max(T.nearbyint(value) + fill(zero_point, isa.lanes), lowest), highest)


def _limited(value: Any, lanes: int) -> Any:
    most = T.float32(LARGEST)
    return T.min(T.max(value, fill(-most, lanes)), fill(most, lanes))


def _packed(isa: Isa, values: Sequence[Any], zero_point: Any) -> Any:
    """Codes of four vectors, part by part."""
    whole = [isa.round(value) for value in values]
    words, zero = vector("int16", 2 * isa.lanes), fill(T.Cast("int16", zero_point), 2 * isa.lanes)
    pairs = [isa.saturate_words(whole[i], whole[i + 1]) for i in (0, 2)]
    return isa.saturate_codes(*(T.call_llvm_pure_intrin(words, "llvm.sadd.sat", pair, zero) for pair in pairs))


def _ordered(isa: Isa, codes: Any) -> Any:
    """Codes of four vectors one after the other."""
    pieces, parts = T.reinterpret(vector("int32", isa.lanes), codes), isa.lanes // PART
    order = [part * PACKED + place for place in range(PACKED) for part in range(parts)]
    return T.reinterpret(vector("uint8", PACKED * isa.lanes), T.Shuffle([pieces], [T.int32(i) for i in order]))
