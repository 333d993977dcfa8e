"""ptqc: a post-training quantization compiler for ONNX models.

    artifact = ptqc.compile("model.onnx", budget="13%", calibration="images/", output="out")
    outputs = artifact.run({"input": x})

Heavy libraries are imported when a function that needs them is called. `from ptqc import *` hides Python's own
`compile`: write `import ptqc`.
"""

from typing import TYPE_CHECKING, Any

from ptqc.utils.version import __version__

__all__ = [
    "Artifact",
    "BudgetResult",
    "Case",
    "CompileOptions",
    "Detector",
    "ExpandedModel",
    "Latency",
    "Lines",
    "Metric",
    "Note",
    "OutputAgreement",
    "Preprocessing",
    "Progress",
    "Score",
    "Stage",
    "Texts",
    "__version__",
    "bench",
    "bisect",
    "compare",
    "compile",
    "errors",
    "evaluate",
    "expand",
    "from_torch",
    "inspect",
    "load",
    "reduce",
    "resolve",
    "run",
    "sweep",
    "verify",
]

if TYPE_CHECKING:
    from ptqc import errors
    from ptqc.api import compile, resolve
    from ptqc.artifact.bisect import bisect
    from ptqc.artifact.expand import expand
    from ptqc.artifact.expanded import ExpandedModel
    from ptqc.artifact.folder import Artifact, load
    from ptqc.artifact.results import BudgetResult, Latency, OutputAgreement, Score
    from ptqc.artifact.verify import verify
    from ptqc.calibration.images import Preprocessing
    from ptqc.calibration.texts import Texts
    from ptqc.evaluation.detection.detector import Detector
    from ptqc.frontend.in_memory import from_torch
    from ptqc.notes import Note
    from ptqc.options import CompileOptions
    from ptqc.tools.benching import bench
    from ptqc.tools.comparing import compare
    from ptqc.tools.evaluating import evaluate
    from ptqc.tools.evaluating.metric import Case, Metric
    from ptqc.tools.inspecting import inspect
    from ptqc.tools.reduce import reduce
    from ptqc.tools.running import run
    from ptqc.tools.sweep import sweep
    from ptqc.utils.progress import Lines, Progress, Stage

_HOMES = {
    "Artifact": "ptqc.artifact.folder",
    "load": "ptqc.artifact.folder",
    "BudgetResult": "ptqc.artifact.results",
    "Latency": "ptqc.artifact.results",
    "OutputAgreement": "ptqc.artifact.results",
    "Score": "ptqc.artifact.results",
    "ExpandedModel": "ptqc.artifact.expanded",
    "Note": "ptqc.notes",
    "CompileOptions": "ptqc.options",
    "Preprocessing": "ptqc.calibration.images",
    "Texts": "ptqc.calibration.texts",
    "Detector": "ptqc.evaluation.detection.detector",
    "Metric": "ptqc.tools.evaluating.metric",
    "Case": "ptqc.tools.evaluating.metric",
    "Lines": "ptqc.utils.progress",
    "Progress": "ptqc.utils.progress",
    "Stage": "ptqc.utils.progress",
    "compile": "ptqc.api",
    "resolve": "ptqc.api",
    "from_torch": "ptqc.frontend.in_memory",
    "inspect": "ptqc.tools.inspecting",
    "reduce": "ptqc.tools.reduce",
    "run": "ptqc.tools.running",
    "sweep": "ptqc.tools.sweep",
    "bench": "ptqc.tools.benching",
    "compare": "ptqc.tools.comparing",
    "evaluate": "ptqc.tools.evaluating",
    "bisect": "ptqc.artifact.bisect",
    "expand": "ptqc.artifact.expand",
    "verify": "ptqc.artifact.verify",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "errors":
        return import_module("ptqc.errors")
    raise AttributeError(f"module 'ptqc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
