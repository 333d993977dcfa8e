"""One kernel of a lowered graph on codes: what it reads and writes, with their scales."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.formats import UINT8, QuantParams
from ptqc.ir.nodes import constant


@dataclass(frozen=True)
class LoweredStep:
    """One kernel of a lowered graph.

    inputs, output: names of its codes, or of real values that the node gives. tensor: the value that the output holds,
    as the model calls it.
    """

    node: ir.Node
    inputs: tuple[str, ...]
    output: str
    tensor: str

    @property
    def kind(self) -> str:
        """Its operator."""
        return self.node.op_type

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.tensor}"


def codes_of(value: ir.Value | None) -> str | None:
    """Name of the activation codes behind a dequantized value."""
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    codes = producer.inputs[0]
    return str(codes.name) if codes is not None and codes.dtype == ir.DataType.UINT8 else None


def params_of(node: ir.Node) -> QuantParams:
    """Parameters of a QuantizeLinear or DequantizeLinear of an activation."""
    scale = constant(node.inputs[1])
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)  # the default
    assert scale is not None
    assert zero is not None
    return QuantParams(UINT8, float(scale), int(zero))


def input_params(step: LoweredStep, index: int = 0) -> QuantParams:
    """Parameters of a kernel's input codes."""
    producer = step.node.inputs[index].producer()  # type: ignore[union-attr]
    assert producer is not None
    return params_of(producer)


def has_float_output(step: LoweredStep) -> bool:
    """Whether a kernel gives real values."""
    return step.output == step.node.outputs[0].name


def output_params(step: LoweredStep) -> QuantParams:
    """Parameters of a kernel's output codes."""
    return params_of(step.node.outputs[0].consumers()[0])


def layer_constants(step: LoweredStep) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Weight codes, weight scales and bias codes of a layer."""
    weight = step.node.inputs[1].producer()  # type: ignore[union-attr]
    assert weight is not None
    codes, scale = constant(weight.inputs[0]), constant(weight.inputs[1])
    assert codes is not None
    assert scale is not None
    if len(step.node.inputs) < 3 or step.node.inputs[2] is None:
        return codes, scale, None
    bias = step.node.inputs[2].producer()
    assert bias is not None
    return codes, scale, constant(bias.inputs[0])
