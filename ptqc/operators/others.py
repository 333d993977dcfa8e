"""Operators of which little has to be known: random ones, those with bodies, conversions, quantized ones."""

from ptqc.operators.base import Trait, alike

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
QUANTIZED = ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")

OPERATORS = (
    *alike(RANDOM, Trait.RANDOM),
    *alike(["If", "Loop", "Scan"], Trait.BODIES),
    *alike(["QuantizeLinear", "DequantizeLinear"], Trait.CONVERTS),
    *alike(QUANTIZED, Trait.QUANTIZED),
    *alike(["IsNaN"], Trait.FILLS_GAPS),
)
