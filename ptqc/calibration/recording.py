"""What a float model draws, and which sizes it computes, recorded for each sample.

The numbers are the same in every compile: seeds are set, and samples run one after the other.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.samples import Samples
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.recorded import DRAWING, released, remembered, sources

SEED = "seed"


def with_recorded(model: ir.Model, samples: Samples, folder: Path, seed: int = 0) -> Samples:
    """The samples with what the model records of a run of each; themselves where it records nothing.

    folder: for what is written. Raises ModelError.
    """
    more = recorder(model, seed)
    return samples if more is None else samples.extended(folder, more)


def recorder(model: ir.Model, seed: int = 0) -> Callable[[Feeds], Feeds] | None:
    """Gives what the model records of a run of a sample; None where it records nothing. Raises ModelError."""
    values = sources(model)
    if not values:
        return None
    free = released(model)
    for number, node in enumerate(free.graph):
        if node.op_type in DRAWING and SEED not in node.attributes:
            node.attributes[SEED] = ir.AttrFloat32(SEED, float(seed + number + 1))
    runner = Runner(free, list(values.values()))
    types = {str(value.name): value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}

    def more(feeds: Feeds) -> Feeds:
        outputs = runner.run(feeds, list(values.values()))
        return {source: np.asarray(outputs[name], types[source]) for source, name in values.items()}

    return more


def recorded_specs(model: ir.Model, feeds: Feeds) -> tuple[InputSpec, ...]:
    """The recorded inputs of a model, of any sizes. feeds: of a sample."""
    arrays = {name: feeds[name] for name in remembered(model)}
    return tuple(InputSpec(name, array.dtype, (None,) * array.ndim) for name, array in arrays.items())
