"""Items of calibration data that hold several of the samples that a model declares, as data loaders give them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptqc.calibration.inputs import InputSpec, fits

Item = Mapping[str, Any]


def parts_of(item: Item, inputs: Sequence[InputSpec]) -> Sequence[Item]:
    """The samples of an item that holds several of those that the model declares: joined along axis 0, or stacked.

    An input that fits as it is, and has no open batch, belongs to all of them. The item itself where it is one sample,
    or no number of samples, of which `conform` tells what is wrong.
    """
    names = [spec.name for spec in inputs]
    if any(name not in item for name in names):
        return [item]
    try:
        shapes = {name: _shape(item[name]) for name in names}
    except ValueError:  # lists of different lengths
        return [item]
    if all(fits(shapes[spec.name], spec) for spec in inputs):
        return [item]
    each = {spec.name: rows for spec in inputs if (rows := _rows_of_each(shapes[spec.name], spec)) is not None}
    if any(not shapes[name] for name in each):
        return [item]
    counts = {shapes[name][0] / max(rows, 1) for name, rows in each.items()}
    if len(counts) != 1 or not (count := counts.pop()).is_integer():
        return [item]
    cuts = ({name: _cut(item[name], place, rows) for name, rows in each.items()} for place in range(int(count)))
    result = [{**item, **cut} for cut in cuts]
    return result if result and all(fits(_shape(result[0][spec.name]), spec) for spec in inputs) else [item]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _rows_of_each(shape: tuple[int, ...], spec: InputSpec) -> int | None:
    """Rows of axis 0 that make one sample; 0 where axis 0 counts samples; None where the array is of all samples."""
    leading = spec.shape[0] if spec.shape else None
    if fits(shape, spec):
        return None if not spec.shape or isinstance(leading, int) or len(shape) < len(spec.shape) else 1
    if len(shape) == len(spec.shape) + 1:
        return 0
    return leading if isinstance(leading, int) else 1


def _cut(value: Any, place: int, rows: int) -> Any:
    result = value if hasattr(value, "shape") else np.asarray(value)
    return result[place * rows : (place + 1) * rows] if rows else result[place]
