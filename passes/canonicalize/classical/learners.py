"""Classical learners (`ai.onnx.ml`: scalers, linear models, linear support vectors) in ONNX's own operators.

What such an operator keeps in its attributes becomes the weight of a Gemm, which the other passes know.
"""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.frontend.classical import DOMAIN
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.classical.features import (
    array_feature_extractor,
    binarizer,
    feature_vectorizer,
    imputer,
    normalizer,
    scaler,
)
from ptqc.passes.canonicalize.classical.linear import linear_classifier, linear_regressor
from ptqc.passes.canonicalize.classical.vectors import svm_classifier, svm_regressor
from ptqc.passes.canonicalize.tools.writing import Rule, write_out

RULES: dict[str, Rule] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "Scaler": scaler,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
}


@dataclass(frozen=True)
class Classical:
    """Replace operators of `ai.onnx.ml`; those that only rename labels or categories stay."""

    name: ClassVar[str] = "classical"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """One note for each operator of `ai.onnx.ml`."""
        notes = write_out(given.model, self.name, DOMAIN, RULES)
        return given.rewritten(notes, unsaid=bool(notes))
