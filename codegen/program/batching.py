"""How a library takes samples: along the model's batch axis, or each as one run of the model.

Where the first axis is the batch in every value, kernels take any number of samples along it. Where it is moved, merged
with another one or not there, a sample is a whole run with all axes, and kernels take any number of runs. Several
samples at once are then as good as one after the other only if they have nothing to do with each other in the model:
ONNX Runtime is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.edge_inputs import edges, extents
from ptqc.errors import NoKernel
from ptqc.execute.onnxruntime import Feeds, Runner, session_options
from ptqc.graph.nodes import has_open_batch

Made = TypeVar("Made")

# How far outputs may differ, as a share of their root mean square, because codes flip where sums are reordered.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Batching:
    """batch: its size in the runs that all sizes are taken from; None: a sample is such a run.

    is_any: whether the library takes any number of samples at once; else what it was built for.
    """

    batch: int | None
    is_any: bool = True


def batched(
    model: ir.Model,
    exported: Exported,
    samples: Sequence[Feeds],
    make: Callable[[Batching, Sequence[Feeds]], Made],
) -> Made:
    """What `make` gives for samples along the batch, or run by run where there is none or a node then has no kernel."""
    batching = along_the_batch(model, samples[0])
    if batching is not None:
        with suppress(NoKernel):
            return make(batching, samples)
    return make(*run_by_run(model, exported, samples))


def along_the_batch(model: ir.Model, feeds: Feeds) -> Batching | None:
    """The batch as the first axis of the first input; None without one."""
    shape = feeds[str(model.graph.inputs[0].name)].shape if model.graph.inputs else ()
    return Batching(shape[0]) if shape else None


def run_by_run(model: ir.Model, exported: Exported, samples: Sequence[Feeds]) -> tuple[Batching, list[Feeds]]:
    """Samples as runs, one sample each where the model leaves the size of a common first axis of its inputs open."""
    if not has_open_batch(model.graph.inputs):
        return Batching(None, is_any=False), list(samples)
    alone = [{name: value[:1] for name, value in feeds.items()} for feeds in samples]
    return Batching(None, is_any=_are_independent(exported, alone)), alone


def _are_independent(exported: Exported, alone: Sequence[Feeds]) -> bool:
    """Whether ONNX Runtime gives each sample of a batch what it gives it alone, whatever the others are."""
    made = dict(edges(extents(alone)))
    first, second, third = alone[0], made["random"], made["highest"]
    try:
        runner = Runner(exported.proto)
        single = [runner.run(feeds) for feeds in (first, second, third)]
        one, other = (runner.run(_joined(feeds)) for feeds in ((first, second, third), (first, third, second)))
    except Exception:  # whatever a model has against several samples
        return False
    return all(_is_alike([found[name] for found in single], one[name], other[name]) for name in one)


def _joined(feeds: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}


def _is_alike(single: Sequence[np.ndarray], one: np.ndarray, other: np.ndarray) -> bool:
    """Samples alone, in a batch, and in the same batch with the last two exchanged."""
    if any(found.shape != (len(single), *single[0].shape[1:]) for found in (one, other)):
        return False
    if any(len(found) != 1 or found.shape != single[0].shape for found in single):
        return False
    same = np.array_equal(one[0], other[0], equal_nan=one.dtype.kind == "f")
    return same and all(_is_close(found[0], one[place]) for place, found in enumerate(single))


def _is_close(wanted: np.ndarray, found: np.ndarray) -> bool:
    if wanted.dtype.kind != "f":
        return bool(np.mean(wanted != found) <= TOLERANCE)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return False
    a, b = wanted[finite].astype(np.float64), found[finite].astype(np.float64)
    return bool(np.square(a - b).sum() <= TOLERANCE**2 * np.square(a).sum())


@dataclass(frozen=True)
class Seen:
    """Shapes and types of all values of a graph in one run. fixed: inputs that are always these."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, feeds: Feeds, fixed: Mapping[str, np.ndarray]) -> Self:
        """What ONNX Runtime makes of the inputs."""
        made = (value for node in model.graph for value in node.outputs)
        inside = [str(value.name) for value in made if value.name and value.dtype != ir.DataType.BFLOAT16]
        values = {**Runner(model, inside, session_options(optimize=False)).run(feeds), **feeds}
        tensors = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        return cls(shapes, {name: str(tensor.dtype) for name, tensor in tensors.items()}, fixed)

    def to_json(self) -> dict[str, Any]:
        """The document for a job file."""
        entries = {name: {"object": array.tolist(), "dtype": str(array.dtype)} for name, array in self.fixed.items()}
        return {"shapes": self.shapes, "dtypes": self.dtypes, "fixed": entries}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        shapes = {name: tuple(shape) for name, shape in document["shapes"].items()}
        return cls(shapes, document["dtypes"], {name: np.array(**entry) for name, entry in document["fixed"].items()})
