"""Classical learners (`ai.onnx.ml`: scalers, linear models, linear support vectors) in ONNX's own operators.

What such an operator keeps in its attributes becomes the weight of a Gemm, which the other passes know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, RewriteContext
from ptqc.passes.classical_features import (
    array_feature_extractor,
    binarizer,
    feature_vectorizer,
    imputer,
    normalizer,
    scaler,
)
from ptqc.passes.classical_linear import linear_classifier, linear_regressor
from ptqc.passes.classical_vectors import svm_classifier, svm_regressor
from ptqc.passes.graph_tools import infer_shapes, remove_dead, take_over
from ptqc.passes.post_transform import Writer
from ptqc.reading.classical import DOMAIN

# Each writes what the node gives in front of it, or says why that cannot be done before it has written anything.
Rule = Callable[[Writer], list[ir.Value] | str]
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

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """One note for each operator of `ai.onnx.ml`."""
        notes = [self._replace(model, node) for node in list(model.graph.all_nodes()) if node.domain == DOMAIN]
        if notes:
            remove_dead(model)
            common.RemoveUnusedOpsetsPass()(model)
            infer_shapes(model)
        return notes

    def _replace(self, model: ir.Model, node: ir.Node) -> Note:
        subject = node.outputs[0].name or ""
        rule = RULES.get(node.op_type)
        made = "it computes no weighted sums" if rule is None else rule(Writer(model, node))
        if isinstance(made, str):
            return Note(self.name, subject, f"{node.op_type} stays as it is: {made}", Level.SKIPPED)
        for old, new in zip(node.outputs, made, strict=False):
            _stand_for(node, old, new)
        return Note(self.name, subject, f"{node.op_type} written in ONNX's own operators")


def _stand_for(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Let a value stand for one of the node's, with its type and shape."""
    if old.is_graph_output() and (new.producer() is None or new.is_graph_output() or new.uses()):
        identity = ir.node("Identity", [new])
        assert node.graph is not None
        node.graph.insert_before(node, identity)
        new = identity.outputs[0]
    if new.dtype is None or new.shape is None:
        new.type, new.shape = old.type, old.shape
    take_over(old, new)
