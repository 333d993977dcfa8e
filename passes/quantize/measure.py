"""Everything that is measured once per model and calibration set, and then serves every budget."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ptqc.calibration.samples import Samples
from ptqc.errors import UsageError
from ptqc.execution import onnxruntime
from ptqc.formats import Float8, Format, Integer
from ptqc.ir.external import fits_in_memory, hold_external, is_in_files, weight_bytes
from ptqc.ir.layers import Weight
from ptqc.ir.nodes import initial
from ptqc.ir.operators import OPERATORS
from ptqc.ir.quantized_weight import Candidates
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.equalize.outliers import from_json, to_json
from ptqc.passes.quantize import measurements
from ptqc.passes.quantize.measurements import pack_candidates, unpack_candidates
from ptqc.passes.quantize.phases import Analysis, AnalysisInput
from ptqc.passes.quantize.prepare import CanonicalModel, Origin
from ptqc.passes.registry import used
from ptqc.utils.progress import Progress
from ptqc.utils.store import Entry, Store
from ptqc.utils.version import __version__

# Solved weights in the store, put there as they are solved: a compile that was stopped resumes behind the last.


@dataclass(frozen=True)
class StoredWeights:
    """A cache of `SolveWeights`. key: of all that the candidates follow from. names: of the entries, by first weight.

    What is found is mapped from the store's files, so that the memory taken does not grow with the model.
    """

    store: Store
    key: Mapping[str, Any]
    model: ir.Model
    names: dict[str, str] = field(default_factory=dict)

    def find(self, weights: Sequence[Weight]) -> Candidates | None:
        """The candidates of these weights, if they are in the store."""
        entry = self.store.get(self._key(weights))
        if entry is None:
            return None
        self.names[weights[0].name] = entry.folder.name
        return self._unpack(entry)

    def put(self, weights: Sequence[Weight], candidates: Candidates, cut_short: bool = False) -> Candidates:
        """Store the candidates and map them from there. Raises Interrupted when they cannot be written.

        cut_short: by the time limit; they are then found by name only.
        """
        key = {**self._key(weights), **({"cut_short": True} if cut_short else {})}
        self.names[weights[0].name] = name = self.store.put(key, *pack_candidates(candidates))
        entry = self.store.open(name)
        return candidates if entry is None else self._unpack(entry)  # another process may have cleared the store

    def open(self, names: Iterable[str]) -> list[Candidates] | None:
        """The candidates of entries by name; None if one of them is not there any more."""
        entries = [self.store.open(name) for name in names]
        return None if None in entries else [self._unpack(entry) for entry in entries if entry is not None]

    def _key(self, weights: Sequence[Weight]) -> Mapping[str, Any]:
        return {**self.key, "weights": [weight.name for weight in weights]}

    def _unpack(self, entry: Entry) -> Candidates:
        return unpack_candidates(entry.document, entry.arrays, partial(initial, self.model))


MODEL, WHOLE, SAMPLES, JUDGING = "model.onnx", "whole.onnx", "samples", "judging"
# Raised when what is measured, or how, changes, so that old entries are not taken for new ones. A format, a rewrite or
# an integer kernel that is added or goes needs no raise: see `_known`.
MEASUREMENT_VERSION = 37


def recall(store: Store, name: str, progress: Progress) -> tuple[CanonicalModel, Analysis, CompileOptions, list[Note]]:
    """What an earlier compile measured, by entry name. Raises UsageError when the store does not hold it."""
    entry = store.open(name)
    if entry is None:
        raise _gone(store)
    stored = entry.document
    samples = Samples.open(entry.folder / SAMPLES)
    model = _load(entry.folder, MODEL)
    whole = _load(entry.folder, WHOLE) if (entry.folder / WHOLE).is_file() else None
    options = CompileOptions.of({**stored["options"], "bits": tuple(stored["options"]["bits"])})
    notes = stored_notes(entry, everything=True)
    own = len(notes) - stored["own_notes"]
    origin, holds_back_first = Origin(**stored["origin"]), stored.get("is_even", True)
    judging = Samples.open(entry.folder / JUDGING) if (entry.folder / JUDGING).is_dir() else None
    samples = replace(samples, batchable=stored["batchable"])
    splits = from_json(stored.get("splits", []))
    caches = stored.get("caches")
    prepared = CanonicalModel(
        model, samples, origin, tuple(notes[:own]), holds_back_first, judging, splits, whole, caches=caches
    )
    candidates = StoredWeights(store, {}, model).open(stored["candidates"])
    if candidates is None:
        raise _gone(store)
    analysis = measurements.unpack(setting_of(prepared, options, progress), stored["measurements"], candidates)
    return prepared, analysis, options, notes[own:]


def _gone(store: Store) -> UsageError:
    return UsageError(
        f"the measurements of this artifact are not in the store {store.folder} (any more). "
        "Run `ptqc compile` with the model and its calibration data again, or name the store with --cache"
    )


def setting_of(prepared: CanonicalModel, options: CompileOptions, progress: Progress) -> AnalysisInput:
    """Set out what is to be measured.

    Of a model beyond memory, activations that are to stay in float are not looked at: that would take long.
    """
    model = prepared.model
    result = AnalysisInput.of(
        model,
        prepared.tuning,
        prepared.held_back,
        closed=options.rules.closed,
        seed=options.seed,
        powers=options.scales == "pow2",
        symmetric=options.rules.symmetric,
        fused=options.rules.fused,
        progress=progress,
    )
    is_left = options.activations == "float" and is_in_files(model)
    return replace(result, sites=()) if is_left else result


def key_of(step: str, prepared: CanonicalModel, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a step's findings follow from. options: those that it reads."""
    plugins = used(options)
    return {
        "step": step,
        "version": [__version__, MEASUREMENT_VERSION],
        "libraries": {"onnxruntime": ort.__version__, "numpy": np.__version__, "onnx_ir": ir.__version__},
        "model": prepared.origin.digest,
        **({"splits": to_json(prepared.remedies)} if prepared.remedies else {}),
        **({"caches": _forms(prepared.caches)} if prepared.caches is not None else {}),
        "evened": prepared.equalized,
        "calibration": prepared.samples.digest,
        "known": _known(),
        # What ptqc's own rewrites make of a model follows from its version; those of others may have been edited.
        **({"rewritten": _digest(prepared.model)} if options["rewrites"] else {}),
        **({"plugins": plugins} if plugins else {}),
        "options": options,
    }


