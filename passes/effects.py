"""Applying a pass and holding it to its effect.

The pipeline of rewrites compares outputs; that a lowered graph gives the integers of the reference is checked on the
delivered file, kernel by kernel.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import onnx_ir as ir

from ptqc.errors import PassError
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.base import Pass, Result

# What of a model a pass can change, to tell whether it did.


@dataclass(frozen=True, eq=False)
class _Same:
    """Wraps an object to compare by identity, and keeps it alive so that its identity stays its own."""

    held: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held


def fingerprint(model: ir.Model) -> list[object]:
    """What a pass can change, with tensors and attributes (never changed in place) by identity."""
    marks: list[object] = [dict(model.opset_imports), model.ir_version, list(model.functions)]
    for graph in model.graphs():
        marks.append([(name, _Same(value.const_value)) for name, value in graph.initializers.items()])
        marks.append([(value.name, value.dtype, str(value.shape)) for value in (*graph.inputs, *graph.outputs)])
    for node in model.graph.all_nodes():
        inputs = [value.name if value is not None else None for value in node.inputs]
        attributes = [(name, _Same(attribute)) for name, attribute in node.attributes.items()]
        marks.append((node.domain, node.op_type, inputs, [value.name for value in node.outputs], attributes))
    return marks


# Of a loss: it is summed up in another order.
ROUNDING = 1e-9


class WithModel(Protocol):
    """What knows the float model."""

    @property
    def model(self) -> ir.Model:
        """The float model."""
        ...


Input = TypeVar("Input", bound=WithModel)
Output = TypeVar("Output")


def applied(step: Pass[Input, Output], value: Input) -> Result[Output]:
    """Run a pass that leaves the float model alone.

    Raises PassError where it changed the model, or gives numbers that are worse by its own measure.
    """
    before = fingerprint(value.model)
    result = step.apply(value)
    if fingerprint(value.model) != before:
        raise PassError(f"{step.name} changed the model, which a pass that is to {step.effect.value} must not")
    if isinstance(result.output, QuantizedParameters):
        check_tuned(step.name, result.output)
    return result


def check_tuned(name: str, tuned: QuantizedParameters) -> None:
    """Raises PassError where numbers are worse than those that were there, by the measure of the pass of this name."""
    before, after = tuned.losses
    if after > before + ROUNDING * abs(before):
        raise PassError(f"{name} raised its own held-back loss from {before:.6g} to {after:.6g}")
