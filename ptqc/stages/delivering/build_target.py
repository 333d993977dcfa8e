"""What a target builds of a compile, where one is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.codegen.targets import Chosen
from ptqc.errors import TargetError
from ptqc.execute.onnxruntime import Feeds
from ptqc.stages.fit import Fitted
from ptqc.store.entries import Store
from ptqc.work.progress import Progress


@dataclass(frozen=True)
class BuiltTargets:
    """files: for the artifact, by their place in it. documents: what the manifest says of each target."""

    files: Mapping[str, Path]
    documents: Mapping[str, Mapping[str, Any]]


def check_target(chosen: Chosen | None) -> None:
    """Refuse before any work what cannot be built here. Raises TargetError, or UsageError for what is not known."""
    if chosen is None:
        return
    chosen.target.check_options(chosen.options)
    if not chosen.may_be_missing:
        try:
            chosen.target.check_present()
        except TargetError as error:
            raise TargetError(f"{error}, or --allow-missing-target") from error


def check_samples(chosen: Chosen | None, samples: Samples, model: ir.Model) -> None:
    """Raises TargetError where they differ in size, and a target is built that may not be missing."""
    if chosen is not None and not chosen.may_be_missing:
        chosen.target.check_sizes(samples.row_shapes, model)


def build_target(
    fitted: Fitted, samples: Sequence[Feeds], chosen: Chosen | None, store: Store, scratch: Path, progress: Progress
) -> BuiltTargets:
    """The native library of the fitted plan, verified against the exported file.

    scratch: where its files stay until they are delivered. Raises TargetError when it cannot be built and may not be
    missing; VerificationError when it computes anything else.
    """
    if chosen is None:
        return BuiltTargets({}, {})
    name, folder = chosen.name, scratch / "target"
    folder.mkdir()
    try:
        with progress.stage("native library") as stage:
            native = chosen.target.build(
                fitted.lowered, fitted.exported, samples, chosen.options, store.folder, folder, stage
            )
    except TargetError as error:
        if not chosen.may_be_missing:
            raise
        return BuiltTargets({}, {name: {"missing": str(error)}})
    return BuiltTargets({f"{name}/{file}": path for file, path in native.files.items()}, {name: native.document})
