"""What a target builds of a compile, where one is asked for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.codegen.targets import Chosen, TargetInput, TargetOutput
from ptqc.errors import TargetError, UsageError
from ptqc.passes.allocate.fit import VERIFIED_SAMPLES
from ptqc.passes.allocate.state import CompileState, QuantizedModel
from ptqc.utils.progress import Progress, Stage
from ptqc.utils.store import Store


@dataclass(frozen=True)
class BuiltTargets:
    """files: for the artifact, by their place in it. documents: what the manifest says of each target.

    chosen: the target that was asked for.
    """

    files: Mapping[str, Path]
    documents: Mapping[str, Mapping[str, Any]]
    chosen: Chosen | None = None


def check_target(chosen: Chosen | None) -> None:
    """Refuse before any work what cannot be built here. Raises TargetError, or UsageError for what is not known."""
    if chosen is None:
        return
    if chosen.may_be_missing:
        with suppress(TargetError):  # told in its place
            chosen.target.check_options(chosen.options)
        return
    with needed(chosen):
        chosen.target.check_options(chosen.options)
        chosen.target.check_present()


def check_samples(chosen: Chosen | None, samples: Samples, model: ir.Model) -> None:
    """Raises TargetError where they differ too much in size, and a target is built that may not be missing."""
    if chosen is not None and not chosen.may_be_missing:
        with needed(chosen):
            chosen.target.check_sizes(samples.of_main_size().row_shapes, model)


@contextmanager
def needed(chosen: Chosen) -> Iterator[None]:
    """Where a target that may not be missing cannot be built, the error says how to do without it, if that works."""
    try:
        yield
    except TargetError as error:
        if chosen.has_budgets:
            raise
        raise type(error)(f"{error}; --allow-missing-target delivers the rest") from error


def build_target(
    fitted: QuantizedModel, job: CompileState, chosen: Chosen | None, store: Store, scratch: Path, progress: Progress
) -> BuiltTargets:
    """What a target makes of the fitted plan, verified against the exported file on a few samples held back.

    Where the target takes one size only, it is that of most samples. scratch: where its files stay until they are
    delivered. Raises TargetError when it cannot be built and may not be missing; VerificationError when it computes
    anything else.
    """
    if chosen is None:
        return BuiltTargets({}, {})
    build = partial(_built, fitted, job, chosen, store, scratch, progress)
    if not chosen.may_be_missing:
        with needed(chosen):
            return build()
    try:
        return build()
    except TargetError as error:
        return BuiltTargets({}, {chosen.name: {"missing": str(error)}}, chosen)


def _built(
    fitted: QuantizedModel, job: CompileState, chosen: Chosen, store: Store, scratch: Path, progress: Progress
) -> BuiltTargets:
    with progress.stage(f"target {chosen.name}") as stage:
        try:
            output = _of_main_size(fitted, job, chosen, store, scratch, stage)
        except UsageError as error:  # what a library refuses when it is run, the target refuses
            raise TargetError(str(error)) from error
    files = {f"{chosen.name}/{file}": path for file, path in output.files.items()}
    return BuiltTargets(files, {chosen.name: output.document}, chosen)


def _of_main_size(
    fitted: QuantizedModel, job: CompileState, chosen: Chosen, store: Store, scratch: Path, stage: Stage
) -> TargetOutput:
    samples = job.analysis.held_back
    main = samples.of_main_size()
    try:
        return _of_sizes(fitted, job, samples, chosen, store, scratch / "target", stage)
    except TargetError as error:
        if len(main) == len(samples):
            raise
        reason = f"built for the size of {len(main)} of {len(samples)} held-back samples: {error}"
    output = _of_sizes(fitted, job, main, chosen, store, scratch / "of_main_size", stage)
    return replace(output, document={**output.document, "fixed_sizes": reason})


def _of_sizes(
    fitted: QuantizedModel,
    job: CompileState,
    samples: Samples,
    chosen: Chosen,
    store: Store,
    folder: Path,
    stage: Stage,
) -> TargetOutput:
    folder.mkdir()
    probes = list(samples.few(VERIFIED_SAMPLES))
    tuning, kinds, runtime = job.analysis.tuning, job.analysis.kinds, job.options.runtime
    source = TargetInput(fitted.lowered, fitted.exported, probes, tuning, job.model, kinds, runtime)
    return chosen.target.build(source, chosen.options, store.folder, folder, stage)
