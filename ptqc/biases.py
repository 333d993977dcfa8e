"""Integer biases: int32 codes at the accumulator's scale s_x · s_w, coarse enough for 16 bits where possible."""

import numpy as np

from ptqc.errors import PassError
from ptqc.formats import QuantParams
from ptqc.formats.scales import powers_beside

# Rounding a bias to this share of an output step is lost in the output's own rounding.
NEGLIGIBLE = 1 / 8
INT16_REACH = 2**15 - 1
INT32_REACH = 2**30  # leaves the accumulator the other half of int32


def accumulator_scale(x: QuantParams, weight_scale: np.ndarray) -> np.ndarray:
    """s_x · s_w per channel in float32."""
    return np.asarray(np.float32(x.scale) * weight_scale.astype(np.float32), np.float32)


def usable_scale(weight_scale: np.ndarray, bias: np.ndarray, x: QuantParams) -> np.ndarray:
    """Weight scales large enough for every bias to fit int32 (only channels whose weights hardly matter change).

    Those that become larger become powers of two, as all others may be.
    """
    smallest = np.asarray(np.abs(bias) / (np.float32(x.scale) * INT32_REACH), np.float32)
    return np.where(weight_scale < smallest, powers_beside(smallest)[1], weight_scale)


def bias_codes(bias: np.ndarray, scale: np.ndarray, step: float | None) -> np.ndarray:
    """int32 codes of a bias at `scale`: multiples of the smallest 2^k for which all fit 16 bits, if that is harmless.

    step: the output's quantization step, or None for a float output (then no bit is given up).
    """
    exact = bias.astype(np.float64) / scale.astype(np.float64)
    largest = float(np.abs(exact).max(initial=0.0))
    if largest > 2 * INT32_REACH - 1:
        raise PassError(f"a bias of {largest:.3g} accumulator steps does not fit int32")
    shift = max(0, int(np.ceil(np.log2(max(largest, 1.0) / INT16_REACH))))
    coarse = 2.0**shift
    if step is None or float((coarse * scale).max()) > NEGLIGIBLE * step:
        coarse = 1.0
    return np.asarray(np.rint(exact / coarse) * coarse, np.int32)
