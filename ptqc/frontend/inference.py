"""Models that compute something else in every run: with operators that draw, or exported for training."""

import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.ir.nodes import constant, input_of
from ptqc.ir.operators import Trait, named

DRAWING = named(Trait.RANDOM)


def check_inference(model: ir.Model) -> None:
    """Refuse operators that draw inside of graphs and functions, and Dropout that is switched on.

    What nodes of the main graph draw is recorded: see `ptqc.ir.recorded`.
    """
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in body.all_nodes() if node.domain == ""):
        name = node.outputs[0].name if node.outputs else ""
        if node.op_type in DRAWING and node.graph is not model.graph:
            raise ModelError(
                f"the {node.op_type} node that gives {name!r} draws other numbers in every run, inside a branch, a "
                "loop or a function, where they cannot be recorded: for a function, give the model that "
                "onnx.inliner.inline_local_functions makes; else have the numbers drawn before the branch or loop"
            )
        training = constant(input_of(node, 2)) if node.op_type == "Dropout" else None
        if training is not None and training.any():
            raise ModelError(
                f"the Dropout node that gives {name!r} is in training mode, so that every run differs; "
                "export the model in evaluation mode"
            )
