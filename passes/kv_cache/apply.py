"""A decoder with its caches packed, before any other step, and samples as it takes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptqc.calibration.inputs import conform, input_specs
from ptqc.calibration.recording import recorded_specs
from ptqc.calibration.runnable import explaining
from ptqc.calibration.samples import Samples
from ptqc.frontend import ModelSource
from ptqc.kv_cache.form import CacheForm, packed_feeds
from ptqc.kv_cache.known import FLOAT, NAMES, to_json
from ptqc.notes import Level, Note
from ptqc.options import KvCache
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.kv_cache.choose import CacheStatistics, ChosenForms, asked_names, chosen
from ptqc.passes.kv_cache.verify import check_packing
from ptqc.passes.kv_cache.wrap import pack_caches
from ptqc.utils.text import number

# How a decoder's caches are kept, as manifest, summary, report and notes tell it.

STEP = "kv-cache"


@dataclass(frozen=True)
class CacheDescription:
    """One cache.

    form: its name, or float. order: of channels that are sorted. inputs: that hold it. bytes, float_bytes: at the
    longest text, as it is and in float32. loss: of it alone, where that decided.
    """

    name: str
    form: str
    order: tuple[int, ...]
    inputs: tuple[str, ...]
    bytes: int
    float_bytes: int
    loss: float | None


@dataclass(frozen=True)
class CachesDescription:
    """All caches. places: of the longest text. loss: of all together in one step, in a unit; None: nothing shows it."""

    caches: tuple[CacheDescription, ...]
    places: int
    budget: str | None
    limit_bytes: int | None
    loss: float | None
    unit: str

    @classmethod
    def of(
        cls, seen: CacheStatistics, chosen_forms: ChosenForms, budget: CacheBudget | None, loss: float | None
    ) -> "CachesDescription":
        """What was chosen, with bytes as samples show them."""
        caches = tuple(_of(seen, chosen_forms, name) for name in chosen_forms.forms)
        limit = None if budget is None else budget.limit(sum(cache.float_bytes for cache in caches))
        return cls(caches, seen.places, None if budget is None else str(budget), limit, loss, seen.unit)

    @property
    def packed(self) -> list[CacheDescription]:
        """Those that are not float."""
        return [cache for cache in self.caches if cache.form != FLOAT]

    def to_json(self) -> dict[str, Any]:
        """The document for manifests."""
        after, before = _bytes(self.caches)
        return {
            **asdict(self),
            "caches": [{**asdict(cache), "order": list(cache.order)} for cache in self.caches],
            "bytes": after,
            "float_bytes": before,
        }

    def notes(self) -> Iterator[Note]:
        """How many bytes packed caches take, and what that loses, as samples show."""
        packed, (after, before) = self.packed, _bytes(self.packed)
        counts = {name: sum(cache.form == name for cache in packed) for name in NAMES}
        kinds = ", ".join(f"{count} as {name}" for name, count in counts.items() if count)
        message = f"{len(packed)} caches are packed ({kinds}): they take {after:,} bytes for {self.places} tokens"
        yield Note(STEP, "", f"{message}, not {before:,}")
        if self.loss is None:
            message = "no sample has anything cached, so the loss of packed caches is unknown"
            yield Note(STEP, "", f"{message}: record feeds of a later step", Level.WARNING)
        else:
            message = f"that loses {number(self.loss)} {self.unit} in one step, on samples with something cached"
            yield Note(STEP, "", f"{message}; all else is compared with the model whose caches are packed")


def _of(seen: CacheStatistics, chosen_forms: ChosenForms, name: str) -> CacheDescription:
    form = chosen_forms.forms[name]
    document: dict[str, Any] = {"form": FLOAT, "order": []} if form is None else to_json(form)
    packed_bytes, float_bytes = seen.bytes(name, form), seen.bytes(name, None)
    inputs, loss = seen.inputs(name, form), chosen_forms.losses.get(name)
    return CacheDescription(name, document["form"], tuple(document["order"]), inputs, packed_bytes, float_bytes, loss)


def _bytes(caches: Sequence[CacheDescription]) -> tuple[int, int]:
    """As they are, and in float32."""
    return sum(cache.bytes for cache in caches), sum(cache.float_bytes for cache in caches)


@dataclass(frozen=True)
class PackedCaches:
    """A model that keeps its caches packed, with samples that it takes.

    description: for the manifest; None where nothing was asked.
    """

    source: ModelSource
    samples: Samples
    judging: Samples | None
    description: Mapping[str, Any] | None = None


def with_packed_caches(
    source: ModelSource,
    samples: Samples,
    judging: Samples | None,
    requested: KvCache,
    budget: CacheBudget | None,
    folder: Path,
) -> PackedCaches:
    """The model with its caches packed as asked for, its samples, and notes on what that loses; else all as it was.

    budget: chooses for caches of which nothing is asked. folder: for the samples. Raises UsageError where the model has
    no such caches, CalibrationError for samples that it does not run on or whose caches are not finite, Infeasible
    where no forms keep the budget, VerificationError where packing does not do what it says.
    """
    names = asked_names(source.model, requested, budget)
    if budget is None and set(names.values()) <= {FLOAT}:
        return PackedCaches(source, samples, judging)
    seen = CacheStatistics(source.model, samples)
    with explaining(seen.runner, samples, input_specs(source.model)):
        return _packed(source, seen, judging, chosen(seen, names, budget), budget, folder)


def _packed(
    source: ModelSource,
    seen: CacheStatistics,
    judging: Samples | None,
    chosen_forms: ChosenForms,
    budget: CacheBudget | None,
    folder: Path,
) -> PackedCaches:
    samples = seen.samples
    forms = {name: form for name, form in chosen_forms.forms.items() if form is not None}
    result = CachesDescription.of(seen, chosen_forms, budget, seen.loss(forms) if seen.judged else None)
    if not forms:
        return PackedCaches(source, samples, judging, result.to_json())
    packed = source.model.clone()
    pack_caches(packed, forms)
    check_packing(source.model, packed, forms, seen.judged or samples)
    packed_samples, packed_judging = (
        None if unpacked is None else _converted(packed, unpacked, forms, folder / name)
        for name, unpacked in (("packed", samples), ("packed_judging", judging))
    )
    assert packed_samples is not None
    return PackedCaches(
        replace(source, model=packed, notes=(*source.notes, *result.notes())),
        packed_samples,
        packed_judging,
        result.to_json(),
    )


def _converted(model: ir.Model, samples: Samples, forms: Mapping[str, CacheForm], folder: Path) -> Samples:
    """The same samples as the packed model takes them."""
    feeds = (packed_feeds(feeds, forms) for feeds in samples)
    inputs = (*input_specs(model), *recorded_specs(model, samples[0]))
    return samples.rewritten(folder, (conform(one, inputs, place) for place, one in enumerate(feeds)))
