"""Inputs that say how other values are shaped: like all sizes, they are fixed by the calibration samples.

Axes of a sum, places of a slice, sizes and the like may be inputs of a model. A library is built for what they were in
all samples, and takes nothing else.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.operators import known

# A vector of more numbers is no list of axes or sizes.
LONGEST = 64


def fixed_inputs(model: ir.Model, samples: Sequence[Feeds]) -> dict[str, np.ndarray]:
    """Inputs that are parameters somewhere, and the same in all samples."""
    found = {}
    for value in model.graph.inputs:
        first = samples[0][str(value.name)]
        same = all(np.array_equal(feeds[str(value.name)], first) for feeds in samples)
        if same and first.size <= LONGEST and first.ndim <= 1 and _is_parameter(value):
            found[str(value.name)] = first
    return found


def _is_parameter(value: ir.Value) -> bool:
    """Whether an operator reads it as one."""
    return any((found := known(use.node)) is not None and use.idx in found.parameters for use in value.uses())
