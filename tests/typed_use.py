"""The API as an application uses it: `mypy tests/typed_use.py` accepts it, and finds what is marked as wrong."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir

import ptqc


def right(model: onnx.ModelProto, other: onnx_ir.Model, feeds: Mapping[str, np.ndarray]) -> list[object]:
    """Every way to give a model and a budget."""
    ptqc.compile("net.onnx", calibration="images", output="out", budget=0.13, samples=64, bits=(4, 8), strict=True)
    ptqc.compile(other, calibration="images", output="out", budget=200_000, loss="auto")
    artifact: ptqc.Artifact = ptqc.compile(model, calibration=feeds, output="out", budget=["12 MB", "2ms"])
    kept: dict[str, bool] = {budget.kind: budget.kept for budget in artifact.budgets}
    outputs: list[object] = artifact.session().run(None, feeds)
    return [*outputs, artifact.session().get_modelmeta(), kept]


def measured(artifact: ptqc.Artifact) -> list[float | int | str | None]:
    """What a compile reports of its file."""
    result: list[float | int | str | None] = [artifact.size, *(budget.value for budget in artifact.budgets)]
    for output in artifact.outputs:
        share: float | None = output.top1_agreement
        result += [output.name, output.judged_as, share, output.loss, output.loss_unit, output.sqnr_db]
        result += [figure.value for figure in output.figures]
    score: ptqc.Score | None = artifact.score
    if score is not None:
        result += [score.title, score.float_score, score.compiled_score, score.difference]
    latency: ptqc.Latency | None = artifact.latency
    if latency is not None:
        result += [latency.float_ms, latency.compiled_ms, latency.speedup, latency.low, latency.high, latency.batch]
    warnings: tuple[ptqc.Note, ...] = artifact.warnings
    return [*result, *(note.message for note in warnings)]


def helpers(progress: ptqc.Progress) -> None:
    """What is passed to a compile, by the names that `import ptqc` gives."""
    corpus = ptqc.Texts(["red green"], "tokenizer.json", length=32)
    images = ptqc.Preprocessing(resize=256, crop=224, mean=0.5)
    boxes = ptqc.Detector(boxes="xyxy")
    try:
        ptqc.compile("net.onnx", calibration=corpus, output="out", preprocessing=images, detector=boxes)
        ptqc.resolve("out", output="small", budget="10%", progress=progress, pipeline="light")
        ptqc.sweep("out", progress=ptqc.Lines())
    except ptqc.errors.Infeasible as error:
        print(error.smallest, error.exit_code)


def wrong() -> None:
    """What was misspelled, or has another type."""
    ptqc.compile("net.onnx", calibration="images", output="out", sampels=64)  # type: ignore[call-arg]
    ptqc.compile("net.onnx", calibration="images", output="out", samples="64")  # type: ignore[arg-type]
    ptqc.compile("net.onnx", calibration="images", output="out", pipeline="heavy")  # type: ignore[arg-type]
    ptqc.resolve("out", output="small", budget={"size": 3})  # type: ignore[arg-type]
    ptqc.load("out").session().run(3)  # type: ignore[call-arg, arg-type]
    ptqc.load("out").size = 3  # type: ignore[misc]
    print(ptqc.load("out").score.compiled_score)  # type: ignore[union-attr]
