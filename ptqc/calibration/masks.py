"""Whether an input says which positions are attended to, as the graph shows it."""

import onnx_ir as ir

from ptqc.ir.operators import EVERY, Trait, known, named

SOFTMAXES = named(Trait.SOFTMAX)
STOPPING = named(Trait.LAYER, Trait.MEASURES)
# Inputs of fused attention, by place, that say what is attended to.
MASKED = {(operator.domain, operator.name): operator.masks for operator in EVERY if operator.masks}


def is_mask(value: ir.Value) -> bool:
    """Whether an input reaches a softmax, or the mask of an attention, and meets no layer."""
    reached, waiting = set[int](), [value]
    while waiting:
        for node, place in waiting.pop().uses():
            if node.graph is not value.graph or _is_parameter(node, place):  # a branch need not be taken
                continue
            if _is_masked(node, place):
                return True
            if node.op_type not in STOPPING:
                new = [output for output in node.outputs if id(output) not in reached]
                reached.update(map(id, new))
                waiting += new
    return False


def _is_masked(node: ir.Node, place: int) -> bool:
    softmax = not node.domain and node.op_type in SOFTMAXES
    return softmax or place in MASKED.get((node.domain, node.op_type), ())


def _is_parameter(node: ir.Node, place: int) -> bool:
    """Whether the operator reads it as a shape, as axes or as places of values."""
    found = known(node)
    return found is not None and (place in found.parameters or (found.name == "Gather" and place == 1))
