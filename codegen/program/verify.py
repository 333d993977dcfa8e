"""What the library computes against what ONNX Runtime computed with the exported file.

Layer by layer, each kernel given ONNX Runtime's own values; then end to end, on the library's own values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.program import Accuracy
from ptqc.errors import VerificationError
from ptqc.formats import to_bfloat16
from ptqc.runtime.library import aligned

# How far real values may differ, as a share of the largest magnitude of their tensor.
FLOAT_TOLERANCE = 1e-5

Values = Mapping[str, np.ndarray]


class Runnable(Protocol):
    """A library at work, as `ptqc.runtime` has them. constants: of all kernels, in the order of their calls."""

    constants: Any

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name."""

    def kernel(self, name: str) -> Callable[..., object]:
        """One kernel: called with arrays and constants, it writes to the last one."""

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        """A call of one kernel."""


class Loaded:
    """A library whose kernels can be called one by one."""

    def __init__(self, listing: Listing, library: Runnable) -> None:
        self.listing, self.library = listing, library
        ends = list(accumulate((call.constants for call in listing.calls), initial=0))
        self._constants = {
            call.output: library.constants[start:end]
            for call, start, end in zip(listing.calls, ends, ends[1:], strict=False)
        }

    def bound(self, inputs: Values) -> "Loaded":
        """The same for inputs of these sizes. inputs: of the model; may have more values."""
        listing = self.listing.bound(inputs)
        return self if listing is self.listing else Loaded(listing, self.library)

    def prepared(self, call: Call, buffers: Mapping[str, np.ndarray]) -> Callable[[], object]:
        """One call on `buffer`s of its own inputs and output."""
        inputs = [buffers[name] for name in call.arguments]
        output = buffers[call.output]
        return self.library.prepared(call.kernel, *inputs, *self._constants[call.output], output, *self._lengths(call))

    def _lengths(self, call: Call) -> list[int]:
        return [self.listing.lengths[name] for name in call.lengths]

    def buffer(self, name: str, values: np.ndarray) -> np.ndarray:
        """A value as kernels take it, from one in the model's order of axes."""
        return _buffer(self.listing.layouts[name], values)

    def __call__(self, call: Call, inputs: Sequence[np.ndarray], samples: int) -> np.ndarray:
        """The output of one call for so many samples; it and the inputs in the model's order of axes."""
        layout = self.listing.layouts[call.output]
        output = self.buffer(call.output, np.zeros((samples, *layout.shape), layout.values))
        self.fill(call, inputs, output)
        return layout.from_memory(output)

    def fill(self, call: Call, inputs: Sequence[np.ndarray], output: np.ndarray) -> None:
        """Let a call write to a `buffer` of its output; inputs in the model's order of axes."""
        layouts = self.listing.layouts
        buffers = {name: _buffer(layouts[name], value) for name, value in zip(call.inputs, inputs, strict=True)}
        for name in call.placed:  # everything around a placed value is zero in its buffer
            np.bitwise_or(_bits(output), _bits(buffers.pop(name)), out=_bits(output))  # a sum would lose −0
        names = [buffers[name] for name in call.arguments]
        self.library.kernel(call.kernel)(*names, *self._constants[call.output], output, *self._lengths(call))

    def samples(self, inputs: Values) -> int:
        """How many samples the model's inputs are."""
        return next((_count(self.listing.layouts[name], inputs[name]) for name in self.listing.inputs), 1)

    def run(self, inputs: Values) -> dict[str, np.ndarray]:
        """The program's outputs, by their names in it, from one call of the whole library."""
        match = self.library.run({name: inputs[name] for name in self.listing.inputs})
        return dict(zip(self.listing.outputs, match.values(), strict=True))


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def _buffer(layout: Layout, values: np.ndarray) -> np.ndarray:
    count = _count(layout, values)
    memory = layout.to_memory(values.reshape(count, *layout.shape))
    return aligned(memory.reshape(count, *layout.shape) if layout.is_io else memory)


def _count(layout: Layout, values: np.ndarray) -> int:
    """How many samples an array is."""
    if not layout.elements:
        return prod(values.shape[: values.ndim - len(layout.shape)])
    return values.size // layout.elements


@dataclass(frozen=True)
class TensorComparison:
    """One tensor of one run. wrong: elements that differ given ONNX Runtime's inputs, chained: given the library's own.

    problem: what differs, or nothing. Of float tensors, only those beyond the tolerance count, and none as chained.
    rounded: integers that differ where only the float parts before them are the library's own, and all integers before
    those are ONNX Runtime's. Every integer that differs as chained follows from one of these.
    """

    call: Call
    elements: int
    is_real: bool
    wrong: int
    chained: int
    problem: str
    rounded: int = 0


