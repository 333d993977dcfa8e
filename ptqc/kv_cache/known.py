"""The forms that caches can have, by name, and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

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


def forms_told(documents: Sequence[Mapping[str, Any]]) -> dict[str, CacheForm]:
    """The forms of packed caches, by the name of the input: of what `with_caches` takes."""
    return {found["name"]: from_json(found) for found in documents if found["form"] != FLOAT}
