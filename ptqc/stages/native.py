"""The native library of a compile, where one is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptqc.artifact import NATIVE
from ptqc.calibration.samples import Samples
from ptqc.codegen.cpu import target
from ptqc.codegen.cpu.isa import several
from ptqc.codegen.cpu.table import Request
from ptqc.errors import TargetError
from ptqc.execute.onnxruntime import Feeds
from ptqc.native.interface import WEIGHTS
from ptqc.options import TargetOptions
from ptqc.progress import Progress
from ptqc.stages.fit import Fitted
from ptqc.store import Store


@dataclass(frozen=True)
class Targets:
    """files: for the artifact, by path. documents: what the manifest says of each target."""

    files: Mapping[str, bytes]
    documents: Mapping[str, Mapping[str, Any]]


def check_target(options: TargetOptions) -> None:
    """Refuse before any work what cannot be built here. Raises TargetError, or UsageError for an unknown tuning."""
    if options.target is None:
        return
    _check_tuning(options)
    if not options.allow_missing_target:
        try:
            target.check_present()
        except TargetError as error:
            raise TargetError(f"{error}, or --allow-missing-target") from error


def check_samples(options: TargetOptions, samples: Samples) -> None:
    """Raises TargetError where they differ in size, and a target is built that may not be missing."""
    if options.target is not None and not options.allow_missing_target:
        target.check_sizes(samples.row_shapes)


def _check_tuning(options: TargetOptions) -> None:
    """Raises UsageError or TargetError where kernels cannot be timed here, or there is no such record."""
    if Request.of(options.tune).level is None:
        return
    refusals = [isa.refusal() for isa in several(options.cpu)]
    if found := next(filter(None, refusals), None):
        raise TargetError(f"tuning runs the kernels on this machine, but {found}; compile without it, or there")


def build_targets(
    fitted: Fitted, samples: Sequence[Feeds], options: TargetOptions, store: Store, progress: Progress
) -> Targets:
    """The library of the fitted plan, verified against the exported file.

    Raises TargetError when it cannot be built and may not be missing; VerificationError when it computes anything else.
    """
    if options.target is None:
        return Targets({}, {})
    try:
        with progress.stage("native library"):
            tuning, folder = Request.of(options.tune), store.folder
            native = target.build(fitted.lowered, fitted.exported, samples, options.cpu, folder, tuning)
    except TargetError as error:
        if not options.allow_missing_target:
            raise
        return Targets({}, {NATIVE: {"missing": str(error)}})
    files = {f"{NATIVE}/{name}": data for name, data in native.files.items()}
    document = {"weights_bytes": len(native.files[WEIGHTS]), "libraries": native.reports}
    return Targets(files, {NATIVE: document})
