"""Operators that move, select, repeat and join values, and those that make values from sizes."""

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import constant
from ptqc.ir.operators.base import Trait, alike, operator

SIZES = (1,)


def _always(_node: ir.Node) -> bool:
    return True


def _fills_with_zeros(node: ir.Node) -> bool:
    value = constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
    return value is not None and not np.any(value)


# DepthToSpace and SpaceToDepth have no kernel for uint8 before ONNX Runtime 1.20, and are not among those that move.
OPERATORS = (
    *alike(["Reshape", "Squeeze", "Unsqueeze"], Trait.RESHAPES, moves=_always, parameters=SIZES),
    operator("Flatten", Trait.RESHAPES, moves=_always),
    operator("Concat", Trait.LINEAR, moves=_always, operands=None),
    operator("Expand", Trait.PLANES, moves=_always, parameters=SIZES),
    operator("Gather", Trait.LOOKS_UP, moves=_always),
    *alike(["GatherElements", "GatherND"], Trait.LOOKS_UP),
    operator("Transpose", Trait.LINEAR, moves=_always),
    operator("ScatterND", Trait.KEEPS_SCORES),
    operator("Pad", Trait.PLANES, moves=_fills_with_zeros, parameters=(1, 3)),
    operator("Slice", moves=_always, parameters=(1, 2, 3, 4)),
    operator("Split", moves=_always, parameters=SIZES),
    *alike(["CenterCropPad", "Tile", "OneHot"], parameters=SIZES),
    operator("ConstantOfShape", parameters=(0,)),
    operator("DFT", parameters=(1, 2)),
    operator("Range", parameters=(0, 1, 2)),
    *alike(["Shape", "Size"], Trait.MEASURES),
)
