"""Samples that choose nothing: a budget of loss is judged on them."""

from dataclasses import replace
from pathlib import Path

from ptqc.budget import LossBudget
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.recording import with_recorded
from ptqc.calibration.runnable import check_runs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError
from ptqc.frontend import ModelSource
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.loss.criteria import samples_necessary, samples_wanted
from ptqc.passes.quantize.prepare import SYNTHETIC, Prepared, gather
from ptqc.utils.progress import Progress

# One in JUDGING judges, where there are no more samples than are measured on.
JUDGING = 4


def gather_apart(
    source: ModelSource,
    calibration: object,
    folder: Path,
    options: CompileOptions,
    preprocessing: Preprocessing | None,
    budget: LossBudget | None,
    progress: Progress,
) -> tuple[Samples, Samples | None]:
    """The samples that are measured on, and with a budget of loss others that judge. Raises CalibrationError."""
    wanted = samples_wanted(budget)
    limit = options.samples + wanted
    samples = gather(source, calibration, folder, limit, preprocessing, progress, options.seed)
    if budget is None or not wanted:
        return samples, None
    measured, judging = _set_aside(samples, options.samples, samples_necessary(budget))
    check_runs(source.model, judging)
    told = f"{len(judging)} of the samples choose nothing: they judge the budget {budget}"
    notes = [*samples.notes, Note("calibrate", "", told)]
    if isinstance(calibration, str) and calibration == SYNTHETIC:
        message = f"the budget {budget} is judged on drawn samples, and says nothing of real ones"
        notes.append(Note("calibrate", "", message, Level.WARNING))
    return replace(measured, notes=tuple(notes)), judging


def with_judges(
    prepared: Prepared,
    calibration: object,
    folder: Path,
    preprocessing: Preprocessing | None,
    budget: LossBudget | None,
) -> Prepared:
    """What an earlier compile prepared, with other samples that judge. Raises CalibrationError."""
    limit = samples_wanted(budget) + len(prepared.samples)
    batches = OpenBatches(prepared.model)
    given = collect(calibration, input_specs(prepared.model), folder, limit, preprocessing, rows=batches)
    given = with_recorded(prepared.model, given, folder / "recorded")
    check_runs(prepared.model, given)
    return replace(prepared, judging=_fresh(given, prepared.samples))


def _set_aside(samples: Samples, most: int, necessary: int) -> tuple[Samples, Samples]:
    """The samples that are measured on, and those that only judge: what is over `most`, or a quarter of all.

    necessary: how few judges could show anything; they get as many where that leaves half of all for measuring.
    Judges are spread evenly; one that is also measured on is left out. Raises CalibrationError where there are too few.
    """
    count = len(samples)
    judges = max(count - most, count // JUDGING, 2)
    if judges < necessary <= count // 2:
        judges = necessary
    if count - judges < 2:
        raise CalibrationError(
            f"{count} calibration samples were given; a loss budget needs at least 4, since two of them only judge the "
            "result, and preferably some hundreds"
        )
    aside = {(2 * i + 1) * count // (2 * judges) for i in range(judges)}
    measured = samples.select([i for i in range(count) if i not in aside])
    return measured, _fresh(samples.select(sorted(aside)), measured)


def _fresh(samples: Samples, measured: Samples) -> Samples:
    """The samples that are not among those that are measured on. Raises CalibrationError where fewer than two are."""
    known = {record.sha256 for record in measured.records}
    found = samples.select([i for i, record in enumerate(samples.records) if record.sha256 not in known])
    if len(found) < 2:
        raise CalibrationError(
            f"only {len(found)} of {len(samples)} samples differ from those that were measured on and can judge a loss "
            "budget; give at least 2, and preferably some hundreds"
        )
    return found
