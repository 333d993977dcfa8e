"""Operators of `ai.onnx.ml`: what learners that are no networks are written in."""

from ptqc.ir.operators.base import Trait, alike, operator

DOMAIN = "ai.onnx.ml"

OPERATORS = (
    operator("Imputer", Trait.FILLS_GAPS, domain=DOMAIN),
    *alike(["TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"], Trait.TREES, domain=DOMAIN),
    *alike(["SVMClassifier", "SVMRegressor"], Trait.SUPPORT_VECTORS, domain=DOMAIN),
)
