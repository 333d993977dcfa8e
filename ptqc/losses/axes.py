"""Which axis of an output holds its channels, and which channels are judged together: by graph, else by data."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ptqc.losses.base import Arrays, Group, sizes_vary, some_rows
from ptqc.losses.trace import Trace

# How much better another axis must tell the values apart than the usual one, and how well at least.
CLEARLY, WELL = 3.0, 0.1
# Scales that differ so much are judged apart, where there are at least FEWEST channels in all and SMALLEST in a group.
APART, FEWEST, SMALLEST = 10.0, 5, 2
# Scores of detectors are nearly all close to zero.
RARE = 0.05
DEAD = 1e-12


def channel_axis(trace: Trace | None, declared: Sequence[int | str | None], values: Arrays) -> int | None:
    """The axis that the graph says, unless its size varies between samples; else the one that the data says.

    None: there is none. declared: sizes of the axes, symbolic ones as text or None.
    """
    rank = values[0].ndim
    if trace is not None and (trace.axis is None or not sizes_vary(values, trace.axis)):
        return trace.axis
    likely = [axis for axis in range(1, rank) if not sizes_vary(values, axis)]
    fixed = [axis for axis in likely if axis < len(declared) and isinstance(declared[axis], int)]
    return _by_data(fixed or likely, values)


def usual_axis(rank: int) -> int:
    """Axis 1 of images and vectors, the last axis of sequences."""
    return 1 if rank in (2, 4, 5) else rank - 1


def _by_data(axes: Sequence[int], values: Arrays) -> int | None:
    """Of these axes, the one whose slices differ most from each other; the usual one unless another is far better."""
    if len(axes) < 2:
        return axes[0] if axes else None
    result = {axis: _difference(values, axis) for axis in axes}
    best, usual = max(result, key=lambda axis: result[axis]), usual_axis(values[0].ndim)
    return usual if usual in result and result[best] < max(CLEARLY * result[usual], WELL) else best


def _difference(values: Arrays, axis: int) -> float:
    """Variance of the slices' means over the variance within slices, less what chance gives."""
    slices = np.concatenate([some_rows(value, axis) for value in values]).T
    within = float(slices.var(1).mean())
    between = float(slices.mean(1).var()) - within / slices.shape[1]
    return float(max(between, 0.0) / max(within, DEAD))


def groups(trace: Trace | None, axis: int | None, values: Arrays) -> tuple[Group, ...]:
    """Neighbouring channels that are scores, or are not, by the graph; else of one scale, by the data."""
    if axis is None or sizes_vary(values, axis):
        return ()
    channels = values[0].shape[axis]
    others = tuple(i for i in range(values[0].ndim) if i != axis)
    lows = np.min([value.min(axis=others) for value in values], axis=0)
    highs = np.max([value.max(axis=others) for value in values], axis=0)
    within = (lows >= 0) & (highs <= 1)
    if trace is not None and trace.axis == axis and trace.scores.any():
        return _runs(trace.scores & within, trace.source)
    scale = np.sqrt(np.mean([np.square(value, dtype=np.float64).mean(others) for value in values], axis=0))
    several = _of_one_scale(scale)
    if len(several) < 2:
        return (Group(0, channels),)
    middle = np.median(np.concatenate([some_rows(value, axis) for value in values]), axis=0)
    rare = within & (middle < RARE)
    return tuple(Group(start, stop, bool(rare[start:stop].all())) for start, stop in several)


def _runs(scores: np.ndarray, source: np.ndarray) -> tuple[Group, ...]:
    """Neighbouring channels that are scores of one layer, or no scores."""
    marks = np.where(scores, source, -1)
    ends = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
    return tuple(Group(start, stop, bool(scores[start])) for start, stop in pairwise(ends))


def _of_one_scale(scale: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of channels: all before a cut are APART times larger, or smaller, than all behind it."""
    if len(scale) < FEWEST or scale.min() <= DEAD * scale.max():
        return [(0, len(scale))]
    lows, highs = np.minimum.accumulate(scale)[:-1], np.maximum.accumulate(scale)[:-1]
    later_lows, later_highs = (of.accumulate(scale[::-1])[-2::-1] for of in (np.minimum, np.maximum))
    cuts = np.flatnonzero((lows > APART * later_highs) | (later_lows > APART * highs)) + 1
    inner = [int(cut) for cut in cuts if SMALLEST <= cut <= len(scale) - SMALLEST]
    return list(pairwise([0, *inner, len(scale)]))
