"""What rounding alone makes of a model's outputs: the yardstick for passes that compute the same in another order.

Every trained constant is moved by one unit in the last place, up or down as a coin says. Deep networks make
many times as much of it as shallow ones, and no share of an output's size fits both.
"""

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import add_constant
from ptqc.ir.nodes import constant
from ptqc.ir.operators import Trait, named

WEIGHTED = named(Trait.WEIGHTED)


def rounded_otherwise(model: ir.Model) -> ir.Model:
    """A copy of a model whose float32 weights are their neighbours."""
    copy, random = model.clone(), np.random.default_rng(0)
    moved: dict[ir.Value, ir.Value] = {}
    for node in list(copy.graph):
        for place, value in enumerate(node.inputs) if node.op_type in WEIGHTED else ():
            array = constant(value)
            if value is None or array is None or array.dtype != np.float32:
                continue
            if value not in moved:
                ends = np.where(random.random(array.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf))
                moved[value] = add_constant(copy, np.nextafter(array, ends), f"{value.name}_moved")
            node.replace_input_with(place, moved[value])
    return copy
