"""Integer biases: int32 codes at the accumulator's scale s_x · s_w, from 8 or 16 bits of a step for the whole layer.

b ≈ B · u with a power of two u, and a kernel adds rint(B u / (s_x s_w)). Channels whose weights are small have large
codes; a step for all of them lets all fit few bits, and is what the output's own step is measured against.
"""

import numpy as np

from ptqc.errors import PassError
from ptqc.formats import Format, QuantParams, scales

# Leaves the accumulator the other half of int32; rounding at most doubles a bias.
INT32_REACH = 2**29
# Bits of biases, and up to how many bits of a weight the fewer are taken: rounding a bias then may do to the output
# what the output's own rounding does, which is little beside what rounding these weights does.
FEW, MANY = 8, 16
COARSE_WEIGHTS = 4.0


def accumulator_scale(x: QuantParams, weight_scale: np.ndarray) -> np.ndarray:
    """s_x · s_w per channel in float32."""
    return np.asarray(np.float32(x.scale) * weight_scale.astype(np.float32), np.float32)


def usable_scale(weight_scale: np.ndarray, bias: np.ndarray, x: QuantParams) -> np.ndarray:
    """Weight scales large enough for every bias to fit int32 (only channels whose weights hardly matter change)."""
    smallest = np.abs(bias) / (np.float32(x.scale) * INT32_REACH)
    return scales.raised(weight_scale, smallest.astype(np.float32))


def bits_for(form: Format, bias: np.ndarray, y: QuantParams | None) -> int:
    """Bits of the biases of a layer with weights of this format. y: of its output; None where that is float."""
    if y is None or form.bits_per_weight > COARSE_WEIGHTS:
        return MANY
    return FEW if stored_bias(bias, FEW)[1] <= y.scale else MANY


def stored_bias(bias: np.ndarray, bits: int) -> tuple[np.ndarray, np.float32]:
    """(B, u): the bias in the smallest steps with which all of it fits so many bits."""
    largest, reach = float(np.abs(bias).max(initial=0.0)), 2 ** (bits - 1) - 1
    unit = 2.0 ** np.ceil(np.log2(max(largest, 2.0**-100) / reach))
    return np.rint(bias.astype(np.float64) / unit).astype(np.int16), np.float32(unit)


def codes_of(stored: np.ndarray, unit: np.float32, scale: np.ndarray) -> np.ndarray:
    """int32 codes at `scale` of what is stored, as nodes of float32 compute them."""
    return np.rint(stored.astype(np.float32) * unit / scale.astype(np.float32)).astype(np.int32)


def bias_codes(bias: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """int32 codes at `scale` of a bias that is stored in so many bits. Raises PassError where they do not fit int32."""
    largest = float(np.abs(bias.astype(np.float64) / scale.astype(np.float64)).max(initial=0.0))
    if largest > 4 * INT32_REACH - 1:
        raise PassError(f"a bias of {largest:.3g} accumulator steps does not fit int32")
    return codes_of(*stored_bias(bias, bits), scale)


def found_bias(codes: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.float32] | None:
    """The fewest bits and their step that give these codes; None where codes are other than `bias_codes` makes them."""
    real = codes * scale.astype(np.float64)
    for bits, dtype in ((FEW, np.int8), (MANY, np.int16)):
        _, near = stored_bias(real, bits)
        for unit in (near, near * np.float32(2), near / np.float32(2)):  # codes are rounded, which may pass a power
            stored = np.clip(np.rint(real / unit), 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
            if np.array_equal(codes_of(stored, unit, scale), codes):
                return stored.astype(dtype), unit
    return None