def families_of(model: ir.Model, options: CompileOptions) -> frozenset[str]:
    """The families of formats that weights are solved in; empty: all but those that have to be asked for.

    What the options say counts first. Of a model beyond memory, solving takes most of the time: where operators take
    weights of one family only, others would be solved for nothing.
    """
    if options.in_float8:
        return frozenset({Float8.family})
    in_blocks = (Integer.family,) if options.in_blocks and is_in_files(model) else ()
    return frozenset(options.formats or in_blocks)


def _forms(caches: Mapping[str, Any]) -> list[Any]:
    """Of what is told of caches, what the model follows from."""
    return [[cache["name"], cache["form"], cache["order"]] for cache in caches["caches"]]


def _digest(model: ir.Model) -> str:
    """Of the nodes and constants of a model."""
    result, graph = hashlib.sha256(), onnxruntime.message(model).graph
    for part in (*graph.node, *graph.initializer):
        result.update(part.SerializeToString(deterministic=True))
    return result.hexdigest()


def _known() -> Mapping[str, Sequence[str]]:
    """Names of what there is to choose from, and of what makes the normal form."""
    lacking = [family.family for family in Format.families if family.lacks()]
    return {
        **({"lacking": lacking} if lacking else {}),
        "formats": [str(form) for family in Format.families for form in family.members()],
        "rewrites": [rewrite.name for rewrite in default_rewrites()],
        "kernels": [operator.name for operator in OPERATORS.values() if operator.kernels or operator.moves],
    }


def stored_notes(entry: Entry, *, everything: bool = False) -> list[Note]:
    """Read the notes on what was measured, or all of them, those of earlier steps first."""
    notes = [Note(step, subject, text, Level(level)) for step, subject, text, level in entry.document["notes"]]
    return notes if everything else notes[len(notes) - entry.document["own_notes"] :]


def write_inputs(folder: Path, prepared: CanonicalModel) -> None:
    """Write the model and the samples that were measured, for `recall`."""
    _save(prepared.model, folder, MODEL)
    if prepared.whole is not None:
        _save(prepared.whole, folder, WHOLE)
    prepared.samples.save(folder / SAMPLES)
    if prepared.judging is not None:
        prepared.judging.save(folder / JUDGING)


def _save(model: ir.Model, folder: Path, name: str) -> None:
    external = None if fits_in_memory(weight_bytes(model)) else Path(name).with_suffix(".data").name
    ir.save(model, folder / name, external_data=external)


def _load(folder: Path, name: str) -> ir.Model:
    model = ir.load(folder / name)
    hold_external(model, folder, mapped=True)
    return model
