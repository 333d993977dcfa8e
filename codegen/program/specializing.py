"""What sizes decide before a library is built: branches of If, and how many steps a recurrent node has.

Exporters write an If where a program asks for a size, such as whether an axis of one element is to be taken away.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.program.batching import Batching, Seen
from ptqc.codegen.program.folding import fold
from ptqc.codegen.program.inputs import fixed_inputs
from ptqc.codegen.program.recurrent import is_recurrent
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.nodes import inline_known_branches


def specialized(model: ir.Model, samples: Sequence[Feeds], batching: Batching, *, unrolls: bool = False) -> ir.Model:
    """The model as it is for samples of these sizes; the same one where sizes vary, or there is nothing to decide.

    unrolls: whether steps of recurrent nodes are to be written out.
    """
    if batching.varies or not any(node.op_type == "If" or (unrolls and is_recurrent(node)) for node in model.graph):
        return model
    result, fixed = model.clone(), fixed_inputs(model, samples)
    while True:
        seen = Seen.of(result, samples[0], fixed)
        constants = fold(result, seen, batching.batch).constants

        def known(value: ir.Value | None, constants: dict[str, np.ndarray] = constants) -> np.ndarray | None:
            return constants.get(str(value.name)) if value is not None else None

        if not inline_known_branches(result, known):
            break
    for node in filter(is_recurrent, result.graph):
        operand = node.inputs[0]
        assert operand is not None
        operand.shape = ir.Shape(seen.shapes[str(operand.name)])
    return result
