"""How far the outputs of a quantized model are from the float outputs, without labels.

Every float output is of a kind, which is one class in one file: how it is recognized, its loss with the formula, its
unit, and what the user is told. `recognition` chooses the kinds, `total` sums the losses.
"""

from ptqc.losses.base import NAT, RELATIVE, UNITS, OutputKind
from ptqc.losses.recognition import (
    AUTO,
    NAMES,
    Kinds,
    Outputs,
    check,
    check_finite,
    flawed_values,
    from_json,
    recognize,
    to_json,
)
from ptqc.losses.total import OutputLoss, aligned, comparable

__all__ = [
    "AUTO",
    "NAMES",
    "NAT",
    "RELATIVE",
    "UNITS",
    "Kinds",
    "OutputKind",
    "OutputLoss",
    "Outputs",
    "aligned",
    "check",
    "check_finite",
    "comparable",
    "flawed_values",
    "from_json",
    "recognize",
    "to_json",
]
