"""Comparing a large network where its kernels run slowly: one sample, and of the largest kernels a share of each.

A kernel that computes a share of its output finds something else in the rest of it: before the call the memory holds
what is wanted, of which every byte was changed by drawn bits. What is as before afterwards, nothing was written to: it
must be what the blocks left out would have written, each of them no more than the fullest of those that ran. A kernel
that leaves out some of every block is told by that, whatever the share.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call
from ptqc.codegen.program.verify import CallOutputs, Loaded, TensorComparison, Values, judged_calls
from ptqc.runtime.library import aligned

SEED = 0


@dataclass(frozen=True)
class Cropping:
    """What a run may take. most: operations of a call. crop: lets all calls from now on compute such a share.

    left_out: bytes at most that were not written for that since it was last asked.
    """

    most: int
    crop: Callable[[float], None]
    left_out: Callable[[], int]

    def share(self, call: Call) -> float:
        """Of a call's output for one sample."""
        return min(1.0, self.most / max(call.operations, 1))


@dataclass
class PartialRun:
    """One run of a library. shares: of the calls that computed a share of their output, by what they make."""

    loaded: Loaded
    cropping: Cropping
    shares: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def outcomes(self, values: Values) -> Iterator[TensorComparison]:
        """Every tensor of the first sample that ONNX Runtime has. elements: those that were computed."""
        for outcome in judged_calls(self.loaded.listing, self._first(values), self._compute):
            name = outcome.call.output
            if name not in self.shares:
                yield outcome
                continue
            (computed, left_out), all_of_it = self._counts[name], outcome.elements
            message = (
                f"{name} ({outcome.call.family}): only {computed} of {all_of_it} elements were written, "
                f"and the blocks that did not run write {left_out} at most"
            )
            is_all = computed + left_out >= all_of_it
            yield replace(outcome, elements=computed, problem=outcome.problem or ("" if is_all else message))

    def _first(self, values: Values) -> dict[str, np.ndarray]:
        """Values of the first sample, where the first axis is that of samples."""
        samples = self.loaded.samples(values)
        return {name: array[:1] if array.ndim and len(array) == samples else array for name, array in values.items()}

    def _compute(self, call: Call, inputs: Sequence[np.ndarray], wanted: np.ndarray | None) -> CallOutputs:
        """What is not told has to be computed whole, as what lies around something placed has to."""
        share = self.cropping.share(call)
        if wanted is None or call.placed or share == 1:
            result = self.loaded(call, inputs, 1)
            return CallOutputs(result, result, result)
        layout = self.loaded.listing.layouts[call.output]
        memory = self.loaded.buffer(call.output, wanted)
        other = _changed(memory)
        output = aligned(other.copy())
        self.cropping.crop(share)
        try:
            self.loaded.fill(call, inputs, output)
        finally:
            self.cropping.crop(1.0)
        is_made = _within(layout, _bytes(output) != _bytes(other)).reshape(wanted.shape)
        self.shares[call.output] = share
        self._counts[call.output] = int(np.count_nonzero(is_made)), self.cropping.left_out() // memory.itemsize
        result = np.where(is_made, layout.from_memory(output).reshape(wanted.shape), wanted)
        return CallOutputs(result, result, result)


def _changed(memory: np.ndarray) -> np.ndarray:
    """An array of which no byte is the same."""
    drawn = np.random.default_rng(SEED).integers(1, 256, memory.nbytes, dtype=np.uint8)
    return (memory.reshape(-1).view(np.uint8) ^ drawn).view(memory.dtype).reshape(memory.shape)


def _bytes(memory: np.ndarray) -> np.ndarray:
    """Bytes of the elements along a new last axis."""
    return memory.view(np.uint8).reshape(*memory.shape, memory.itemsize)


def _within(layout: Layout, differ: np.ndarray) -> np.ndarray:
    """Which elements of a value have any byte that differs; differ: bytes of its memory."""
    flags = np.any(differ, axis=-1).view(np.uint8)
    return replace(layout, dtype="uint8").from_memory(flags).view(bool)
