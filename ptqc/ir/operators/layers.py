"""Layers: operators that multiply activations by trained weights, and those that ONNX Runtime's optimizer makes."""

from collections.abc import Sequence

import numpy as np

from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.nodes import integer as integer_attribute
from ptqc.ir.nodes import integers
from ptqc.ir.operators.base import (
    LoweredStep,
    Trait,
    alike,
    has_float_output,
    input_params,
    layer_constants,
    operator,
    output_params,
)

FIRST, LAST = 1, -1
MICROSOFT = "com.microsoft"


def _conv(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    codes, scale, bias = layer_constants(step)
    x, y = input_params(step), output_params(step)
    rank = codes.ndim - 2
    accumulator = integer.conv_accumulator(
        inputs[0],
        x.zero_point,
        codes,
        bias,
        strides=integers(step.node, "strides", [1] * rank),
        pads=integers(step.node, "pads", [0] * (2 * rank)),
        dilations=integers(step.node, "dilations", [1] * rank),
        groups=integer_attribute(step.node, "group", 1),
    )
    factor = integer.multiplier(x, scale, y).reshape(1, -1, *(1,) * rank)
    return integer.requantize(accumulator, factor, y)


def _product(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    codes, scale, bias = layer_constants(step)
    x = input_params(step)
    weight = codes.T if integer_attribute(step.node, "transB", 0) else codes
    accumulator = integer.matmul_accumulator(inputs[0], x.zero_point, weight, bias)
    if has_float_output(step):
        return integer.product(accumulator, x, scale)
    y = output_params(step)
    return integer.requantize(accumulator, integer.multiplier(x, scale, y), y)


LAYER = (Trait.LAYER, Trait.WEIGHTED, Trait.PRODUCT)
ON_FLOAT = (*LAYER, Trait.FLOAT_OUTPUT)

OPERATORS = (
    operator(
        "Conv",
        *(*LAYER, Trait.SPELLED_OUT, Trait.IMPLIED_ZERO, Trait.ROUNDED_WEIGHT),
        channels=FIRST,
        kernels=frozenset(["QLinearConv"]),
        reference=_conv,
    ),
    operator(
        "Gemm",
        *(*ON_FLOAT, Trait.SPELLED_OUT, Trait.ROUNDED_WEIGHT),
        channels=FIRST,
        kernels=frozenset(["QGemm"]),
        reference=_product,
    ),
    operator(
        "MatMul",
        *(*ON_FLOAT, Trait.FUSED_WITH_SUM),
        channels=LAST,
        kernels=frozenset(["QLinearMatMul", "MatMulIntegerToFloat"]),
        reference=_product,
    ),
    operator("ConvTranspose", Trait.WEIGHTED, Trait.PRODUCT, Trait.ROUNDED_WEIGHT, channels=FIRST),
    operator("Einsum", Trait.WEIGHTED),
    *alike(["LSTM", "GRU", "RNN"], Trait.WEIGHTED, Trait.RECURRENT, channels=LAST),
    operator("Attention", Trait.PRODUCT, domain=MICROSOFT, masks=(3, 5)),
    operator("MultiHeadAttention", domain=MICROSOFT, masks=(4, 5)),
    operator("Attention", masks=(3,)),
    *alike(["FusedConv", "FusedGemm", "FusedMatMul"], Trait.PRODUCT, domain=MICROSOFT),
)
