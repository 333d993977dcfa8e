"""Inputs at the ends of what was seen, at zero, and random in between."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.operators import known

EDGES = ("lowest", "highest", "zero", "random")


@dataclass(frozen=True)
class Extent:
    """What was seen of one input. shape: of one batch. value: what it has to be, of one that is fixed."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str
    value: list[float] | None = None

    def filled(self, edge: str, random: np.random.Generator) -> np.ndarray:
        """An input of one kind."""
        if self.value is not None:
            return np.array(self.value, self.dtype).reshape(self.shape)
        filler = {"lowest": self.low, "highest": self.high, "zero": 0.0}.get(edge)
        result = random.uniform(self.low, self.high, self.shape) if filler is None else np.full(self.shape, filler)
        return result.astype(self.dtype)


def extents(samples: Sequence[Feeds], fixed: Collection[str] = ()) -> dict[str, Extent]:
    """The extents of all inputs. fixed: names of those that are always the same."""
    return {
        name: Extent(
            min((float(feeds[name].min()) for feeds in samples if feeds[name].size), default=0.0),
            max((float(feeds[name].max()) for feeds in samples if feeds[name].size), default=0.0),
            value.shape,
            str(value.dtype),
            value.reshape(-1).tolist() if name in fixed else None,
        )
        for name, value in samples[0].items()
    }


def edges(result: Mapping[str, Extent]) -> Iterator[tuple[str, Feeds]]:
    """One set of inputs of each kind."""
    random = np.random.default_rng(0)
    for edge in EDGES:
        yield edge, {name: extent.filled(edge, random) for name, extent in result.items()}


def resized(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """An input of other sizes, with elements left out at the end of axes or begun again with."""
    for axis, size in enumerate(shape):
        array = np.take(array, np.arange(size) % max(array.shape[axis], 1), axis=axis)
    return np.ascontiguousarray(array)


def other_runs(
    runner: Runner, feeds: Feeds, shapes: Mapping[str, Mapping[str, Sequence[int]]]
) -> Iterator[tuple[str, Feeds, Feeds]]:
    """Inputs of other shapes, by run, with what ONNX Runtime makes of them, but for what it refuses."""
    for run, sizes in shapes.items():
        with suppress(Exception):
            outputs = {name: resized(value, sizes[name]) for name, value in feeds.items()}
            yield run, outputs, runner.run(outputs)


def edge_runs(runner: Runner, result: Mapping[str, Extent]) -> Iterator[tuple[str, Feeds, Feeds]]:
    """The same with what ONNX Runtime makes of it, but for what it refuses: places that a table does not have."""
    for edge, feeds in edges(result):
        with suppress(Exception):
            yield edge, feeds, runner.run(feeds)


# Inputs that say how other values are shaped: like all sizes, they are fixed by the calibration samples.
#
# Axes of a sum, places of a slice, sizes and the like may be inputs of a model. A library is built for what they were
# in all samples, and takes nothing else.

# A vector of more numbers is no list of axes or sizes.
LONGEST = 64


def fixed_inputs(model: ir.Model, samples: Sequence[Feeds]) -> dict[str, np.ndarray]:
    """Inputs that are parameters somewhere, and the same in all samples."""
    results = {}
    for value in model.graph.inputs:
        first = samples[0][str(value.name)]
        same = all(np.array_equal(feeds[str(value.name)], first) for feeds in samples)
        if same and first.size <= LONGEST and first.ndim <= 1 and _is_parameter(value):
            results[str(value.name)] = first
    return results


def _is_parameter(value: ir.Value) -> bool:
    return any((result := known(use.node)) is not None and use.idx in result.parameters for use in value.uses())
