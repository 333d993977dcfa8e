"""Normalizations, whose factors and offsets are trained."""

from ptqc.ir.operators.base import Trait, alike

LAST = -1

OPERATORS = (
    *alike(
        ["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"],
        *(Trait.NORMALIZATION, Trait.WEIGHTED),
        channels=LAST,
    ),
    *alike(["BatchNormalization", "InstanceNormalization", "GroupNormalization"], Trait.NORMALIZATION, Trait.WEIGHTED),
)
