"""Sizes of all activations, as a run has them."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.tensors import Held
from ptqc.execution.walk import Slicer, Walk


def observed_shapes(model: ir.Model, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """By name, the sizes of every tensor of the inputs and of what the nodes of the main graph give for one sample."""
    walk = Walk(Slicer(model), [feeds])
    shapes = _sizes(walk.values)
    while walk.position < len(walk):
        results = walk.compute()
        shapes.update(_sizes(results))
        walk.advance(results)
    return shapes


def _sizes(values: Mapping[str, Sequence[Held]]) -> dict[str, tuple[int, ...]]:
    """Sequences and what is absent have none."""
    return {name: np.shape(held) for name, (held, *_) in values.items() if hasattr(held, "shape")}