@dataclass
class Compared:
    """integers, reals: elements compared, kernel by kernel. different: integers that differ end to end, by tensor.

    rounded: those that float parts round otherwise, by tensor, see `TensorComparison`; the others follow from them.
    """

    kernels: int = 0
    integers: int = 0
    reals: int = 0
    end_to_end: int = 0
    different: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: TensorComparison) -> None:
        """Count a tensor."""
        self.kernels += 1
        if outcome.is_real:
            self.reals += outcome.elements
            return
        self.integers += outcome.elements
        self.end_to_end += outcome.elements
        for counts, count in ((self.different, outcome.chained), (self.rounded, outcome.rounded)):
            if count:
                counts[outcome.call.output] = counts.get(outcome.call.output, 0) + count


def compare(loaded: Loaded, values: Values, compared: Compared) -> dict[str, np.ndarray]:
    """Compare every tensor of one run; values: of ONNX Runtime, inputs included, by name in the lowered graph.

    Returns the library's outputs, by their names in the program. Raises VerificationError naming the first kernel that
    differs.
    """
    loaded, chained = loaded.bound(values), dict[str, np.ndarray]()
    for outcome in outcomes(loaded, values, chained):
        if outcome.problem:
            raise VerificationError(f"the native library differs from the ONNX file at {outcome.problem}")
        compared.add(outcome)
    outputs = loaded.run(values)
    for name, match in outputs.items():
        if match.tobytes() != chained[name].tobytes():
            raise VerificationError(f"the native library as a whole differs from its own kernels at {name}")
    return outputs


def outcomes(loaded: Loaded, values: Values, chained: dict[str, np.ndarray]) -> Iterator[TensorComparison]:
    """Every tensor of a run that ONNX Runtime has, in order; `chained` receives what the library makes on its own."""
    loaded = loaded.bound(values)
    chained.update({name: values[name] for name in loaded.listing.inputs})
    pinned = dict(chained)  # the library's own real values, computed from ONNX Runtime's integers
    samples = loaded.samples(values)

    def computed(call: Call, inputs: Sequence[np.ndarray], wanted: np.ndarray | None) -> CallOutputs:
        results: list[tuple[Sequence[np.ndarray], np.ndarray]] = []

        def result(own: Sequence[np.ndarray]) -> np.ndarray:
            for before, output in results:
                if all(map(_same_bits, before, own)):
                    return output
            results.append((own, loaded(call, own, samples)))
            return results[-1][1]

        alone = result(inputs)
        chained[call.output], since = (result([own[name] for name in call.inputs]) for own in (chained, pinned))
        pinned[call.output] = since if wanted is None or wanted.dtype.kind == "f" else wanted
        return CallOutputs(alone, chained[call.output], since)

    return judged_calls(loaded.listing, values, computed)


class CallOutputs(NamedTuple):
    """What a call makes of ONNX Runtime's values; of the library's own; and of those with integers pinned."""

    alone: np.ndarray
    chained: np.ndarray
    pinned: np.ndarray


class Compute(Protocol):
    """Does a call."""

    def __call__(self, call: Call, inputs: Sequence[np.ndarray], wanted: np.ndarray | None) -> CallOutputs:
        """wanted: what ONNX Runtime computed, if it tells."""


def judged_calls(listing: Listing, values: Values, compute: Compute) -> Iterator[TensorComparison]:
    """Every call in order, given ONNX Runtime's values where it tells them; a comparison of each that it tells."""
    alone, unseen = {name: values[name] for name in listing.inputs}, dict[str, int]()
    uncertain = dict[str, np.ndarray]()  # of normalized values that ONNX Runtime does not tell
    for call in listing.calls:
        inputs, wanted = [alone[name] for name in call.inputs], values.get(call.value)
        output = compute(call, inputs, wanted)
        gaps = [uncertain.get(name) for name in call.inputs]
        gap = _normalized_gap(call, inputs)
        if any(one is not None for one in gaps):
            moved = [x if one is None else np.asarray(x + one, x.dtype) for x, one in zip(inputs, gaps, strict=True)]
            gap = np.abs(compute(call, moved, wanted).alone.astype(np.float64) - output.alone)
        alone[call.output] = output.alone if wanted is None else wanted
        roundings = max((unseen.get(name, 0) for name in call.inputs), default=0) + _rounds(call)
        if wanted is None:
            unseen[call.output] = roundings
            if gap is not None:
                uncertain[call.output] = gap
        else:
            inside = [values[name] for name in call.within if name in values]
            terms = inputs if call.accuracy.adds_inputs else inside
            before = values.get(call.within[-1], wanted) if call.within else next(iter(inputs), wanted)
            rounded = before if call.accuracy.to_bfloat16 else None
            yield _outcome(call, wanted, output, _Terms(terms, rounded, gap), roundings)


