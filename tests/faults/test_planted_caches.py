"""Faults planted into the packing of caches: each is stopped before anything is measured."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from planted_caches import FAULTS

from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import NAMES
from ptqc.passes.kv_cache.verify import check_packing
from ptqc.passes.kv_cache.wrap import form_named, pack_caches

HEADS, DEPTH = 2, 8
CACHE, GROWN = (f"float[N, {HEADS}, {places}, {DEPTH}]" for places in "PA")
DECODER = f"""g (float[N, {HEADS}, T, {DEPTH}] x, {CACHE} past_key_0, {CACHE} past_value_0)
    => (float[N, {HEADS}, T, {DEPTH}] y, {GROWN} present_key_0, {GROWN} present_value_0) {{
    k = MatMul(x, w) v = Neg(x)
    present_key_0 = Concat <axis = 2> (past_key_0, k) present_value_0 = Concat <axis = 2> (past_value_0, v)
    turned = Transpose <perm = [0, 1, 3, 2]> (present_key_0) scores = MatMul(x, turned) shares = Softmax(scores)
    y = MatMul(shares, present_value_0) }}"""
# Heads and channels that differ in size, so that each has a scale and an order of its own.
SIZES = np.exp(np.linspace(-1, 1, HEADS))[:, None, None] * np.exp(np.linspace(-1, 1, DEPTH)[[3, 0, 6, 1, 7, 2, 5, 4]])


def step(places: int, seed: int) -> Feeds:
    caches = (noise(1, HEADS, places, DEPTH, seed=seed + n) * SIZES for n in (0, 1))
    keys, values = (cache.astype(np.float32) for cache in caches)
    return {"x": noise(1, HEADS, 2, DEPTH, seed=seed + 2), "past_key_0": keys, "past_value_0": values}


SAMPLES = [step(5, 0), step(9, 3)]


def packed(name: str) -> tuple[ir.Model, ir.Model, dict[str, CacheForm]]:
    """A decoder, the same with its caches packed, and their forms."""
    model, caches = parse(DECODER, w=noise(DEPTH, DEPTH)), ("past_key_0", "past_value_0")
    forms = {cache: form_named(name, [feeds[cache] for feeds in SAMPLES]) for cache in caches}
    changed = model.clone()
    pack_caches(changed, forms)
    return model, changed, forms


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.place, fault.name, fault.change(getattr(fault.place, fault.name)))
    with pytest.raises(VerificationError, match=fault.found):
        check_packing(*packed(fault.network), SAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_passes(name: str) -> None:
    check_packing(*packed(name), SAMPLES)
