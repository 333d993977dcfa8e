"""Everything that is measured once per model and calibration set, and then serves every budget."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ptqc.calibration.samples import Samples
from ptqc.errors import UsageError
from ptqc.execute.onnxruntime import fits_in_memory, weight_bytes
from ptqc.graph.external import hold_external
from ptqc.notes import Level, Note, is_cut_short
from ptqc.options import CompileOptions
from ptqc.passes.base import Pass
from ptqc.passes.decide import measurements
from ptqc.passes.decide.phases import Decided, Setting
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.effects import applied
from ptqc.passes.schedule import decide
from ptqc.stages.prepare import Origin, Prepared
from ptqc.stages.stored_weights import StoredWeights
from ptqc.store.entries import Entry, Store, digest
from ptqc.version import __version__
from ptqc.work.deadline import NEVER, Deadline
from ptqc.work.progress import Progress

MODEL, SAMPLES = "model.onnx", "samples"
# Raised when what is measured, or how, changes, so that old entries are not taken for new ones.
MEASUREMENT_VERSION = 17
# Options that measuring does not look at.
FITTING = ("pipeline", "time_limit", "float_layers", "inline")
# Options that solving the weights does not look at either.
LATER = (*FITTING, "observer", "loss", "activations", "activation_limit", "allow_8bit")

Before = TypeVar("Before", bound=Setting)
After = TypeVar("After", bound=Setting)


def measure(
    prepared: Prepared,
    options: CompileOptions,
    store: Store,
    progress: Progress,
    deadline: Deadline = NEVER,
    dump: Dump = NO_DUMP,
) -> tuple[Decided, list[Note], str]:
    """What was decided, the notes on it, and the name of its store entry; from the store where it is there already.

    What was cut short is not taken for the whole by a later compile: it is stored under a key of its own.
    """
    key = _key("measure", prepared, options, FITTING)
    shelf = StoredWeights(store, _key("solve-weights", prepared, options, LATER), prepared.model)
    entry = store.get(key)
    if entry is not None and (candidates := shelf.open(entry.document["candidates"])) is not None:
        setting = _setting(prepared, options, progress)
        return (
            measurements.unpack(setting, entry.document["measurements"], candidates),
            _notes(entry),
            entry.folder.name,
        )
    run = _Run(deadline, dump)
    decided, notes = decide(_setting(prepared, options, progress), options, shelf, run), run.notes
    stored: dict[str, Any] = {
        "measurements": measurements.pack(decided),
        "candidates": [shelf.names[weight.name] for weight in decided.weights if weight.name in shelf.names],
        "origin": asdict(prepared.origin),
        "options": options.to_json(),
        "batchable": prepared.samples.batchable,
        "notes": [[note.step, note.subject, note.message, note.level] for note in (*prepared.notes, *notes)],
        "own_notes": len(notes),
    }
    if is_cut_short(notes):
        key = {**key, "cut_short": digest(stored)}
    name = store.put(key, stored, {}, lambda folder: _write_files(folder, prepared))
    # Without what only measuring needs, as from the store.
    setting = _setting(prepared, options, progress)
    return measurements.unpack(setting, stored["measurements"], [decided.candidates]), notes, name


class _Run:
    """Runs passes within a deadline; what each made is dumped, its notes are kept."""

    def __init__(self, deadline: Deadline, dump: Dump) -> None:
        self.deadline, self.dump, self.notes = deadline, dump, list[Note]()

    def __call__(self, step: Pass[Before, After], given: Before, share: float) -> After:
        """See `ptqc.passes.schedule.RunPass`."""
        result = applied(step, replace(given, deadline=self.deadline.share(share)))
        self.notes.extend(result.notes)
        self.dump.document(step.name, measurements.overview(result.made))
        return result.made


def recall(store: Store, name: str, progress: Progress) -> tuple[Prepared, Decided, CompileOptions, list[Note]]:
    """What an earlier compile measured, by entry name. Raises UsageError when the store does not hold it."""
    entry = store.open(name)
    if entry is None:
        raise _gone(store)
    stored = entry.document
    samples = Samples.open(entry.folder / SAMPLES)
    model = ir.load(entry.folder / MODEL)
    hold_external(model, entry.folder, mapped=True)
    options = CompileOptions.of({**stored["options"], "bits": tuple(stored["options"]["bits"])})
    notes = _notes(entry, everything=True)
    own = len(notes) - stored["own_notes"]
    prepared = Prepared(model, _batchable(samples, stored["batchable"]), Origin(**stored["origin"]), tuple(notes[:own]))
    candidates = StoredWeights(store, {}, model).open(stored["candidates"])
    if candidates is None:
        raise _gone(store)
    decided = measurements.unpack(_setting(prepared, options, progress), stored["measurements"], candidates)
    return prepared, decided, options, notes[own:]


def _gone(store: Store) -> UsageError:
    return UsageError(
        f"the measurements of this artifact are not in the store {store.folder} (any more). "
        "Run `ptqc compile` with the model and its calibration data again, or name the store with --cache"
    )


def _setting(prepared: Prepared, options: CompileOptions, progress: Progress) -> Setting:
    return Setting.of(prepared.model, prepared.tuning, prepared.held_back, seed=options.seed, progress=progress)


def _batchable(samples: Samples, flag: bool) -> Samples:
    return Samples(samples.directory, samples.records, samples.notes, flag)


def _key(step: str, prepared: Prepared, options: CompileOptions, ignored: Collection[str]) -> Mapping[str, Any]:
    return {
        "step": step,
        "version": [__version__, MEASUREMENT_VERSION],
        "libraries": {"onnxruntime": ort.__version__, "numpy": np.__version__, "onnx_ir": ir.__version__},
        "model": prepared.origin.digest,
        "calibration": prepared.samples.digest,
        "options": {name: value for name, value in options.to_json().items() if name not in ignored},
    }


def _notes(entry: Entry, *, everything: bool = False) -> list[Note]:
    notes = [Note(step, subject, text, Level(level)) for step, subject, text, level in entry.document["notes"]]
    return notes if everything else notes[len(notes) - entry.document["own_notes"] :]


def _write_files(folder: Path, prepared: Prepared) -> None:
    external = None if fits_in_memory(weight_bytes(prepared.model)) else "model.data"
    ir.save(prepared.model, folder / MODEL, external_data=external)
    prepared.samples.save(folder / SAMPLES)
