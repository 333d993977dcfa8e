"""Operators of which little has to be known: random ones, those with bodies, conversions, quantized ones."""

from ptqc.ir.operators.base import Trait, alike, operator

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
QUANTIZED = ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")

OPERATORS = (
    *alike(RANDOM, Trait.RANDOM),
    *alike(["If", "Scan"], Trait.BODIES),
    operator("Loop", Trait.BODIES, parameters=(0,)),
    *alike(["QuantizeLinear", "DequantizeLinear"], Trait.CONVERTS),
    *alike(QUANTIZED, Trait.QUANTIZED),
    *alike(["IsNaN"], Trait.FILLS_GAPS),
)
