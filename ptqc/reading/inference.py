"""Models that compute something else in every run: with operators that draw, or exported for training."""

import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.graph.nodes import constant, input_of
from ptqc.operators import Trait, named

DRAWING = named(Trait.RANDOM)


def check_inference(model: ir.Model) -> None:
    """Refuse operators that draw, and Dropout that is switched on."""
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in body.all_nodes() if node.domain == ""):
        name = node.outputs[0].name if node.outputs else ""
        if node.op_type in DRAWING:
            raise ModelError(
                f"the {node.op_type} node that gives {name!r} draws other numbers in every run; "
                "make what it draws an input of the model"
            )
        training = constant(input_of(node, 2)) if node.op_type == "Dropout" else None
        if training is not None and training.any():
            raise ModelError(
                f"the Dropout node that gives {name!r} is in training mode, so that every run differs; "
                "export the model in evaluation mode"
            )
