"""How near a kernel's real values come to ONNX Runtime's, as the kernel itself says."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Accuracy:
    """What the real values of a kernel are held to; with nothing said, a share of the largest of them.

    is_exact: it rounds nothing, or as ONNX Runtime does. adds_inputs, adds_products: it adds up its inputs, or products
    of them; terms may cancel, so what is left is measured by what was added. at_one: absolute error of functions that
    are ½ or 1 and something, whose small results carry the rounding of that. to_bfloat16: whether its last step rounds
    to bfloat16. of_chip: a share more, where a chip sums products in fewer digits than float32 has. axes, epsilon: of a
    normalization, whose rows along so many last axes lose their mean and are divided by √(variance + epsilon); gain:
    the largest factor behind that. The rounding of a mean counts as much as its row is enlarged.
    """

    is_exact: bool = False
    adds_inputs: bool = False
    adds_products: bool = False
    at_one: float = 0.0
    to_bfloat16: bool = False
    of_chip: float = 0.0
    axes: int = 0
    epsilon: float = 0.0
    gain: float = 1.0

    def enlarged(self, values: np.ndarray) -> np.ndarray:
        """How large a normalization's mean is beside the deviation, by element of what it reads, as it enlarges it."""
        rows = values.reshape(-1, math.prod(values.shape[-self.axes :])).astype(np.float64)
        largest = np.abs(rows).max(1, keepdims=True) / np.sqrt(rows.var(1, keepdims=True) + self.epsilon)
        return np.broadcast_to(self.gain * largest, rows.shape).reshape(values.shape)


USUAL = Accuracy()
EXACT = Accuracy(is_exact=True)
SUM_OF_INPUTS = Accuracy(adds_inputs=True)
SUM_OF_PRODUCTS = Accuracy(adds_products=True)
