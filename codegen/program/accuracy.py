"""How near a kernel's real values come to ONNX Runtime's, as the kernel itself says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """What the real values of a kernel are held to; with nothing said, a share of the largest of them.

    is_exact: it rounds nothing, or as ONNX Runtime does. adds_inputs, adds_products: it adds up its inputs, or products
    of them; terms may cancel, so what is left is measured by what was added. at_one: absolute error of functions that
    are ½ or 1 and something, whose small results carry the rounding of that. to_bfloat16: whether its last step rounds
    to bfloat16. of_chip: a share more, where a chip sums products in fewer digits than float32 has.
    """

    is_exact: bool = False
    adds_inputs: bool = False
    adds_products: bool = False
    at_one: float = 0.0
    to_bfloat16: bool = False
    of_chip: float = 0.0


USUAL = Accuracy()
EXACT = Accuracy(is_exact=True)
SUM_OF_INPUTS = Accuracy(adds_inputs=True)
SUM_OF_PRODUCTS = Accuracy(adds_products=True)
