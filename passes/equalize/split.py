"""Wide channels of layers' inputs split off, and wide rows scaled, before anything else is measured of the model."""

from collections.abc import Sequence
from dataclasses import replace

from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note, is_cut_short
from ptqc.options import CompileOptions, Phase
from ptqc.passes.allocate.smallest import estimated_size
from ptqc.passes.effects import applied
from ptqc.passes.equalize.outliers import Remedy, from_json, rewrites, to_json
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.quantize.measure import key_of
from ptqc.passes.quantize.phases import Analysis, AnalysisInput
from ptqc.passes.quantize.prepare import PROBES, CanonicalModel
from ptqc.passes.runner import run_rewrites
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import Progress
from ptqc.utils.store import Store

# A budget has room for splits where it is so many times the smallest file with them: others need the bytes more.
ROOM = 1.4


def with_splits(
    whole: CanonicalModel,
    options: CompileOptions,
    store: Store,
    progress: Progress,
    deadline: Deadline,
    limit: int | None = None,
) -> CanonicalModel:
    """The model with wide channels split off, or rows scaled, where 8 bits then hold the rest; else as it is.

    What an earlier compile chose is taken from the store. limit: bytes that the file may have.
    """
    if options.activations != "auto":
        return whole
    key = key_of(ChooseSplits.name, whole, options.until(Phase.MEASURE))
    entry = store.get(key)
    if entry is not None:
        notes = tuple(Note(ChooseSplits.name, subject, message) for subject, message in entry.document["notes"])
        return _within(limit, options, _with(whole, from_json(entry.document["splits"]), notes))
    setting = AnalysisInput.of(whole.model, whole.tuning, whole.held_back, seed=options.seed, progress=progress)
    result = applied(ChooseSplits(options.loss, options.activation_limit), replace(setting, deadline=deadline))
    if not is_cut_short(result.notes):
        document = {"splits": to_json(result.output), "notes": [[note.subject, note.message] for note in result.notes]}
        store.put(key, document, {})
    return _within(limit, options, _with(whole, result.output, result.notes))


def _within(limit: int | None, options: CompileOptions, prepared: CanonicalModel) -> CanonicalModel:
    """With as many of the remedies as a file of `limit` bytes has room for; those of the most channels go first."""
    reason = ": the budget has no room for the bytes that this adds"
    while (
        limit is not None
        and prepared.remedies
        and limit < ROOM * estimated_size(prepared.model, options.bits, options.formats)
    ):
        largest = max(prepared.remedies, key=lambda remedy: len(remedy.channels))
        prepared = _without(prepared, [largest], reason)
    return prepared


def without_unused(prepared: CanonicalModel, analysis: Analysis) -> CanonicalModel:
    """The model with those remedies alone whose layers compute on codes; `prepared` itself where all do."""
    codes = analysis.tensors_of(analysis.activations)
    unused = [remedy for remedy in prepared.remedies if remedy.rest not in codes]
    reason = " after all: with the losses of all activations together, what is left stays float"
    return _without(prepared, unused, reason) if unused else prepared


def _without(prepared: CanonicalModel, gone: Sequence[Remedy], reason: str) -> CanonicalModel:
    """The model without some of its remedies, and notes on why in the place of those on what they buy."""
    tensors = {remedy.tensor for remedy in gone}
    is_own = [note.step == ChooseSplits.name and note.subject in tensors for note in prepared.notes]
    notes = [note for note, own in zip(prepared.notes, is_own, strict=True) if not own]
    skipped = [Note(ChooseSplits.name, x.tensor, f"is not {x.description}{reason}", Level.SKIPPED) for x in gone]
    whole = replace(prepared, model=prepared.unsplit, remedies=(), whole=None, notes=tuple(notes))
    return _with(whole, tuple(remedy for remedy in prepared.remedies if remedy not in gone), tuple(skipped))


def used_remedies(remedies: Sequence[Remedy], plan: Plan) -> tuple[list[Remedy], list[Note]]:
    """Those whose layers compute on codes, and notes on the others.

    Budgets of time, memory and loss choose activations anew after the model was changed.
    """
    used = [remedy for remedy in remedies if remedy.rest in plan.params]
    reason = "without use: the activations that were chosen for the budget leave it in float"
    unused = [(remedy.tensor, f"stays {remedy.description} {reason}") for remedy in remedies if remedy not in used]
    return used, [Note(ChooseSplits.name, tensor, message, Level.WARNING) for tensor, message in unused]


def _with(whole: CanonicalModel, remedies: tuple[Remedy, ...], notes: tuple[Note, ...]) -> CanonicalModel:
    notes = (*whole.notes, *notes)
    if not remedies:
        return replace(whole, notes=notes)
    model = whole.model.clone()
    run_rewrites(model, rewrites(remedies), [whole.samples[i] for i in range(PROBES)])
    return replace(whole, model=model, notes=notes, remedies=remedies, whole=whole.model)
