"""Sizes of all activations, as a run has them."""

import numpy as np
import onnx_ir as ir

from ptqc.execute.onnxruntime import Feeds
from ptqc.execute.walk import Slicer, Walk


def observed_shapes(model: ir.Model, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """By name, the sizes of every input and of what every node of the main graph gives for one sample."""
    walk = Walk(Slicer(model), [feeds])
    found = {name: np.shape(values[0]) for name, values in walk.values.items()}
    while walk.position < len(walk):
        results = walk.compute()
        found.update({name: np.shape(values[0]) for name, values in results.items()})
        walk.advance(results)
    return found
