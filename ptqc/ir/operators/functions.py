"""Functions of one tensor, element by element or along an axis."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.nodes import number
from ptqc.ir.operators.base import (
    LOOKED_UP,
    Constants,
    LoweredStep,
    Operator,
    Trait,
    alike,
    clip_bounds,
    input_params,
    operator,
    output_params,
)


def _leaky_relu(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return integer.leaky_relu(inputs[0], input_params(step), output_params(step), number(step.node, "alpha", 0.01))


def _sigmoid(step: LoweredStep, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return integer.sigmoid(inputs[0], input_params(step), output_params(step))


def _has_bounds(node: ir.Node) -> bool:
    return clip_bounds(node) is not None


def _input(_constants: Constants) -> tuple[int, ...]:
    return (0,)


def _base_of_root(constants: Constants) -> tuple[int, ...]:
    exponent = constants[1]
    return (0,) if exponent is not None and bool((exponent < 1).any()) else ()


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0, x))


def _mish(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * np.tanh(_softplus(x)))


def looked_up(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Operator:
    """A function of each element, which gets a table in the file: where ONNX Runtime takes long for it in float."""

    def reference(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
        table = integer.of_each_code(function, input_params(step), output_params(step))
        return np.asarray(table[inputs[0]])

    return operator(name, Trait.POINTWISE, kernels=LOOKED_UP, reference=reference)


PLAIN = ("Celu", "Cos", "Elu", "Erf", "Exp", "Gelu", "HardSwish", "Selu", "Sin", "Softsign", "Tanh")

OPERATORS = (
    looked_up("Mish", _mish),
    looked_up("Softplus", _softplus),
    operator(
        "LeakyRelu", Trait.POINTWISE, Trait.HOMOGENEOUS, kernels=frozenset(["QLinearLeakyRelu"]), reference=_leaky_relu
    ),
    operator("Sigmoid", Trait.SIGMOID, Trait.POINTWISE, kernels=frozenset(["QLinearSigmoid"]), reference=_sigmoid),
    operator("HardSigmoid", Trait.SIGMOID, Trait.POINTWISE),
    operator("Relu", Trait.CLIPS, Trait.POINTWISE, Trait.HOMOGENEOUS, moves=_has_bounds),
    operator("Clip", Trait.CLIPS, Trait.KEEPS_SCORES, Trait.POINTWISE, moves=_has_bounds),
    operator("Softmax", Trait.SOFTMAX),
    operator("LogSoftmax", Trait.SOFTMAX, Trait.LINEAR),
    operator("Cast", Trait.COPIES, Trait.SPELLED_OUT, Trait.POINTWISE),
    *alike(["Identity", "Dropout"], Trait.COPIES, Trait.POINTWISE, Trait.HOMOGENEOUS),
    operator("Log", Trait.LOGARITHM, Trait.NOT_NEGATIVE, Trait.POINTWISE, steep=_input),
    operator("Sqrt", Trait.NOT_NEGATIVE, Trait.POINTWISE, steep=_input),
    operator("Reciprocal", Trait.POINTWISE, steep=_input),
    operator("Pow", steep=_base_of_root),
    *alike(PLAIN, Trait.POINTWISE),
    *alike(["Ceil", "Floor", "Round"], Trait.ROUNDS),
    *alike(["Abs", "Neg"], Trait.POINTWISE, Trait.HOMOGENEOUS),
    operator("PRelu", Trait.HOMOGENEOUS),
)
