"""Pools and what else works on planes of pixels."""

from collections.abc import Sequence

import numpy as np

from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.nodes import integer as integer_attribute
from ptqc.ir.nodes import integers, text
from ptqc.ir.operators.base import LoweredStep, Trait, alike, input_params, operator, output_params


def _mean(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    return integer.global_average_pool(inputs[0], input_params(step), output_params(step))


def _pool(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    kernel = integers(step.node, "kernel_shape", [])
    return integer.average_pool(
        inputs[0],
        input_params(step),
        output_params(step),
        kernel=kernel,
        strides=integers(step.node, "strides", [1] * len(kernel)),
        pads=integers(step.node, "pads", [0] * (2 * len(kernel))),
        ceil=bool(integer_attribute(step.node, "ceil_mode", 0)),
        counts_pads=bool(integer_attribute(step.node, "count_include_pad", 0)),
    )


OPERATORS = (
    operator(
        "AveragePool",
        *(Trait.PLANES, Trait.HOMOGENEOUS, Trait.SPELLED_OUT),
        kernels=frozenset(["QLinearAveragePool"]),
        reference=_pool,
    ),
    operator(
        "GlobalAveragePool",
        *(Trait.PLANES, Trait.HOMOGENEOUS, Trait.IMPLIED_ZERO),
        kernels=frozenset(["QLinearGlobalAveragePool"]),
        reference=_mean,
    ),
    operator(
        "MaxPool",
        *(Trait.PLANES, Trait.HOMOGENEOUS, Trait.SPELLED_OUT),
        moves=lambda node: len(node.outputs) == 1,
    ),
    operator(
        "Resize",
        *(Trait.PLANES, Trait.HOMOGENEOUS),
        moves=lambda node: text(node, "mode", "nearest") == "nearest",
        parameters=(1, 2, 3),
    ),
    *alike(["GlobalMaxPool", "Upsample"], Trait.PLANES, Trait.HOMOGENEOUS),
    *alike(["DepthToSpace", "SpaceToDepth"], channels=1),
    operator("AffineGrid", parameters=(1,)),
    operator("Col2Im", parameters=(1, 2)),
)
