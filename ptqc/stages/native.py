"""What a target builds of a compile, where one is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptqc.calibration.samples import Samples
from ptqc.codegen.targets import target_named
from ptqc.errors import TargetError
from ptqc.execute.onnxruntime import Feeds
from ptqc.options import TargetOptions
from ptqc.stages.fit import Fitted
from ptqc.store.entries import Store
from ptqc.work.progress import Progress


@dataclass(frozen=True)
class Targets:
    """files: for the artifact, by path. documents: what the manifest says of each target."""

    files: Mapping[str, bytes]
    documents: Mapping[str, Mapping[str, Any]]


def check_target(options: TargetOptions) -> None:
    """Refuse before any work what cannot be built here. Raises TargetError, or UsageError for what is not known."""
    if options.target is None:
        return
    target = target_named(options.target)
    target.check_options(options)
    if not options.allow_missing_target:
        try:
            target.check_present()
        except TargetError as error:
            raise TargetError(f"{error}, or --allow-missing-target") from error


def check_samples(options: TargetOptions, samples: Samples) -> None:
    """Raises TargetError where they differ in size, and a target is built that may not be missing."""
    if options.target is not None and not options.allow_missing_target:
        target_named(options.target).check_sizes(samples.row_shapes)


def build_targets(
    fitted: Fitted, samples: Sequence[Feeds], options: TargetOptions, store: Store, progress: Progress
) -> Targets:
    """The native library of the fitted plan, verified against the exported file.

    Raises TargetError when it cannot be built and may not be missing; VerificationError when it computes anything else.
    """
    name = options.target
    if name is None:
        return Targets({}, {})
    try:
        with progress.stage("native library"):
            native = target_named(name).build(fitted.lowered, fitted.exported, samples, options, store.folder)
    except TargetError as error:
        if not options.allow_missing_target:
            raise
        return Targets({}, {name: {"missing": str(error)}})
    return Targets({f"{name}/{file}": data for file, data in native.files.items()}, {name: native.document})
