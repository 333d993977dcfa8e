"""The forms that caches can have, by name, and as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ptqc.kv_cache.block_float import BlockFloat
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.halves import Halves
from ptqc.kv_cache.scaled import ScaledRows

FLOAT, SORTED = "float", "bfp4-sorted"
# Those that follow from nothing but their name.
FIXED: Mapping[str, CacheForm] = {form.name: form for form in (Halves(), ScaledRows(127), ScaledRows(7), BlockFloat())}
NAMES = (*FIXED, SORTED)


def to_json(form: CacheForm) -> dict[str, Any]:
    """The document for manifests."""
    return {"form": form.name, "order": list(form.order) if isinstance(form, BlockFloat) else []}


def from_json(document: Mapping[str, Any]) -> CacheForm:
    """What `to_json` made."""
    return BlockFloat(tuple(document["order"])) if document["order"] else FIXED[document["form"]]


def forms_of_documents(documents: Sequence[Mapping[str, Any]]) -> dict[str, CacheForm]:
    """The forms of packed caches, by the name of the input: of what `with_caches` takes."""
    return {document["name"]: from_json(document) for document in documents if document["form"] != FLOAT}


# Which outputs of a model hold a packed cache, and in which form: a mark on the nodes that make them.

FORM = "ptqc.cache_form"


def mark(codes: ir.Value, form: CacheForm) -> None:
    """Say that a value is the first part of a cache in this form."""
    node = codes.producer()
    assert node is not None
    node.metadata_props[FORM] = json.dumps(to_json(form))


def forms_of_outputs(model: ir.Model) -> dict[str, CacheForm]:
    """The forms of the caches that a model gives, by the name of the output that holds the first part."""
    makers = {str(value.name): value.producer() for value in model.graph.outputs}
    return {
        name: from_json(json.loads(node.metadata_props[FORM]))
        for name, node in makers.items()
        if node is not None and FORM in node.metadata_props
    }
