"""The wide channels of some layers' inputs split off, before anything else is measured of the model."""

from collections.abc import Sequence
from dataclasses import replace

from ptqc.notes import Level, Note, is_cut_short
from ptqc.options import CompileOptions, Phase
from ptqc.passes.decide.choose_splits import ChooseSplits
from ptqc.passes.decide.phases import Decided, Setting
from ptqc.passes.effects import applied
from ptqc.passes.pipeline import run_rewrites
from ptqc.passes.rewrite.split_outliers import Split, SplitOutliers, from_json, to_json
from ptqc.plan import Plan
from ptqc.stages.inspecting.smallest import estimated_size
from ptqc.stages.measure import key_of
from ptqc.stages.prepare import PROBES, Prepared
from ptqc.store.entries import Store
from ptqc.work.deadline import Deadline
from ptqc.work.progress import Progress

# A budget has room for splits where it is so many times the smallest file with them: others need the bytes more.
ROOM = 1.1


def with_splits(
    whole: Prepared,
    options: CompileOptions,
    store: Store,
    progress: Progress,
    deadline: Deadline,
    limit: int | None = None,
) -> Prepared:
    """The model with wide channels split off where 8 bits then hold the others; as it is where there are none.

    What an earlier compile chose is taken from the store. limit: bytes that the file may have.
    """
    if options.activations != "auto":
        return whole
    key = key_of(ChooseSplits.name, whole, options.until(Phase.MEASURE))
    entry = store.get(key)
    if entry is not None:
        told = tuple(Note(ChooseSplits.name, subject, message) for subject, message in entry.document["notes"])
        return _within(limit, options, _split(whole, from_json(entry.document["splits"]), told))
    setting = Setting.of(whole.model, whole.tuning, whole.held_back, seed=options.seed, progress=progress)
    result = applied(ChooseSplits(options.loss, options.activation_limit), replace(setting, deadline=deadline))
    if not is_cut_short(result.notes):
        document = {"splits": to_json(result.made), "notes": [[note.subject, note.message] for note in result.notes]}
        store.put(key, document, {})
    return _within(limit, options, _split(whole, result.made, result.notes))


def _within(limit: int | None, options: CompileOptions, prepared: Prepared) -> Prepared:
    """With as many of the splits as a file of `limit` bytes has room for; those of the most channels go first."""
    message = "is not split: the budget has no room for the bytes of the products that this adds"
    while limit is not None and prepared.splits and limit < ROOM * estimated_size(prepared.model, options.bits):
        largest = max(prepared.splits, key=lambda split: len(split.channels))
        prepared = _without(prepared, [largest], message)
    return prepared


def without_unused(prepared: Prepared, decided: Decided) -> Prepared:
    """The model with those splits alone whose narrow part is computed on codes; `prepared` itself where all are."""
    unused = [split for split in prepared.splits if split.rest not in decided.tensors_of(decided.activations)]
    message = "is not split after all: with the losses of all activations together, what is left stays float"
    return _without(prepared, unused, message) if unused else prepared


def _without(prepared: Prepared, gone: Sequence[Split], reason: str) -> Prepared:
    """The model without some of its splits, and notes on why in the place of those on what they buy."""
    tensors = {split.tensor for split in gone}
    is_own = [note.step == ChooseSplits.name and note.subject in tensors for note in prepared.notes]
    kept = [note for note, own in zip(prepared.notes, is_own, strict=True) if not own]
    skipped = [Note(ChooseSplits.name, split.tensor, reason, Level.SKIPPED) for split in gone]
    whole = replace(prepared, model=prepared.unsplit, splits=(), whole=None, notes=tuple(kept))
    return _split(whole, tuple(split for split in prepared.splits if split not in gone), tuple(skipped))


def used_splits(splits: Sequence[Split], plan: Plan) -> tuple[dict[str, int], list[Note]]:
    """How many channels are split off, by tensor, where the narrow part is codes; and notes on the other splits.

    Budgets of time, memory and loss choose activations anew after the model was split.
    """
    used = {split.tensor: len(split.channels) for split in splits if split.rest in plan.params}
    message = "stays split without use: the activations that were chosen for the budget leave it in float"
    unused = [split.tensor for split in splits if split.tensor not in used]
    return used, [Note(ChooseSplits.name, tensor, message, Level.WARNING) for tensor in unused]


def _split(whole: Prepared, splits: tuple[Split, ...], notes: tuple[Note, ...]) -> Prepared:
    notes = (*whole.notes, *notes)
    if not splits:
        return replace(whole, notes=notes)
    model = whole.model.clone()
    run_rewrites(model, [SplitOutliers(splits)], [whole.samples[i] for i in range(PROBES)])
    return replace(whole, model=model, notes=notes, splits=splits, whole=whole.model)
