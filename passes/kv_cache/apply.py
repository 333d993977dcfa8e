"""A decoder with its caches packed, before any other step, and samples as it takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptqc.budget import CacheBudget
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.recording import recorded_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.frontend import ModelSource
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import FLOAT
from ptqc.kv_cache.values import packed_feeds
from ptqc.options import KvCache
from ptqc.passes.kv_cache.choose import asked_names, chosen
from ptqc.passes.kv_cache.describe import ToldCaches
from ptqc.passes.kv_cache.statistics import SeenCaches
from ptqc.passes.kv_cache.verify import check_packing
from ptqc.passes.kv_cache.wrap import pack_caches


@dataclass(frozen=True)
class PackedCaches:
    """A model that keeps its caches packed, with samples that it takes. told: for the manifest; None: nothing asked."""

    source: ModelSource
    samples: Samples
    judging: Samples | None
    told: Mapping[str, Any] | None = None


def with_packed_caches(
    source: ModelSource,
    samples: Samples,
    judging: Samples | None,
    asked: KvCache,
    budget: CacheBudget | None,
    folder: Path,
) -> PackedCaches:
    """The model with its caches packed as asked for, its samples, and notes on what that loses; else all as it was.

    budget: chooses for caches of which nothing is asked. folder: for the samples. Raises UsageError where the model has
    no such caches, Infeasible where no forms keep the budget, VerificationError where packing does not do what it says.
    """
    names = asked_names(source.model, asked, budget)
    if budget is None and set(names.values()) <= {FLOAT}:
        return PackedCaches(source, samples, judging)
    seen = SeenCaches(source.model, samples)
    found = chosen(seen, names, budget)
    forms = {name: form for name, form in found.forms.items() if form is not None}
    told = ToldCaches.of(seen, found, budget, seen.loss(forms) if seen.judged else None)
    if not forms:
        return PackedCaches(source, samples, judging, told.to_json())
    packed = source.model.clone()
    pack_caches(packed, forms)
    check_packing(source.model, packed, forms, seen.judged or samples)
    kept, apart = (
        None if given is None else _converted(packed, given, forms, folder / name)
        for name, given in (("packed", samples), ("packed_judging", judging))
    )
    assert kept is not None
    return PackedCaches(
        replace(source, model=packed, notes=(*source.notes, *told.notes())), kept, apart, told.to_json()
    )


def _converted(model: ir.Model, samples: Samples, forms: Mapping[str, CacheForm], folder: Path) -> Samples:
    """The same samples as the packed model takes them."""
    feeds = (packed_feeds(feeds, forms) for feeds in samples)
    inputs = (*input_specs(model), *recorded_specs(model, samples[0]))
    return replace(collect(feeds, inputs, folder, len(samples)), notes=samples.notes)
