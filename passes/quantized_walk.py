"""A walk in which every quantized tensor is rounded as soon as it exists: what the layers behind will really see."""

from collections.abc import Mapping, Sequence

import numpy as np

from ptqc.execute.onnxruntime import Feeds
from ptqc.execute.walk import Slicer, Values, Walk, bytes_of
from ptqc.formats import QuantParams
from ptqc.integer import fake_quantize


def rounded(values: Mapping[str, list[np.ndarray]], params: Mapping[str, QuantParams]) -> dict[str, list[np.ndarray]]:
    """Values with those that have parameters fake-quantized."""
    return {
        name: [fake_quantize(a, params[name]) for a in arrays] if name in params else list(arrays)
        for name, arrays in values.items()
    }


def quantized_walk(
    slicer: Slicer,
    batches: Sequence[Feeds],
    params: Mapping[str, QuantParams],
    constants: Mapping[str, np.ndarray] | None = None,
) -> Walk:
    """A walk at its start, inputs rounded. params: source tensor -> parameters."""
    walk = Walk(slicer, batches, constants)
    walk.values = rounded(walk.values, params)
    return walk


def run_quantized(
    slicer: Slicer,
    batches: Sequence[Feeds],
    params: Mapping[str, QuantParams],
    constants: Mapping[str, np.ndarray] | None = None,
) -> list[Values]:
    """Outputs per batch with the tensors in `params` rounded."""
    walk = quantized_walk(slicer, batches, params, constants)
    while walk.position < len(walk):
        walk.advance(rounded(walk.compute(), params))
    return [{name: walk.values[name][i] for name in slicer.outputs} for i in range(walk.count)]


def peak_bytes(slicer: Slicer, sample: Feeds) -> int:
    """Largest number of bytes that a walk over one sample holds at a time."""
    walk, peak = Walk(slicer, [sample]), 0
    while walk.position < len(walk):
        results = walk.compute()
        peak = max(peak, walk.held_bytes + bytes_of(results))
        walk.advance(results)
    return peak
