"""The forms that caches can have, by name, and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.passes.caches.around import pack_caches
from ptqc.passes.caches.block_float import BlockFloat
from ptqc.passes.caches.form import CacheForm
from ptqc.passes.caches.halves import Halves
from ptqc.passes.caches.scaled import ScaledRows

FLOAT, SORTED = "float", "bfp4-sorted"
# Those that follow from nothing but their name.
FIXED: Mapping[str, CacheForm] = {form.name: form for form in (Halves(), ScaledRows(127), ScaledRows(7), BlockFloat())}
NAMES = (*FIXED, SORTED)


def form_named(name: str, caches: Sequence[np.ndarray]) -> CacheForm:
    """A form. caches: (texts, heads, places, channels) of samples, by whose energies channels are sorted."""
    return BlockFloat.sorted_by(caches) if name == SORTED else FIXED[name]


def to_json(form: CacheForm) -> dict[str, Any]:
    """The document for manifests."""
    return {"form": form.name, "order": list(form.order) if isinstance(form, BlockFloat) else []}


def from_json(document: Mapping[str, Any]) -> CacheForm:
    """What `to_json` made."""
    return BlockFloat(tuple(document["order"])) if document["order"] else FIXED[document["form"]]


def forms_told(documents: Sequence[Mapping[str, Any]]) -> dict[str, CacheForm]:
    """The forms of packed caches, by the name of the input: of what `with_caches` takes."""
    return {found["name"]: from_json(found) for found in documents if found["form"] != FLOAT}


def with_caches(model: ir.Model, documents: Sequence[Mapping[str, Any]]) -> ir.Model:
    """A copy of a model with its caches packed as documents say: what `to_json` made, with the `name` of the input."""
    packed = model.clone()
    pack_caches(packed, forms_told(documents))
    return packed
