"""What makes codes of the sums of a layer."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Requantization:
    """rint((sum + bias) · factor) + zero_point, saturated; real values are (sum + bias) · factor.

    bias: int32 (outputs), with the input's zero point already in it. factor: float32 (outputs), s_x · s_w / s_y, or
    s_x · s_w for real values.
    """

    bias: np.ndarray
    factor: np.ndarray
    zero_point: int = 0
