"""`ptqc.loss.OutputLoss` in torch, for its gradient."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ptqc.execute.torch.types import tensor_of
from ptqc.loss import OutputLoss, channel_axis

SMALLEST_PROBABILITY = 1e-12


def output_loss(loss: OutputLoss, reference: Mapping[str, Tensor], quantized: Mapping[str, Tensor]) -> Tensor:
    """Mean loss of a batch, as a scalar tensor."""
    total = torch.zeros(())
    for name in loss.logits:
        log_p, log_q = (
            log_probabilities(x[name], normalized=name in loss.probabilities) for x in (reference, quantized)
        )
        total = total + (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    for name, variance in loss.scale.items():
        error = (reference[name] - quantized[name]).square()
        total = total + (error / over(variance, error)).mean()
    return total


def over(variance: np.ndarray, output: Tensor) -> Tensor:
    """A variance per channel of an output, shaped to broadcast against it."""
    shape = [1] * output.ndim
    if output.ndim > 1:
        shape[channel_axis(output.ndim)] = -1
    return tensor_of(np.asarray(variance)).float().reshape(shape)


def log_probabilities(x: Tensor, *, normalized: bool) -> Tensor:
    """Of class scores on the last axis. normalized: they went through a softmax already."""
    return torch.log_softmax(x.clamp_min(SMALLEST_PROBABILITY).log() if normalized else x, -1)
