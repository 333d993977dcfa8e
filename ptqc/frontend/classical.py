"""Operators of `ai.onnx.ml`: which of them hold weights that can be quantized, and which nothing can be done for."""

import onnx

from ptqc.errors import ModelError
from ptqc.ir import zipmaps
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import every_node, label

DOMAIN = zipmaps.DOMAIN
TREES, SUPPORT_VECTORS = named(Trait.TREES), named(Trait.SUPPORT_VECTORS)


def check_classical(model: onnx.ModelProto) -> None:
    """Refuse decision trees, support vectors behind a kernel that is not linear, and maps in front of the outputs."""
    at_outputs = set(zipmaps.labels(model.graph))
    for node in every_node(model):
        if node.domain != DOMAIN:
            continue
        if node.op_type in TREES:
            raise ModelError(
                f"has decision trees ({label(node)}): there is nothing to quantize in decision trees; "
                "keep the file as it is, or train fewer or shallower trees to make it smaller"
            )
        if node.op_type in SUPPORT_VECTORS and (kernel := _kernel(node)) != "LINEAR":
            raise ModelError(
                f"has support vectors with a kernel of the kind {kernel} ({label(node)}), which compares each sample "
                "with all of them and has no weights to quantize; train with kernel='linear', or a network "
                "(MLPClassifier, MLPRegressor) in its place"
            )
        if node.op_type == zipmaps.OPERATOR and at_outputs.isdisjoint(node.output):
            raise ModelError(
                f"makes one map per sample of its scores (the {label(node)}) that is not just an output of the model; "
                "convert it again without: to_onnx(model, X, options={id(model): {'zipmap': False}}) in skl2onnx"
            )


def _kernel(node: onnx.NodeProto) -> str:
    """The kernel of a support vector machine; one without support vectors is linear whatever it says."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    vectors = attributes.get("support_vectors")
    if vectors is None or not vectors.floats:
        return "LINEAR"
    return attributes["kernel_type"].s.decode(errors="replace") if "kernel_type" in attributes else "LINEAR"
