"""Applying a pass and holding it to its effect.

The pipeline of rewrites compares outputs; that a lowered graph gives the integers of the reference is checked on the
delivered file, kernel by kernel.
"""

from typing import Protocol, TypeVar

import onnx_ir as ir

from ptqc.errors import PassError
from ptqc.ir.quantized_weight import TunedNumbers
from ptqc.passes.base import Pass, Result
from ptqc.passes.fingerprint import fingerprint

# Of a loss: it is summed up in another order.
ROUNDING = 1e-9


class WithModel(Protocol):
    """What knows the float model."""

    @property
    def model(self) -> ir.Model:
        """The float model."""
        ...


Given = TypeVar("Given", bound=WithModel)
Made = TypeVar("Made")


def applied(step: Pass[Given, Made], given: Given) -> Result[Made]:
    """What a pass that leaves the float model alone makes of what it is given.

    Raises PassError where it changed the model, or gives numbers that are worse by its own measure.
    """
    before = fingerprint(given.model)
    result = step.apply(given)
    if fingerprint(given.model) != before:
        raise PassError(f"{step.name} changed the model, which a pass that is to {step.effect.value} must not")
    if isinstance(result.made, TunedNumbers):
        check_tuned(step.name, result.made)
    return result


def check_tuned(name: str, tuned: TunedNumbers) -> None:
    """Raises PassError where numbers are worse than those that were there, by the measure of the pass of this name."""
    before, after = tuned.losses
    if after > before + ROUNDING * abs(before):
        raise PassError(f"{name} raised its own held-back loss from {before:.6g} to {after:.6g}")
