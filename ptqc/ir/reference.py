"""What the integer kernels of a lowered graph must give, computed by their references from given input codes."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ptqc.ir.lowered import Lowered
from ptqc.ir.operators import Trait, absorbs, data_inputs, known
from ptqc.ir.operators.base import LoweredStep, codes_of

Values = Mapping[str, np.ndarray]


def steps(lowered: Lowered) -> Iterator[LoweredStep]:
    """The kernels that read codes and have a reference, in execution order."""
    tensors = {codes: tensor for tensor, codes in lowered.codes.items()}
    for node in lowered.model.graph:
        result = known(node)
        if (
            result is None
            or result.reference is None
            or (Trait.LAYER in result.traits and not has_codes(node, lowered))
        ):
            continue
        inputs = [codes_of(value) for value in data_inputs(node)]
        output = _quantized(node)
        if output is None and Trait.FLOAT_OUTPUT in result.traits and absorbs(node) is None:
            output = str(node.outputs[0].name)
        if output is not None and all(name is not None for name in inputs):
            yield LoweredStep(node, tuple(str(name) for name in inputs), output, tensors.get(output, output))


def bounds(step: LoweredStep, values: Values) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that a kernel may give for input codes by name: the same, but for a sigmoid."""
    operator = known(step.node)
    assert operator is not None
    assert operator.reference is not None
    result = operator.reference(step, [values[name] for name in step.inputs])
    return result if isinstance(result, tuple) else (result, result)


def has_codes(layer: ir.Node, lowered: Lowered) -> bool:
    """Whether a layer's weight or bias is codes: it computes on integers."""
    return any(value is not None and value.name in lowered.layer_constants for value in layer.inputs)


def _quantized(node: ir.Node) -> str | None:
    """Name of the codes that the node's output is rounded to, if that is all that happens to it."""
    consumers = node.outputs[0].consumers()
    if len(consumers) != 1 or consumers[0].op_type != "QuantizeLinear" or node.outputs[0].is_graph_output():
        return None
    return str(consumers[0].outputs[0].name)
