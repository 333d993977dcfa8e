"""An operator: HardSwish on codes, by a table in the file, as ONNX Runtime has no kernel for it.

ptqc leaves it in float, where ONNX Runtime is faster.
"""

import numpy as np

from ptqc.ir.operators.functions import looked_up


def hard_swish(x: np.ndarray) -> np.ndarray:
    """ONNX's definition: x · max(0, min(1, x / 6 + 1 / 2))."""
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1))


HARD_SWISH = looked_up("HardSwish", hard_swish)
