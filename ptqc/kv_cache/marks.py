"""Which outputs of a model hold a packed cache, and in which form: a mark on the nodes that make them."""

import json

import onnx_ir as ir

from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import from_json, to_json

FORM = "ptqc.cache_form"


def mark(codes: ir.Value, form: CacheForm) -> None:
    """Say that a value is the first part of a cache in this form."""
    node = codes.producer()
    assert node is not None
    node.metadata_props[FORM] = json.dumps(to_json(form))


def forms_given(model: ir.Model) -> dict[str, CacheForm]:
    """The forms of the caches that a model gives, by the name of the output that holds the first part."""
    makers = {str(value.name): value.producer() for value in model.graph.outputs}
    return {
        name: from_json(json.loads(node.metadata_props[FORM]))
        for name, node in makers.items()
        if node is not None and FORM in node.metadata_props
    }
