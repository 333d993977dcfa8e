"""Rows of an output without those that are NaN or infinite in the float model, which nobody can read.

Padding makes them: a softmax over nothing but minus infinity is NaN.
"""

import numpy as np

from ptqc.losses.base import OutputKind


def has_flaws(array: np.ndarray) -> bool:
    """Whether something is NaN or infinite."""
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def finite_rows(kind: OutputKind, reference: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """An array of the float model, and others of its shape, without the rows in which it is not finite.

    They are as they were where it is finite everywhere. Else rows lie along one axis, the channels along theirs.
    """
    return finite_along(getattr(kind, "axis", None), reference, *others)


def finite_along(axis: int | None, reference: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """The same, of rows along any axis but this one; None: of single values."""
    if not has_flaws(reference):
        return [reference, *others]
    if axis is None or reference.ndim < 2:
        shape = (-1, *(1,) * (reference.ndim - 1))
        return [array[np.isfinite(reference)].reshape(shape) for array in (reference, *others)]
    axis %= reference.ndim
    along = 0 if axis else 1
    flat = [np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]) for array in (reference, *others)]
    is_whole = np.isfinite(flat[0]).all(-1)
    shape = tuple(
        -1 if place == along else reference.shape[axis] if place == axis else 1 for place in range(reference.ndim)
    )
    rows = [array[is_whole] for array in flat]
    return [(array if along < axis else array.T).reshape(shape) for array in rows]


def without_flawed_slices(array: np.ndarray) -> np.ndarray:
    """An array without slices, along any axis, that are nowhere finite; what else is not finite is 0."""
    if not has_flaws(array):
        return array
    is_finite = np.isfinite(array)
    for axis in range(array.ndim):
        others = tuple(other for other in range(array.ndim) if other != axis)
        finite = np.flatnonzero(is_finite.any(others))
        array, is_finite = array.take(finite, axis), is_finite.take(finite, axis)
    return np.where(is_finite, array, array.dtype.type(0))
