"""What an input likely is, and how it is prepared."""

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.pixel_range import stated_range
from ptqc.errors import CalibrationError

IMAGE_CHANNELS = (1, 3, 4)


def content(model: ir.Model, name: str) -> str:
    """What an input holds, in a few words; "" where nothing can be told."""
    try:
        spec = next((spec for spec in input_specs(model) if spec.name == name), None)
    except CalibrationError:
        return ""
    if spec is None:
        return ""
    if spec.dtype == np.bool_ or "mask" in name.lower():
        return "a mask"
    if spec.dtype.kind in "iu" and len(spec.shape) <= 2:
        return "token numbers or other indices"
    axis = next((axis for axis in (1, 3) if len(spec.shape) == 4 and spec.shape[axis] in IMAGE_CHANNELS), None)
    if axis is not None:
        return _image(next(value for value in model.graph.inputs if value.name == name), axis, spec.shape[axis])
    return "sound or another signal" if spec.dtype.kind == "f" and _is_long(spec.shape) else ""


def _image(value: ir.Value, axis: int, channels: int | str | None) -> str:
    kind = f"an image of {channels} channel{'' if channels == 1 else 's'}, channels {'first' if axis == 1 else 'last'}"
    found = stated_range(value)
    if found is None:
        # A spectrogram has the shape of a picture, too, and comes as arrays.
        return (
            f"{kind}; the graph does not say how pixels are scaled: for files of images give the --scale, --mean and "
            "--std of its training; arrays (.npz) are taken as they are"
        )
    return f"{kind}; {found.description}"


def _is_long(shape: tuple[int | str | None, ...]) -> bool:
    """Whether the last axis is of the length of a signal."""
    return len(shape) in (2, 3) and isinstance(shape[-1], int) and shape[-1] >= 4096
