"""Real numbers of 16 bits, the upper half of a float32: as many exponents, 8 binary digits."""

import ml_dtypes
import numpy as np


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16, halves to even; what is no number stays none."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x.astype(ml_dtypes.bfloat16).astype(np.float32))
