"""Small networks with every kind of output, and their float outputs on a few samples."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from graphs import noise, parse

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.losses import OutputKind, OutputLoss, recognize

COUNT = 12


def references(model: ir.Model, feeds: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
    runner = Runner(model)
    return [runner.run(one) for one in feeds]


def kinds(
    text: str, feeds: Sequence[Feeds], asked: str | Mapping[str, str] = "auto", /, **constants: np.ndarray
) -> dict[str, OutputKind]:
    """What the outputs of a graph in text form are taken for."""
    model = parse(text, **constants)
    return recognize(model, feeds[0], references(model, feeds), asked)


def inputs(*shape: int, count: int = COUNT, scale: float = 1.0, name: str = "x") -> list[Feeds]:
    return [{name: noise(*shape, seed=seed, scale=scale)} for seed in range(count)]


def fitted(kind: OutputKind, *values: np.ndarray) -> OutputLoss:
    """The loss of one output `y` of a kind."""
    return OutputLoss.of({"y": kind}, [{"y": value} for value in values])


def loss(measure: OutputLoss, reference: np.ndarray, quantized: np.ndarray) -> float:
    return measure({"y": reference}, {"y": quantized})