def _normalized_gap(call: Call, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """How far ONNX Runtime's mean of a row may move what a normalization makes of it; None for other kernels."""
    return FLOAT_TOLERANCE * call.accuracy.enlarged(inputs[0]) if call.accuracy.axes and inputs[0].size else None


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether arrays of one size hold the same; 0 and −0 are not."""
    return a is b or a.tobytes() == b.tobytes()


def _rounds(call: Call) -> int:
    """How many operators of a kernel may round otherwise than ONNX Runtime's."""
    return int(not call.accuracy.is_exact and call.output == call.value) + len(call.within)


@dataclass(frozen=True)
class _Terms:
    """What real values are measured by. added: by a sum; computed on the way. rounded: what became bfloat16 at last.

    gap: of a normalization, and of what moves and scales its result.
    """

    added: Sequence[np.ndarray]
    rounded: np.ndarray | None
    gap: np.ndarray | None = None


def _outcome(call: Call, wanted: np.ndarray, output: CallOutputs, terms: _Terms, roundings: int) -> TensorComparison:
    """roundings: operators since the last values of ONNX Runtime."""
    is_real, where, match = wanted.dtype.kind == "f", f"{call.output} ({call.family})", output.alone
    if wanted.size != match.size or wanted.dtype != match.dtype:
        problem = f"{where}: {match.dtype}{match.shape} instead of {wanted.dtype}{wanted.shape}"
        return TensorComparison(call, wanted.size, is_real, wanted.size, 0, problem)
    match, chained, pinned = (values.reshape(wanted.shape) for values in output)
    if is_real:
        wrong, problem = _reals(call.accuracy, wanted, match, terms, roundings)
        return TensorComparison(call, wanted.size, is_real, wrong, 0, problem and f"{where}: {problem}")
    wrong, later, rounded = (int(np.count_nonzero(wanted != other)) for other in (match, chained, pinned))
    most = int(np.abs(wanted.astype(int) - match).max(initial=0))
    problem = f"{where}: {wrong} of {wanted.size} integers, by up to {most}" if wrong else ""
    return TensorComparison(call, wanted.size, is_real, wrong, later, problem, rounded)


def _reals(
    accuracy: Accuracy, wanted: np.ndarray, results: np.ndarray, terms: _Terms, roundings: int
) -> tuple[int, str]:
    """How many are beyond the tolerance, and what to say of it."""
    least = 0 if accuracy.is_exact and accuracy.to_bfloat16 else 1
    share = max(roundings, least) * FLOAT_TOLERANCE + accuracy.of_chip
    allowed = np.asarray(share * _reach(accuracy, wanted, terms.added) + accuracy.at_one)
    if terms.gap is not None and terms.gap.size == wanted.size:
        allowed = allowed + terms.gap.reshape(wanted.shape)
    same = (wanted == results) | (np.isnan(wanted) & np.isnan(results))
    if terms.rounded is not None:  # to what something within the tolerance is rounded to
        before = terms.rounded.reshape(results.shape)
        same |= (to_bfloat16(before - allowed) <= results) & (results <= to_bfloat16(before + allowed))
        allowed = np.zeros(())
    with np.errstate(invalid="ignore"):
        distances = np.where(same, 0.0, np.abs(wanted - results))
    wrong = int(np.count_nonzero(~(distances <= allowed)))  # NaN is never within
    return wrong, f"by {float(distances.max()):.1e} where {float(allowed.max()):.1e} is allowed" if wrong else ""


def _reach(accuracy: Accuracy, wanted: np.ndarray, added: Sequence[np.ndarray]) -> np.ndarray:
    """Magnitudes that elements are measured by: the largest there is of layers and sums, of others those on the way."""
    largest = _magnitude(wanted)
    if accuracy.adds_inputs or accuracy.adds_products:
        return np.asarray(max([largest, *map(_magnitude, added)]))
    own = (np.where(np.isfinite(values), np.abs(values), 0).reshape(wanted.shape) for values in added)
    return reduce(np.maximum, own, np.asarray(largest))


def _magnitude(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
