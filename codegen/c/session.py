"""Calls of a network that are compared with ONNX Runtime, and the windows of the model that they complete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptqc.codegen.c.network import CTensor, Stream, TimeRows
from ptqc.execution.onnxruntime import Feeds

# Bytes of values, by the number of their step; see `ptqc.codegen.c.verify.run`.
Trace = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class CallSession:
    """Calls in their order.

    calls: inputs of each. windows: inputs of the model that a call completes, by its number. starts: calls that begin
    a recording.
    """

    calls: Sequence[Feeds]
    windows: Mapping[int, Feeds]
    starts: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, stream: Stream | None, samples: Sequence[Feeds]) -> "CallSession":
        """The calls that take samples: one for each, or its frames.

        Without padding, samples follow one another as one recording, and windows of the frames of two are compared
        as well.
        """
        if stream is None:
            return cls(samples, dict(enumerate(samples)))
        name, axis, frames = stream.input, stream.axis, stream.frames
        missing = stream.calls * frames - stream.window
        around = [(0, 0)] * samples[0][name].ndim
        around[axis] = (0, missing) if stream.is_padded else (missing, 0)
        recording = np.concatenate([np.pad(each[name], around, mode="edge") for each in samples], axis)
        calls = [{**samples[0], name: each} for each in np.split(recording, len(samples) * stream.calls, axis)]
        ends = [(place + 1) * stream.calls for place in range(len(samples))]
        if stream.is_padded:
            starts = frozenset(end - stream.calls for end in ends)
            return cls(calls, {end - 1: sample for end, sample in zip(ends, samples, strict=True)}, starts)
        ends = sorted({*ends, *(end - stream.calls // 2 for end in ends[1:])})
        windows = {
            end - 1: {**samples[0], name: np.take(recording, range(end * frames - stream.window, end * frames), axis)}
            for end in ends
        }
        return cls(calls, windows, frozenset([0]))


@dataclass(frozen=True)
class WindowValue:
    """A value that was computed. part: which rows of that of the model it is; None: all of it."""

    array: np.ndarray
    part: tuple[slice, ...] | None = None

    def of_model(self, whole: np.ndarray) -> np.ndarray:
        """What the model has for it."""
        return (whole if self.part is None else whole[self.part]).reshape(self.array.shape)


def value_in_window(
    tensor: CTensor,
    rows: TimeRows | None,
    stream: Stream | None,
    traces: Sequence[Trace],
    number: int,
    whole: np.ndarray,
) -> WindowValue | None:
    """A value of the window that the last of these calls completes; None where rows that stay are among it.

    number: of its step. whole: the value of the model.
    """
    if stream is None or rows is None:
        return WindowValue(_array(tensor, traces[-1][number]))
    new = stream.new(rows)
    if tensor.shape[rows.axis] != new:
        return None
    arrays = [_array(tensor, trace[number]) for trace in traces[-stream.calls :]]
    first, count = max(0, -rows.late), whole.shape[rows.axis] - rows.tail
    end = min(count, stream.calls * new - rows.late)
    axes = [slice(None)] * len(tensor.shape)
    part, axes[rows.axis] = list(axes), slice(first + rows.late, end + rows.late)
    part[rows.axis] = slice(first, end)
    return WindowValue(np.concatenate(arrays, rows.axis)[tuple(axes)], tuple(part))


def _array(tensor: CTensor, memory: np.ndarray) -> np.ndarray:
    return tensor.in_model(memory.view(tensor.dtype))
