"""Inputs that say how other values are shaped: like all sizes, they are settled by the calibration samples.

Axes of a sum, places of a slice, sizes and the like may be inputs of a model. A library is built for what they were in
all samples, and takes nothing else.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.execute.onnxruntime import Feeds

# Inputs of operators, by place, that say what shape the output has or along which axes it is computed.
PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
            *("ReduceProd", "ReduceSum", "ReduceSumSquare", "CenterCropPad", "CumProd", "CumSum", "Expand", "Reshape"),
            *("Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze"),
        ),
        (1,),
    ),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
# More numbers than any list of axes or sizes has.
LONGEST = 64


def settled(model: ir.Model, samples: Sequence[Feeds]) -> dict[str, np.ndarray]:
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
    return any(not use.node.domain and use.idx in PARAMETERS.get(use.node.op_type, ()) for use in value.uses())
