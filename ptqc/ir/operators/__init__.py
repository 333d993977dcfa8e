"""What ptqc knows of each operator, one object each, in a file for each family; every table follows from them.

To add what is known of an operator, write it into the file of its family.
"""

from ptqc.ir.operators.base import Operator, Trait, clip_bounds
from ptqc.ir.operators.registry import EVERY, OPERATORS, known, named
from ptqc.ir.operators.rules import absorbs, data_inputs, has_own_scale, is_float, keeps_codes, quantized_output

__all__ = [
    "EVERY",
    "OPERATORS",
    "Operator",
    "Trait",
    "absorbs",
    "clip_bounds",
    "data_inputs",
    "has_own_scale",
    "is_float",
    "keeps_codes",
    "known",
    "named",
    "quantized_output",
]
