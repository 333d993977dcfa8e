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
        log_p, log_q = (_log_probabilities(x[name], name in loss.probabilities) for x in (reference, quantized))
        total = total + (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    for name, variance in loss.scale.items():
        error = (reference[name] - quantized[name]).square()
        shape = [1] * error.ndim
        if error.ndim > 1:
            shape[channel_axis(error.ndim)] = -1
        total = total + (error / tensor_of(np.asarray(variance)).float().reshape(shape)).mean()
    return total


def _log_probabilities(x: Tensor, normalized: bool) -> Tensor:
    return torch.log_softmax(x.clamp_min(SMALLEST_PROBABILITY).log() if normalized else x, -1)
