"""The one lowered graph, as passes hand it to the code generators."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ptqc.formats import FloatActivation, Format

# Names of the intermediate values between what is stored of a weight and the weight.
STEPS = ("step0", "step1", "step2", "step3")
# What stands behind the mark in names of values that only the lowered graph has.
PARTS = ("codes", "real", "float", "cast", "bias", "bias_codes", "weight", "scale", "values", *STEPS)


@dataclass(frozen=True)
class Lowered:
    """The quantized graph and what it says about itself.

    formats: name of an initializer of weight codes -> its storage format. integer: names of the original nodes that the
    plan puts on integer kernels -> their operator. codes: quantized tensor, or a node's output in front of an
    activation that runs on codes -> name of its codes. layer_constants: dequantized weight of each integer layer -> its
    dequantized bias. weights: real value of a packed weight -> the integer layer that it is made for, or the weight
    where it is made once. cast: tensors that are rounded to real numbers of fewer digits -> to which. mark: between a
    name of the model and what the graph says of it. tied: by the initializer of a layer's codes that of the table with
    the same, and the other way round; each has them in its own order.
    """

    model: ir.Model
    formats: Mapping[str, Format]
    integer: Mapping[str, str]
    codes: Mapping[str, str]
    layer_constants: Mapping[str, str | None]
    weights: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, FloatActivation] = field(default_factory=dict)
    mark: str = "/"
    tied: Mapping[str, str] = field(default_factory=dict)

    def before_rounding(self, output: str) -> str:
        """Name of what is rounded to give an output of the graph that is quantized."""
        return f"{output}{self.mark}float"

    def own_name(self, value: str) -> str:
        """The model's name of a value, which stands for several here: its codes, what they mean, and so on."""
        return own_name(value, self.mark)


def own_name(value: str, mark: str) -> str:
    """The model's name of a value of a lowered graph."""
    name, result, part = value.rpartition(mark)
    return name if result and part in PARTS else value
