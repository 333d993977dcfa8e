"""Everything that is measured once per model and calibration set, for all budgets; kept in the store.

Calibration, per-layer error minimization, sensitivity, and the choice of integer activations, each a pass.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from ptqc.formats.safe import Safe
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import find_caches
from ptqc.notes import Note, is_cut_short
from ptqc.options import CompileOptions, Phase
from ptqc.passes.allocate.choose_activations import ChooseActivations, clock_of
from ptqc.passes.allocate.problem import forms_in_float
from ptqc.passes.base import Pass
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.effects import applied
from ptqc.passes.equalize.outliers import to_json
from ptqc.passes.equalize.split import with_splits, without_unused
from ptqc.passes.quantize import measurements
from ptqc.passes.quantize.calibrate import Calibrate, CalibrateInner
from ptqc.passes.quantize.measure import StoredWeights, families_of, key_of, setting_of, stored_notes, write_inputs
from ptqc.passes.quantize.measure_curvature import MeasureCurvature
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity
from ptqc.passes.quantize.phases import Analysis, AnalysisInput
from ptqc.passes.quantize.prepare import CanonicalModel
from ptqc.passes.quantize.solve_weights import CandidateCache, SolveWeights
from ptqc.utils.deadline import NEVER, Deadline
from ptqc.utils.executors.base import Executor
from ptqc.utils.executors.threads import Threads
from ptqc.utils.progress import Progress
from ptqc.utils.store import Store, digest

# Of the time that is left, where there is a limit.
SPLITTING_SHARE = 0.1
# Of what measuring may take, the part of sensitivities.
SENSITIVITY_SHARE = 0.4

Before = TypeVar("Before", bound=AnalysisInput)
After = TypeVar("After", bound=AnalysisInput)


class Run:
    """Runs passes within a deadline; what each made is dumped, its notes are kept.

    executor: of their units of work. in_library: whether a native library is what runs, in which starting an operator
    takes no time. floor: share of the weights that have to be measured, however little time there is.
    """

    def __init__(
        self,
        deadline: Deadline = NEVER,
        dump: Dump = NO_DUMP,
        executor: Executor | None = None,
        *,
        in_library: bool = False,
        floor: float = 0.0,
    ) -> None:
        self.deadline, self.dump, self.notes = deadline, dump, list[Note]()
        self.in_library, self.floor = in_library, floor
        self.executor = executor or Threads()

    def __call__(self, step: Pass[Before, After], value: Before, share: float) -> After:
        """What a pass makes of what is known. share: what it may take of the time that is left."""
        result = applied(step, replace(value, deadline=self.deadline.share(share)))
        self.notes.extend(result.notes)
        self.dump.document(step.name, measurements.overview(result.output))
        return result.output


def analyze(
    whole: CanonicalModel,
    options: CompileOptions,
    store: Store,
    progress: Progress,
    max_bytes: int | None,
    deadline: Deadline,
    make_run: Callable[[], Run],
) -> tuple[CanonicalModel, Analysis, list[Note], str]:
    """Split outlier channels off where the rest can then compute on integers, and measure.

    It is measured again without splits that turn out unused.

    max_bytes: of the file, which a split makes larger; None: any. deadline: of the whole compile. make_run: gives what
    runs the passes, once for each split that is tried. Gives the model and the result of `measure`.
    """
    began = time.monotonic()
    prepared = with_splits(whole, options, store, progress, deadline.share(SPLITTING_SHARE), max_bytes)
    result = measure(prepared, options, store, progress, make_run())
    while (fewer := without_unused(prepared, result[0])) is not prepared:
        if not deadline.leaves(2 * (time.monotonic() - began)):
            break
        prepared, result = fewer, measure(fewer, options, store, progress, make_run())
    return prepared, *result


def measure(
    prepared: CanonicalModel, options: CompileOptions, store: Store, progress: Progress, run: Run | None = None
) -> tuple[Analysis, list[Note], str]:
    """Measure and decide what serves every budget, or take it from the store where it is there already.

    Gives what was decided, the notes on it, and the name of its entry in the store. What was cut short is not taken for
    the whole by a later compile: it is stored under a key of its own.
    """
    run = run or Run()
    only = sorted(families_of(prepared.model, options))
    families = {"families": only} if only else {}
    key = {**key_of("measure", prepared, options.until(Phase.MEASURE)), **families}
    if find_caches(prepared.model):
        key = {**key, "caches": "keep their digits"}
    if options.in_blocks and is_in_files(prepared.model):  # few weights are measured that these leave one format
        key = {**key, "operators": options.operators}
    if run.in_library:
        key = {**key, "runs": "in a library"}
    if prepared.judging is not None:
        key = {**key, "judging": prepared.judging.digest}
    solving = {**key_of("solve-weights", prepared, options.until(Phase.SOLVE)), **families}
    cache = StoredWeights(store, solving, prepared.model)
    entry = store.get(key)
    if entry is not None and (candidates := cache.open(entry.document["candidates"])) is not None:
        setting = setting_of(prepared, options, progress)
        return (
            measurements.unpack(setting, entry.document["measurements"], candidates),
            stored_notes(entry),
            entry.folder.name,
        )
    analysis, notes = _decide(setting_of(prepared, options, progress), options, cache, run), run.notes
    stored: dict[str, Any] = {
        "measurements": measurements.pack(analysis),
        "candidates": [cache.names[weight.name] for weight in analysis.weights if weight.name in cache.names],
        "origin": asdict(prepared.origin),
        "options": options.to_json(),
        "batchable": prepared.samples.batchable,
        "is_even": prepared.holds_back_first,
        "splits": to_json(prepared.remedies),
        "caches": prepared.caches,
        "notes": [[note.step, note.subject, note.message, note.level] for note in (*prepared.notes, *notes)],
        "own_notes": len(notes),
    }
    if is_cut_short(notes):
        key = {**key, "cut_short": digest(stored)}
    name = store.put(key, stored, {}, lambda folder: write_inputs(folder, prepared))
    # Without what only measuring needs, as from the store.
    setting = setting_of(prepared, options, progress)
    return measurements.unpack(setting, stored["measurements"], [analysis.candidates]), notes, name


def _decide(setting: AnalysisInput, options: CompileOptions, cache: CandidateCache, run: Run) -> Analysis:
    """The passes that decide, each with what it may take of the time that is left."""
    observed = run(Calibrate(options.observer), setting, 0.25)
    observed = run(CalibrateInner(), observed, 0.1)
    families = families_of(setting.model, options)
    more = frozenset({Safe.family} if options.allow_8bit and options.rules.saturates else ())
    solved = run(SolveWeights(options.bits, cache, options.sparsity, families, more, run.executor), observed, 0.4)
    measure = MeasureCurvature if options.sensitivity == "curvature" else MeasureSensitivity
    choices = partial(forms_in_float, options=options)
    measuring = measure(options.loss, options.activation_limit, choices, run.deadline, run.floor)
    assessed = run(measuring, solved, SENSITIVITY_SHARE)
    choose = ChooseActivations(options.activations, options.activation_limit, clock_of(options, run.in_library))
    return run(choose, assessed, 0.3)
