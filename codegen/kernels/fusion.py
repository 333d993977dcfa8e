"""What steps become part of others: functions and sums part of layers, padding and concatenation part of their inputs.

A table, a sum or a function that alone reads what a layer makes is computed in the layer's registers, and so are biases
and scales of rows; so is a function of a sum or function of real numbers, and the rounding of what a mask leaves. A
value that is only padded or concatenated is written where it has to be in the larger plane, so that nothing is left to
copy.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ptqc.codegen.kernels.epilogue import Lookup, Stage, Sum
from ptqc.codegen.kernels.pending import (
    Alias,
    Composed,
    Concat,
    FixedKernel,
    FusableOp,
    IntegerAdd,
    IntegerLayer,
    OutputCopy,
    Pad,
    PendingKernel,
    Quantized,
    StridedSlice,
    TableLookup,
    VectorBinary,
)
from ptqc.codegen.program.layout import Frame, Layout
from ptqc.runtime.lengths import varies


@dataclass(frozen=True)
class PendingStep:
    """A step whose kernel is not written yet; see `program.Step`."""

    pending: PendingKernel
    inputs: tuple[str, ...]
    output: str
    placed: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


Layouts = dict[str, Layout]


def fused(
    steps: Sequence[PendingStep], layouts: Mapping[str, Layout], outputs: Collection[str]
) -> tuple[list[PendingStep], Layouts]:
    """The steps that are left, and where values lie then. outputs: what the program has to make."""
    used = _used(_by_first_names(_sliced_once(steps)), outputs)
    return _framed(_concatenated_into_outputs(_with_epilogues(used), layouts), dict(layouts))


def _used(steps: Sequence[PendingStep], outputs: Collection[str]) -> list[PendingStep]:
    """Steps that something reads."""
    needed, remaining = set(outputs), list[PendingStep]()
    for step in reversed(steps):
        if step.output in needed:
            needed.update(step.inputs)
            remaining.append(step)
    return remaining[::-1]


def _sliced_once(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Slices of slices read what the first one does."""
    done: dict[str, PendingStep] = {}
    for step in steps:
        first = done.get(step.inputs[0]) if isinstance(step.pending, StridedSlice) else None
        if first is not None and isinstance(first.pending, StridedSlice) and isinstance(step.pending, StridedSlice):
            step = replace(step, pending=step.pending.behind(first.pending), inputs=first.inputs)
        done[step.output] = step
    return list(done.values())


