"""ptqc: a post-training quantization compiler for ONNX models.

    artifact = ptqc.compile("model.onnx", budget="13%", calibration="images/", output="out")
    outputs = artifact.run({"input": x})

Heavy libraries are imported when a function that needs them is called.
"""

from typing import TYPE_CHECKING, Any

from ptqc.utils.version import __version__

__all__ = [
    "Artifact",
    "Detector",
    "__version__",
    "bench",
    "bisect",
    "compare",
    "compile",
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
    from ptqc.api import compile, resolve
    from ptqc.artifact.bisect import bisect
    from ptqc.artifact.expand import expand
    from ptqc.artifact.folder import Artifact, load
    from ptqc.artifact.verify import verify
    from ptqc.evaluation.detection.detector import Detector
    from ptqc.frontend.in_memory import from_torch
    from ptqc.tools.benching import bench
    from ptqc.tools.comparing import compare
    from ptqc.tools.evaluating import evaluate
    from ptqc.tools.inspecting import inspect
    from ptqc.tools.reduce import reduce
    from ptqc.tools.running import run
    from ptqc.tools.sweep import sweep

_HOMES = {
    "Artifact": "ptqc.artifact.folder",
    "Detector": "ptqc.evaluation.detection.detector",
    "load": "ptqc.artifact.folder",
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
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ptqc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
