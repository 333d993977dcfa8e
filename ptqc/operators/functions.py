"""Functions of one tensor, element by element or along an axis."""

from collections.abc import Sequence

import numpy as np

from ptqc import integer
from ptqc.graph.nodes import number
from ptqc.operators.base import Trait, alike, operator
from ptqc.operators.bounds import clip_bounds
from ptqc.operators.step import LoweredStep, input_params, output_params


def _leaky_relu(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return integer.leaky_relu(inputs[0], input_params(step), output_params(step), number(step.node, "alpha", 0.01))


def _sigmoid(step: LoweredStep, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return integer.sigmoid(inputs[0], input_params(step), output_params(step))


OPERATORS = (
    operator("LeakyRelu", kernels=frozenset(["QLinearLeakyRelu"]), reference=_leaky_relu),
    operator("Sigmoid", Trait.SIGMOID, kernels=frozenset(["QLinearSigmoid"]), reference=_sigmoid),
    operator("HardSigmoid", Trait.SIGMOID),
    *alike(["Relu", "Clip"], moves=lambda node: clip_bounds(node) is not None),
    *alike(["Softmax", "LogSoftmax"], Trait.SOFTMAX),
    *alike(["Cast", "Identity", "Dropout"], Trait.COPIES),
)
