"""Rounding by GPTQ in several formats at once, for the tests."""

from collections.abc import Sequence

import numpy as np

from ptqc.formats import Format, Scaled
from ptqc.passes.quantize import gptq


def solve(
    matrix: np.ndarray, second: np.ndarray, forms: Sequence[Scaled], rounds: int = 0
) -> dict[Format, gptq.Rounded]:
    """Codes and scales in every format, with rounds of coordinate descent for all of them."""
    chosen = gptq.grids_for(matrix, second, forms)
    targets = [gptq.RoundingTarget(matrix, chosen[form], rounds) for form in forms]
    return dict(zip(forms, gptq.round_all(targets, second), strict=True))
