"""The native library of a compile, where one is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ptqc.codegen.tvm.target import build
from ptqc.errors import TargetError
from ptqc.execute.onnxruntime import Feeds
from ptqc.options import TargetOptions
from ptqc.plan import write_json
from ptqc.progress import Progress
from ptqc.stages.fit import Fitted

FOLDER = "cpu"


@dataclass(frozen=True)
class Targets:
    """files: for the artifact, by path. documents: what the manifest says of each target."""

    files: Mapping[str, bytes]
    documents: Mapping[str, Mapping[str, Any]]


def check_target(options: TargetOptions) -> None:
    """Refuse before any work what cannot be built here. Raises TargetError."""
    if options.target is not None and not options.allow_missing_target and find_spec("tvm") is None:
        raise TargetError("--target cpu needs Apache TVM: pip install 'ptqc[tvm]', or --allow-missing-target")


def build_targets(fitted: Fitted, samples: Sequence[Feeds], options: TargetOptions, progress: Progress) -> Targets:
    """The library of the fitted plan, verified against the exported file.

    Raises TargetError when it cannot be built and may not be missing; VerificationError when it computes anything else.
    """
    if options.target is None:
        return Targets({}, {})
    try:
        with progress.stage("native library"):
            native = build(fitted.lowered, fitted.exported, samples, options.cpu)
    except TargetError as error:
        if not options.allow_missing_target:
            raise
        return Targets({}, {FOLDER: {"missing": str(error)}})
    interface = write_json(dict(native.interface)).encode()
    files = {f"{FOLDER}/model.so": native.library, f"{FOLDER}/interface.json": interface}
    document = {**native.report, "bytes": len(native.library), "isa": native.interface["isa"]}
    return Targets(files, {FOLDER: {**document, "cpu_features": native.interface["features"]}})
