"""Whether a model takes samples joined along axis 0, and gives for each what it gives for that sample alone."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples, joined
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.nodes import has_open_first_axis

# Sums are ordered differently in a batch. Relative to an output's size, or the share of integers that differ.
ROUNDING = 1e-3


def takes_batches(model: ir.Model, runner: Runner, samples: Samples) -> bool:
    """Whether samples of equal shapes may be joined: as declared, and as two of them show.

    What is declared does not do: some graphs hold a batch of one in their constants, others mix the rows of a batch.
    runner: of the model.
    """
    declared = all(map(has_open_first_axis, chain(model.graph.inputs, model.graph.outputs)))
    pair = samples.pair() if declared else None
    return pair is not None and is_joined(runner, pair)


def is_joined(runner: Runner, pair: Sequence[Feeds]) -> bool:
    """Whether samples that are joined along axis 0 give what each gives alone."""
    try:
        together, alone = runner.run(joined(pair)), [runner.run(feeds) for feeds in pair]
    except Exception:  # ONNX Runtime raises a dozen types of its own
        return False
    return all(_is_stacked(result, [outputs[name] for outputs in alone]) for name, result in together.items())


def _is_stacked(value: object, parts: Sequence[np.ndarray]) -> bool:
    """Whether an output is those of the samples one after the other, and says something."""
    if not isinstance(value, np.ndarray) or not value.size or not all(part.ndim for part in parts):
        return False
    if value.shape[0] != sum(map(len, parts)) or any(part.shape[1:] != value.shape[1:] for part in parts):
        return False
    wanted = np.concatenate(parts)
    if value.dtype.kind == "f":
        return relative([wanted], [value]) <= ROUNDING
    return bool(np.mean(wanted != value) <= ROUNDING)
