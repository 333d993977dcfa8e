"""Models exported for training: what they compute differs from run to run."""

import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.nodes import constant, input_of, nodes_of


def check_inference(model: ir.Model) -> None:
    """Refuse Dropout that is switched on."""
    for node in nodes_of(model, "Dropout"):
        training = constant(input_of(node, 2))
        if training is not None and training.any():
            raise ModelError(
                f"the Dropout node that gives {node.outputs[0].name!r} is in training mode, so that every run differs; "
                "export the model in evaluation mode"
            )
