"""How far the outputs of a quantized model are from the float outputs, without labels.

Classifiers: KL(float ‖ quantized) in nats per prediction. Everything else: squared error per output channel relative to
that channel's variance. Both are means over predictions, so losses of layers add up to first order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.errors import ModelError

Outputs = Mapping[str, np.ndarray]

# Channels with less than this share of the mean channel variance are measured against that share instead,
# so that outputs that hardly ever move (a class that never occurs) do not decide.
VARIANCE_FLOOR = 0.05
# Loss of outputs that are NaN or infinite: more than any that is kept, and still a number that can be added up.
HOPELESS = 1e3
# Operators that leave the place of a largest score what it is.
KEEPS_LABELS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class OutputLoss:
    """Loss over named float outputs. logits: the outputs that are class scores, on their last axis.

    probabilities: of those, the ones that went through a softmax already.
    scale: per other output, the variance per channel of the float outputs.
    """

    logits: tuple[str, ...]
    probabilities: frozenset[str]
    scale: Mapping[str, np.ndarray]

    def __call__(self, reference: Outputs, quantized: Outputs) -> float:
        """Mean loss of a batch (or sample): the sum over outputs."""
        if not all(np.isfinite(quantized[name]).all() for name in (*self.logits, *self.scale)):
            return HOPELESS
        total = sum(self._divergence(name, reference[name], quantized[name]) for name in self.logits)
        total += sum(_relative_error(reference[name], quantized[name], v) for name, v in self.scale.items())
        return float(total)

    def mean(self, reference: Iterable[Outputs], quantized: Iterable[Outputs]) -> float:
        """Over batches, each weighed by the size of its outputs."""
        found = [(self(a, b), self._size(a)) for a, b in zip(reference, quantized, strict=True)]
        usual = np.mean([size for _, size in found]) or 1.0
        return float(np.mean([loss * (size / usual) for loss, size in found]))

    def _size(self, outputs: Outputs) -> int:
        return sum(outputs[name].size for name in (*self.logits, *self.scale))

    def _divergence(self, name: str, reference: np.ndarray, quantized: np.ndarray) -> float:
        log_p, log_q = (self._log_probabilities(name, x) for x in (reference, quantized))
        return float((np.exp(log_p) * (log_p - log_q)).sum(-1).mean())

    def _log_probabilities(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        if name in self.probabilities:
            x = np.log(np.maximum(x, 1e-12))
        x = x - x.max(-1, keepdims=True)
        return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))

    @property
    def unit(self) -> str:
        """What a loss of 1 means."""
        return "nat" if self.logits and not self.scale else "relative squared error"


def channel_axis(rank: int) -> int:
    """Where output channels stand: axis 1 of images and vectors, the last axis of sequences."""
    return 1 if rank in (2, 4, 5) else rank - 1


def _relative_error(reference: np.ndarray, quantized: np.ndarray, variance: np.ndarray) -> float:
    error = (reference.astype(np.float64) - quantized) ** 2
    if reference.ndim < 2:
        return float((error / variance).mean())
    shape = [1] * reference.ndim
    shape[channel_axis(reference.ndim)] = -1
    return float((error / variance.reshape(shape)).mean())


def output_loss(model: ir.Model, references: Sequence[Outputs], kind: str = "auto") -> OutputLoss:
    """The loss for a model, given float outputs of some samples.

    kind: "kl", "mse" or "auto" (KL where the only float output looks like class scores). Raises ModelError where the
    float model itself gives NaN or infinities.
    """
    floats = [str(value.name) for value in model.graph.outputs if _has_loss(references[0].get(str(value.name)))]
    _check_finite(floats, references)
    if kind == "kl" or (kind == "auto" and _is_classifier(model, floats, references[0])):
        producers = {v.name: v.producer() for v in model.graph.outputs}
        softmax = frozenset(n for n in floats if (p := producers[n]) is not None and p.op_type == "Softmax")
        return OutputLoss(tuple(floats), softmax, {})
    return OutputLoss((), frozenset(), {name: _variance([r[name] for r in references]) for name in floats})


def _has_loss(output: object) -> bool:
    """Whether an output is a tensor of floats, and not an empty one."""
    return isinstance(output, np.ndarray) and output.dtype.kind == "f" and output.size > 0


def _check_finite(names: Sequence[str], references: Sequence[Outputs]) -> None:
    for name in names:
        if bad := sum(int(np.count_nonzero(~np.isfinite(outputs[name]))) for outputs in references):
            raise ModelError(
                f"output {name!r} of the float model has {bad} values that are NaN or infinite on the calibration "
                "samples, so no loss can be measured: check the samples and their preprocessing, or drop the output"
            )


def _is_classifier(model: ir.Model, floats: Sequence[str], outputs: Outputs) -> bool:
    """One output of at least two scores, made by a layer or a softmax, that does not reconstruct an input.

    Beside it there may be the places of the largest scores.
    """
    by_name = {str(value.name): value for value in model.graph.outputs}
    if len(floats) != 1 or not all(_is_label(value) for name, value in by_name.items() if name not in floats):
        return False
    value = by_name[floats[0]]
    scores, producer = outputs[str(value.name)], value.producer()
    if scores.ndim not in (2, 3) or scores.shape[-1] < 2 or producer is None:
        return False
    if any(str(i.shape) == str(value.shape) for i in model.graph.inputs if i.shape is not None):
        return False
    return scores.ndim == 2 or producer.op_type in ("MatMul", "Gemm", "Add", "Softmax", "LogSoftmax")


def _is_label(value: ir.Value) -> bool:
    """Whether a value is where the largest is, in whatever shape and type."""
    node = value.producer()
    while node is not None and node.op_type in KEEPS_LABELS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "ArgMax"


def _variance(values: Sequence[np.ndarray]) -> np.ndarray:
    """Variance over samples and positions, floored at VARIANCE_FLOOR of its mean; per channel unless these vary."""
    if len({_channels(v) for v in values}) > 1 or values[0].ndim < 2:
        variance = np.asarray(np.var(np.concatenate([v.ravel() for v in values]).astype(np.float64)))
    else:
        axis = channel_axis(values[0].ndim)
        flat = [np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1).astype(np.float64) for v in values]
        variance = np.var(np.concatenate(flat, 1), axis=1)
    floor = max(VARIANCE_FLOOR * float(variance.mean()), 1e-12)
    return np.maximum(variance, floor)


def _channels(value: np.ndarray) -> tuple[int, int]:
    """Rank, and size of the channel axis."""
    return value.ndim, value.shape[channel_axis(value.ndim)] if value.ndim > 1 else 1