def _by_first_names(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Kernels that are written already read values where they were before they were renamed."""
    first = {step.output: step.inputs[0] for step in steps if isinstance(step.pending, Alias)}
    return [
        replace(step, inputs=tuple(first.get(name, name) for name in step.inputs))
        if isinstance(step.pending, FixedKernel)
        else step
        for step in steps
    ]


def _reads(steps: Iterable[PendingStep]) -> Counter[str]:
    return Counter(name for step in steps for name in step.inputs)


def _with_epilogues(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Tables, sums and functions as stages of layers. The layer moves to the place of what it absorbs."""
    reads, makers = _reads(steps), dict[str, PendingStep]()
    order = {step.output: place for place, step in enumerate(steps)}
    for step in steps:
        index = _absorbing(step, makers, reads, order)
        if index is None:
            makers[step.output] = step
            continue
        makers[step.output] = _joined(makers.pop(step.inputs[index]), step, index)
    return list(makers.values())


def _joined(layer: PendingStep, step: PendingStep, index: int) -> PendingStep:
    """A layer with what reads its output as operand `index`."""
    operands = step.inputs[:index] + step.inputs[index + 1 :]
    within = layer.within
    pending: PendingKernel
    if isinstance(layer.pending, VectorBinary):
        assert isinstance(step.pending, Quantized)
        pending = replace(layer.pending, rounding=(step.pending.scale, step.pending.zero_point))
        within = (*within, layer.output)
    elif isinstance(layer.pending, Composed):
        assert isinstance(step.pending, FusableOp)
        pending, within = layer.pending.fuse(step.pending.stage(index)), (*within, layer.output)
    else:
        assert isinstance(layer.pending, IntegerLayer)
        pending = layer.pending.fuse(_stage(step.pending, index))
    return PendingStep(pending, (*layer.inputs, *operands), step.output, within=within)


def _absorbing(
    step: PendingStep, makers: Mapping[str, PendingStep], reads: Mapping[str, int], order: Mapping[str, int]
) -> int | None:
    """Which input of a step comes from a layer that takes it in and that nothing else reads; of two, the last made."""
    fusable = [
        index
        for index, name in enumerate(step.inputs)
        if reads[name] == 1 and name in makers and makers[name].pending.can_fuse(step.pending, index)
    ]
    return max(fusable, key=lambda index: order[step.inputs[index]], default=None)


def _stage(pending: PendingKernel, index: int) -> Stage:
    if isinstance(pending, IntegerAdd):
        return Sum(pending.numbers, index)
    assert isinstance(pending, TableLookup)
    return Lookup(pending.entries)


def _concatenated_into_outputs(steps: Sequence[PendingStep], layouts: Mapping[str, Layout]) -> list[PendingStep]:
    """What is concatenated to be an output becomes that, where nothing else reads it."""
    reads = _reads(steps)
    inputs = {
        step.inputs[0]: step.output
        for step in steps
        if isinstance(step.pending, OutputCopy) and reads[step.inputs[0]] == 1 and layouts[step.inputs[0]].row_major
    }
    joined = {step.output for step in steps if isinstance(step.pending, Concat) and step.output in inputs}
    left = (step for step in steps if not (isinstance(step.pending, OutputCopy) and step.inputs[0] in joined))
    return [replace(step, output=inputs[step.output]) if step.output in joined else step for step in left]


def _framed(steps: Sequence[PendingStep], layouts: Layouts) -> tuple[list[PendingStep], Layouts]:
    """Values that are padded or concatenated, in place. The last steps first: a concatenation may itself be padded."""
    makers = {step.output: step.pending for step in steps}
    readers: dict[str, list[PendingKernel]] = {}
    for step in steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step.pending)
    done = []
    for step in reversed(steps):
        placed = []
        for index, name in enumerate(step.inputs):
            moved = _moved(step, index, layouts)
            if moved is None or name not in makers or not makers[name].makes_framed():
                continue
            if all(reader.reads_framed(moved) for reader in readers[name]):
                layouts[name] = moved
                placed.append(index)
        done.append(_placed(step, placed))
    return done[::-1], layouts


def _moved(step: PendingStep, index: int, layouts: Layouts) -> Layout | None:
    """An input as part of a step's output; None where it cannot be or is part of another one already."""
    name, frame = step.inputs[index], _frame(step, index, layouts)
    if frame is None or layouts[name].parent_buffer is not None or step.inputs.count(name) > 1:
        return None
    return replace(layouts[name], parent_buffer=frame)


def _frame(step: PendingStep, index: int, layouts: Layouts) -> Frame | None:
    """Where an input of a border or a concatenation of channels lies in the memory of its output."""
    output = layouts[step.output]
    if (
        len(output.shape) != 3
        or output.row_major
        or varies(output.shape)
        or any(len(layouts[name].shape) != 3 for name in step.inputs)
    ):
        return None
    whole = output.parent_buffer or Frame((output.shape[0], output.shape[1], output.shape[2]))
    channel, row, column = whole.at
    match step.pending:
        case Pad():
            return Frame(whole.size, (channel, row + step.pending.top, column + step.pending.left))
        case Concat(axis=0):
            before = sum(layouts[name].shape[0] for name in step.inputs[:index])
            return Frame(whole.size, (channel + before, row, column))
    return None


def _placed(step: PendingStep, indices: Sequence[int]) -> PendingStep:
    """The step when these inputs lie in its output already."""
    if not indices:
        return step
    names = tuple(step.inputs[index] for index in indices)
    if isinstance(step.pending, Pad):
        return replace(step, pending=replace(step.pending, placed=True), placed=names)
    assert isinstance(step.pending, Concat)
    return replace(step, pending=replace(step.pending, placed=frozenset(indices)), placed=names)
