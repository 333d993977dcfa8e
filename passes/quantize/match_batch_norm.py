"""Drawn samples matched to what a model's batch normalizations stored of its training data."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.nodes import constant, input_of, is_batchable, nodes_of, static
from ptqc.utils.progress import Progress

SAMPLES = 64
STEPS = 40
WORK = 1e12  # multiplications of all forward runs: about a minute on 2 cores
MEMORY = 1 << 30  # bytes of convolution outputs that one batch may keep for its gradient


@dataclass(frozen=True)
class _Cost:
    """What one sample costs: multiplications, and bytes of the outputs of convolutions."""

    multiplications: float
    bytes: float


def problem(model: ir.Model) -> str | None:
    """Why samples cannot be matched to the model's batch normalizations; None if they can, or if it has none."""
    if not has_statistics(model):
        return None
    specs = input_specs(model)
    if len(specs) != 1 or specs[0].dtype != np.float32:
        return "the model has other inputs than one of float32"
    if not is_batchable(model):
        return "the model does not take batches"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (`pip install 'ptqc[torch]'`)"
    return None


def has_statistics(model: ir.Model) -> bool:
    """Whether the model has batch normalizations with constant statistics."""
    return any(constant(node.inputs[4]) is not None for node in nodes_of(model, "BatchNormalization"))


def match(model: ir.Model, feeds: Sequence[Feeds], progress: Progress) -> tuple[Sequence[Feeds], str]:
    """The samples improved, none where the model does not let them, and a remark on it.

    model: in normal form but for its batch normalizations, in which `problem` finds nothing.
    """
    cost = _cost(model, feeds[0])
    steps = int(min(STEPS, WORK / (len(feeds) * cost.multiplications)))
    if steps == 0:
        return (), "not matched to batch normalization: the model is too large for that"
    size = int(np.clip(MEMORY / cost.bytes, 1, len(feeds)))
    groups = [feeds[start : start + size] for start in range(0, len(feeds), size)]
    try:
        with progress.stage("match batch normalization", steps * len(groups)) as stage:
            found = [_matched(model, group, steps, stage.advance) for group in groups]
    except Unsupported as error:
        return (), f"not matched to batch normalization: {error}"
    before, after = (np.mean([errors[i] for _, errors in found]) for i in (0, 1))
    improved = [sample for group, _ in found for sample in group]
    return improved, (
        f"{len(feeds)} samples matched to the batch normalizations in {steps} steps: "
        f"squared error of their statistics, in variances, {before:.2g} -> {after:.2g}"
    )


def _matched(
    model: ir.Model, group: Sequence[Feeds], steps: int, done: Callable[[], None]
) -> tuple[list[Feeds], tuple[float, float]]:
    from ptqc.execution.torch.distill import distill

    name = next(iter(group[0]))
    found = distill(model, np.concatenate([feeds[name] for feeds in group]), steps, done)
    return [{name: part} for part in np.split(found.batch, len(group))], (found.before, found.after)


def _cost(model: ir.Model, feeds: Feeds) -> _Cost:
    weights = {str(node.outputs[0].name): static(input_of(node, 1)) for node in nodes_of(model, "Conv")}
    taps = {name: float(np.prod(shape[1:])) for name, shape in weights.items() if shape is not None}
    outputs = Runner(model, list(taps)).run(feeds, list(taps)) if taps else {}
    multiplications = sum(outputs[name].size * taps[name] for name in taps)
    return _Cost(max(multiplications, 1.0), float(max(sum(x.nbytes for x in outputs.values()), 1)))
