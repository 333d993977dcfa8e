"""Forms by name with what they take from samples, and models whose caches have the forms that documents tell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache.block_float import BlockFloat
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import FIXED, SORTED, forms_told
from ptqc.passes.kv_cache.key_order import order_of_all
from ptqc.passes.kv_cache.wrap import pack_caches


def form_named(name: str, caches: Sequence[np.ndarray]) -> CacheForm:
    """A form. caches: (texts, heads, places, channels) of samples, by whose energies channels are sorted."""
    return BlockFloat(tuple(order_of_all(caches).tolist())) if name == SORTED else FIXED[name]


def with_caches(model: ir.Model, documents: Sequence[Mapping[str, Any]]) -> ir.Model:
    """A copy of a model with its caches packed as documents say: what `to_json` made, with the `name` of the input."""
    packed = model.clone()
    pack_caches(packed, forms_told(documents))
    return packed
