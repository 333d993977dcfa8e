"""Sums, products and the like of several tensors, element by element."""

from collections.abc import Sequence

import numpy as np

from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.operators.base import Constants, LoweredStep, Trait, input_params, operator, output_params


def _add(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return integer.add(inputs[0], input_params(step), inputs[1], input_params(step, 1), output_params(step))


def _mul(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return integer.mul(inputs[0], input_params(step), inputs[1], input_params(step, 1), output_params(step))


def _denominator(_constants: Constants) -> tuple[int, ...]:
    return (1,)


OPERATORS = (
    operator("Add", Trait.AFFINE, Trait.SUM, operands=None, kernels=frozenset(["QLinearAdd"]), reference=_add),
    operator("Mul", Trait.AFFINE, Trait.KEEPS_SCORES, operands=None, kernels=frozenset(["QLinearMul"]), reference=_mul),
    operator("Sub", Trait.AFFINE, operands=None),
    operator("Div", Trait.AFFINE, operands=None, steep=_denominator),
)
