"""The API as an application uses it: `mypy tests/typed_use.py` accepts it, and finds what is marked as wrong."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir

import ptqc
from ptqc.artifact.folder import Artifact, KeptBudgets


def right(model: onnx.ModelProto, other: onnx_ir.Model, feeds: Mapping[str, np.ndarray]) -> list[object]:
    """Every way to give a model and a budget."""
    ptqc.compile("net.onnx", calibration="images", output="out", budget=0.13, samples=64, bits=(4, 8), strict=True)
    ptqc.compile(other, calibration="images", output="out", budget=200_000, loss="auto")
    artifact: Artifact = ptqc.compile(model, calibration=feeds, output="out", budget=["12 MB", "2ms"])
    kept: KeptBudgets = artifact.kept_budgets
    latency: bool | None = kept.latency
    outputs: list[object] = artifact.session().run(None, feeds)
    return [*outputs, artifact.session().get_modelmeta(), latency]


def wrong() -> None:
    """What was misspelled, or has another type."""
    ptqc.compile("net.onnx", calibration="images", output="out", sampels=64)  # type: ignore[call-arg]
    ptqc.compile("net.onnx", calibration="images", output="out", samples="64")  # type: ignore[arg-type]
    ptqc.compile("net.onnx", calibration="images", output="out", pipeline="heavy")  # type: ignore[arg-type]
    ptqc.resolve("out", output="small", budget={"size": 3})  # type: ignore[arg-type]
    ptqc.load("out").session().run(3)  # type: ignore[call-arg, arg-type]
