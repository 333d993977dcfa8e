"""Calibration samples that ptqc draws itself, for a model whose data nobody has at hand.

Images are pictures with the coarse statistics of photographs, other float inputs are normal, integers index the rows
of the embedding that they select from.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import InputSpec, input_specs, shape_text
from ptqc.calibration.pictures import picture
from ptqc.calibration.pixel_range import RAW, PixelRange
from ptqc.errors import CalibrationError
from ptqc.execute.onnxruntime import Feeds

CHANNELS = (1, 3)
FREE_SIDE = 224  # of a picture whose sizes the model leaves open: a multiple of every usual stride
FREE_LENGTH = 32  # of a sequence of tokens
ADVICE = "give real samples with --calibration DATA"

Draw = Callable[[np.random.Generator], np.ndarray]


def draw(model: ir.Model, count: int, seed: int, pixels: Mapping[str, PixelRange]) -> Iterator[Feeds]:
    """Samples for every input of the model, the same for the same seed; a free batch is 1.

    pixels: the range of each image, by input name (default: bytes).
    Raises CalibrationError, at once, for an input that nothing can be drawn for.
    """
    drawn = {spec.name: _drawer(spec, pixels.get(spec.name, RAW)) for spec in input_specs(model)}
    return (_sample(drawn, np.random.default_rng((seed, index))) for index in range(count))


def is_image(spec: InputSpec) -> bool:
    """Whether pictures are drawn for this input."""
    return _channel_axis(spec) is not None


def spatial_axes(spec: InputSpec) -> tuple[int, ...]:
    """Where height and width of images stand; none for any other input."""
    axis = _channel_axis(spec)
    return () if axis is None else (1, 2) if axis == 3 else (2, 3)


def _sample(drawn: Mapping[str, Draw], rng: np.random.Generator) -> Feeds:
    return {name: one(rng) for name, one in drawn.items()}


def _drawer(spec: InputSpec, pixels: PixelRange) -> Draw:
    if is_image(spec):
        return _pictures(spec, pixels)
    if spec.dtype.kind in "iu":
        return _rows(spec)
    if spec.dtype.kind in "bcU":
        raise CalibrationError(f"input {spec}: nothing can be drawn for this type: {ADVICE}")
    shape = _sizes(spec, {})
    return lambda rng: rng.standard_normal(shape).astype(spec.dtype)


def _channel_axis(spec: InputSpec) -> int | None:
    """The axis of the channels where the input is a batch of images: 1, or 3 for channels last; None for any other."""
    if len(spec.shape) != 4 or (spec.dtype.kind in "iub" and spec.dtype != np.uint8):
        return None
    return next((axis for axis in (1, 3) if spec.shape[axis] in CHANNELS), None)


def _pictures(spec: InputSpec, pixels: PixelRange) -> Draw:
    axis, spatial = _channel_axis(spec), spatial_axes(spec)
    shape = _sizes(spec, dict.fromkeys(spatial, FREE_SIDE))
    channels, height, width = (shape[a] for a in (axis or 1, *spatial))

    def one(rng: np.random.Generator) -> np.ndarray:
        batch = np.stack([pixels.apply(picture(rng, channels, height, width)) for _ in range(shape[0])])
        batch = np.moveaxis(batch, 1, -1) if axis == 3 else batch
        return np.rint(batch).astype(spec.dtype) if spec.dtype == np.uint8 else batch.astype(spec.dtype)

    return one


def _rows(spec: InputSpec) -> Draw:
    rows = spec.rows
    if not rows:
        raise CalibrationError(
            f"input {spec}: no embedding says which integers it takes, so none can be drawn: {ADVICE}"
        )
    shape = _sizes(spec, dict.fromkeys(range(1, len(spec.shape)), FREE_LENGTH))
    return lambda rng: rng.integers(0, rows, shape).astype(spec.dtype)


def _sizes(spec: InputSpec, free: Mapping[int, int]) -> tuple[int, ...]:
    """The input's shape with a batch of 1 and these sizes where it leaves an axis open."""
    free = {0: 1, **free}
    sizes = [free.get(axis, 0) if not isinstance(dim, int) else dim for axis, dim in enumerate(spec.shape)]
    if 0 in sizes:
        raise CalibrationError(
            f"input {spec}: axis {sizes.index(0)} of {shape_text(spec.shape)} has no size, and none can be guessed: "
            f"fix it in the model, or {ADVICE}"
        )
    return tuple(sizes)
