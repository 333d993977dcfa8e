"""ptqc: a post-training quantization compiler for ONNX models.

    artifact = ptqc.compile("model.onnx", budget="13%", calibration="images/", output="out")
    outputs = artifact.run({"input": x})

Heavy libraries are imported when a function that needs them is called.
"""

from typing import TYPE_CHECKING, Any

from ptqc.version import __version__

__all__ = ["Artifact", "__version__", "bench", "bisect", "compile", "inspect", "load", "reduce", "resolve", "verify"]

if TYPE_CHECKING:
    from ptqc.artifact import Artifact, load
    from ptqc.compiler import compile, resolve
    from ptqc.reducing import reduce
    from ptqc.stages.bench import bench
    from ptqc.stages.bisect import bisect
    from ptqc.stages.inspecting import inspect
    from ptqc.stages.verify_artifact import verify

_HOMES = {
    "Artifact": "ptqc.artifact",
    "load": "ptqc.artifact",
    "compile": "ptqc.compiler",
    "resolve": "ptqc.compiler",
    "inspect": "ptqc.stages.inspecting",
    "reduce": "ptqc.reducing",
    "bench": "ptqc.stages.bench",
    "bisect": "ptqc.stages.bisect",
    "verify": "ptqc.stages.verify_artifact",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ptqc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
