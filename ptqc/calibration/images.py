"""Image files to model inputs: decode, resize, crop, scale and normalize, with Pillow and NumPy only.

A pixel p in 0..255 becomes (p / scale - mean) / std for float inputs; uint8 inputs get p itself. `ptqc.presets` has the
settings that many models share.
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args

import numpy as np
from PIL import Image, ImageOps

from ptqc.calibration.inputs import NARROWED, InputSpec, shape_text
from ptqc.errors import UNREADABLE, CalibrationError, UsageError
from ptqc.presets import PREPROCESSING, PreprocessingName, preset
from ptqc.utils.arguments import of_kind

AnyPreprocessing = Union["Preprocessing", PreprocessingName]
Pair = tuple[int, int]  # (height, width)
Fit = Literal["crop", "stretch", "letterbox", "letterbox-corner"]
Layout = Literal["NCHW", "NHWC"]
ChannelOrder = Literal["RGB", "BGR"]
Resample = Literal["bilinear", "bicubic", "nearest"]

# Fits that show the whole image, and the share of what they leave free that lies to the left and above.
LETTERBOXES: Mapping[str, float] = {"letterbox": 0.5, "letterbox-corner": 0.0}
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"},
)
# Of images that are not read.
OTHER_IMAGES = frozenset({".avif", ".dcm", ".dng", ".exr", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".svg", ".tga"})
# Pillow's decoders for these; by default it would start Ghostscript for what is PostScript inside.
DECODERS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM")
LARGEST_GRAY = 2**16 - 1
# An image is resized to at most so many pixels before it is cropped, or so many times those that are asked for where
# these are more: with the short side of a strip, its long one grows as many times.
MOST_PIXELS, MOST_TIMES = 2**28, 16
# Pillow's names for one number per pixel.
MASK_MODES = frozenset({"1", "L", "P", "I", "I;16"})
# What data sets mark the pixels of masks with that do not count, beside numbers below 0.
IGNORED = 255
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}
CHOICES = {
    "fit": get_args(Fit),
    "layout": (*get_args(Layout), None),
    "channel_order": get_args(ChannelOrder),
    "resample": get_args(Resample),
}


@dataclass(frozen=True)
class Preprocessing:
    """How image files become the model's input: resize, crop, normalize.

    For float inputs, a pixel value from 0 to 255 becomes
    (value / scale - mean) / std; uint8 inputs get the value itself.

    Args:
        resize: Pixels of the short side, or (height, width); None: `crop`. If
            neither is given and the model has no fixed size, images keep
            their size.
        crop: Pixels of both sides, or (height, width), cut from the centre
            (black beyond the image); None: the model's size.
        fit: "crop" resizes the short side to `resize`, or so that a pair is
            covered, then crops; "stretch" resizes to exactly `resize`;
            "letterbox" puts the whole image inside `resize`, centred;
            "letterbox-corner" puts it into the top left corner, as YOLOX does.
        scale: What pixel values are divided by; 1 keeps 0 to 255.
        mean: Subtracted after scaling: one number, or one for each channel in
            the model's order.
        std: Divided by after that: one number, or one for each channel.
        layout: "NCHW" or "NHWC"; None: from the position of the axis of 1 or 3
            channels in the model's input.
        channel_order: "RGB" or "BGR".
        resample: Interpolation of resizing: "bilinear", "bicubic" or
            "nearest".
        fill: Pixels around a letterboxed image, 0 to 255: one number or red,
            green and blue. YOLO models are trained with 114.

    Raises:
        UsageError: A value that no image can be processed with.

    Example:
        >>> ptqc.Preprocessing(resize=256, crop=224,
        ...                    mean=(0.485, 0.456, 0.406),
        ...                    std=(0.229, 0.224, 0.225))
    """

    resize: int | Pair | None = None
    crop: int | Pair | None = None
    fit: Fit = "crop"
    scale: float = 255.0
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    layout: Layout | None = None
    channel_order: ChannelOrder = "RGB"
    resample: Resample = "bilinear"
    fill: float | tuple[float, ...] = 114.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join(str(choice) for choice in choices if choice)
                raise UsageError(f"preprocessing {name} = {getattr(self, name)!r}, expected one of {known}")
        for name in ("resize", "crop"):
            _check_size(name, getattr(self, name))
        for name in ("scale", "mean", "std"):
            _check_numbers(name, getattr(self, name), nonzero=name != "mean")
        _check_fill(self.fill)
        if self.fit in LETTERBOXES and self.crop is not None:
            raise UsageError(f"preprocessing fit = {self.fit!r} shows the whole image: give resize and no crop")

    @classmethod
    def of(cls, value: object) -> "Preprocessing | None":
        """Take the name of a preset, preprocessing as it is, or None. Raises UsageError for anything else."""
        if isinstance(value, str):
            otherwise = "; Preprocessing.from_file(path) reads a TOML file"
            return cls(**preset("preprocessing", value, PREPROCESSING, otherwise).fields)
        return of_kind("preprocessing", value, cls)

    @classmethod
    def from_file(cls, path: Path) -> "Preprocessing":
        """Read the fields from a TOML file, sizes and channel values as arrays; an unknown key is a UsageError.

        Keys may be written as the options of the command line are, with hyphens.
        """
        try:
            values: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except UNREADABLE as error:
            raise UsageError(f"cannot read preprocessing from {path}: {error}") from error
        named = {key.replace("-", "_"): value for key, value in values.items()}
        _check_keys(named, str(path))
        return cls.from_json(named)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """Of fields by name, with arrays for sizes and values of channels."""
        result: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in values.items()}
        return cls(**result)

    @classmethod
    def parse(cls, options: Mapping[str, str], base: "Preprocessing | None" = None) -> "Preprocessing":
        """`base` (default: all defaults) with command-line texts in place: "256", "224x224", "0.485,0.456,0.406"."""
        _check_keys(options, "the command line")
        parsed = {key: PARSERS.get(key, str)(text) for key, text in options.items()}
        return replace(base or cls(), **parsed)

    def load(self, path: Path, spec: InputSpec) -> np.ndarray:
        """One image file as an array of batch 1 in the dtype of `spec`.

        Raises CalibrationError, naming the file, when it cannot be decoded, and when `spec` is not an image input or
        mean and std do not fit its channels.
        """
        target = self._target(spec)
        pixels = np.atleast_3d(np.asarray(self._placed(path, target)))
        if self.channel_order == "BGR":
            pixels = pixels[:, :, ::-1]
        if spec.dtype != np.uint8:
            mean, std = (np.asarray(value, np.float32) for value in (self.mean, self.std))
            pixels = (pixels.astype(np.float32) / np.float32(self.scale) - mean) / std
        if target.layout == "NCHW":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels[np.newaxis], dtype=spec.dtype)

    def mask(self, path: Path, spec: InputSpec) -> np.ndarray:
        """The class of each pixel of an image that is placed as `load` places it, (height, width).

        The file holds class numbers, as gray or as places in a palette. Pixels beyond the image are IGNORED. Raises
        CalibrationError as `load` does, and where the file has colours.
        """
        classes = Image.fromarray(np.asarray(_decoded_mask(path)).astype(np.int32))
        place = self._placement(path, classes.size, self._target(spec).size)
        return np.asarray(place.applied(classes, Image.Resampling.NEAREST, IGNORED))

    def resolved(self, specs: Sequence[InputSpec]) -> "Preprocessing":
        """The same with what follows from the model's input in place of None: layout, crop and resize.

        An input of bytes takes pixels as they are, so that nothing is scaled for it.
        Unchanged where several inputs take images of different sizes. Sizes stay None where the model leaves them open.
        """
        results = set[Preprocessing]()
        for spec in specs:
            with suppress(CalibrationError):  # an input that takes no images
                target = self._target(spec)
                crop = None if self.fit in LETTERBOXES else self.crop or target.size
                resize = self.resize or crop or target.size
                used = replace(self, scale=1.0, mean=0.0, std=1.0) if spec.dtype == np.uint8 else self
                results.add(replace(used, layout=target.layout, crop=crop, resize=resize))
        return results.pop() if len(results) == 1 else self

    def _target(self, spec: InputSpec) -> "_Target":
        where = f"input {spec.name!r}"
        if len(spec.shape) != 4:
            shape = shape_text(spec.shape)
            raise CalibrationError(f"{where}: images need an input of 4 axes, it has shape {shape}: give arrays")
        if spec.dtype not in IMAGE_DTYPES:
            raise CalibrationError(f"{where}: images feed float or uint8 inputs, not {spec.dtype.name}: give arrays")
        layout = self.layout or _layout(spec, where)
        _, *dims = spec.shape
        channels, height, width = dims if layout == "NCHW" else (dims[2], dims[0], dims[1])
        if channels not in (1, 3) and isinstance(channels, int):
            raise CalibrationError(f"{where}: takes {channels} channels in layout {layout}, images have 1 or 3")
        count = channels if isinstance(channels, int) else 3
        for name in ("mean", "std", "fill"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) not in (1, count):
                raise CalibrationError(
                    f"{where}: {name} has {len(value)} values for {count} channels: give 1 or {count}"
                )
        size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        if self.fit in LETTERBOXES and not (self.resize or size):
            raise CalibrationError(f"{where}: takes any size, so a letterbox needs one: give resize, for example 320")
        return _Target(layout, count, size)

    def placement(self, path: Path, spec: InputSpec) -> "Placement":
        """Where the image of a file lies in the model's input.

        Raises CalibrationError where the file cannot be read, or `spec` is not an image input.
        """
        target = self._target(spec)
        return self._placement(path, _decoded(path, target.channels).size, target.size)

    def _placement(self, path: Path, size: Pair, model_size: Pair | None) -> "Placement":
        """Of an image of this (width, height); `model_size` is where neither option says a size."""
        crop = model_size if self.crop is None else _pair(self.crop)
        resize = self.resize or crop
        if resize is None:
            return Placement(0, 0, *size, *size)
        height, width = _pair(resize)
        if self.fit in LETTERBOXES:
            inner, share = _contained(size, (width, height)), LETTERBOXES[self.fit]
            left, top = (round((whole - part) * share) for whole, part in zip((width, height), inner, strict=True))
            return Placement(left, top, *inner, width, height)
        if self.fit == "stretch":
            inner = (width, height)
        else:
            inner = _covering(size, resize)
            if math.prod(inner) > max(MOST_PIXELS, MOST_TIMES * width * height):
                raise CalibrationError(
                    f"image {path} has {size[0]} x {size[1]} pixels, and would have {inner[0]} x {inner[1]} before "
                    "it is cropped: take it out of the data, or give --fit stretch or letterbox"
                )
            crop = crop or (resize if isinstance(resize, tuple) else None)
        if not crop:
            return Placement(0, 0, *inner, *inner)
        left, top = (-round((part - cut) / 2) for part, cut in zip(inner, crop[::-1], strict=True))
        return Placement(left, top, *inner, crop[1], crop[0])

    def _placed(self, path: Path, target: "_Target") -> Image.Image:
        """The image of a file, resized and cropped."""
        image = _decoded(path, target.channels)
        around = self._fill(image) if self.fit in LETTERBOXES else 0
        return self._placement(path, image.size, target.size).applied(image, FILTERS[self.resample], around)

    def _fill(self, image: Image.Image) -> tuple[int, ...]:
        """The colour of `fill` for each band of the image."""
        values = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        return tuple(round(value) for value in values * (len(image.getbands()) // len(values)))


@dataclass(frozen=True)
class Placement:
    """Where an image lies in a model's input of `whole_width` and `whole_height` pixels: its left and top, its size."""

    left: int
    top: int
    width: int
    height: int
    whole_width: int
    whole_height: int

    def applied(self, image: Image.Image, resample: Image.Resampling, around: int | tuple[int, ...]) -> Image.Image:
        """The image resized and cropped. around: the colour of pixels beyond it."""
        whole = Image.new(image.mode, (self.whole_width, self.whole_height), around)
        whole.paste(image.resize((self.width, self.height), resample), (self.left, self.top))
        return whole

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the image is cut off."""
        inside = self.left >= 0 and self.top >= 0
        return inside and self.left + self.width <= self.whole_width and self.top + self.height <= self.whole_height


@dataclass(frozen=True)
class _Target:
    """What an input takes; size is (height, width), or None when the model leaves it open."""

    layout: Layout
    channels: int
    size: Pair | None


def _layout(spec: InputSpec, where: str) -> Layout:
    first, last = spec.shape[1] in (1, 3), spec.shape[3] in (1, 3)
    if first == last:
        shape = shape_text(spec.shape)
        raise CalibrationError(f"{where}: shape {shape} does not show where the channels are: give layout NCHW or NHWC")
    return "NCHW" if first else "NHWC"


def _decoded(path: Path, channels: int) -> Image.Image:
    """The first frame, upright, as mode L (1 channel) or RGB (3)."""
    try:
        with Image.open(path, formats=DECODERS) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith(("I", "F")):
                image = _of_16_bits(image)
            if "transparency" in image.info:  # Pillow warns about palettes with transparency otherwise
                image = image.convert("RGBA")
            return image.convert("L" if channels == 1 else "RGB")
    except Exception as error:  # Pillow's decoders raise many types for a damaged file
        raise CalibrationError(
            f"cannot decode image {path} ({error}): repair it or take it out of the folder"
        ) from error


def _decoded_mask(path: Path) -> Image.Image:
    try:
        with Image.open(path, formats=DECODERS) as file:
            if file.mode in MASK_MODES:
                return file.copy()
            mode = file.mode
    except Exception as error:  # as in `_decoded`
        raise CalibrationError(f"cannot decode mask {path} ({error})") from error
    raise CalibrationError(
        f"the mask {path} has colours (mode {mode}): write the number of the class into each pixel, as gray or palette"
    )


def _of_16_bits(image: Image.Image) -> Image.Image:
    """Gray of 16 bits, which Pillow would clip at 255, in 8. Raises ValueError for numbers beyond, or that are real."""
    pixels = np.asarray(image)
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > LARGEST_GRAY:
        raise ValueError("its pixels are floats or have 32 bits, and their value for white is unknown")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _covering(size: Pair, target: int | Pair) -> Pair:
    """(width, height) whose short side is an int target, or that just covers a pair; long side as torchvision has it.

    size: the image's (width, height).
    """
    width, height = size
    target_height, target_width = _pair(target)
    if height * target_width >= target_height * width:
        return target_width, max(int(target_width * height / width), 1)
    return max(int(target_height * width / height), 1), target_height


def _contained(size: Pair, whole: Pair) -> Pair:
    """(width, height) of an image of `size` that just fits into `whole`, as Pillow's ImageOps.contain has it."""
    width, height = size
    if width * whole[1] > height * whole[0]:
        return whole[0], max(round(height / width * whole[0]), 1)
    if width * whole[1] < height * whole[0]:
        return max(round(width / height * whole[1]), 1), whole[1]
    return whole


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_size(name: str, value: object) -> None:
    sides = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    if value is not None and not all(isinstance(side, int) and _is_number(side) and side > 0 for side in sides):
        raise UsageError(f"preprocessing {name} = {value!r}, expected a positive int or a pair (height, width)")


def _check_numbers(name: str, value: object, nonzero: bool) -> None:
    numbers = value if isinstance(value, tuple) and name != "scale" else (value,)
    if not numbers or not all(_is_number(number) and (number or not nonzero) for number in numbers):
        kind = "a finite number other than 0" if nonzero else "a finite number"
        per_channel = "" if name == "scale" else ", or one for each channel"
        raise UsageError(f"preprocessing {name} = {value!r}, expected {kind}{per_channel}")


def _check_fill(value: object) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) not in (1, 3) or not all(_is_number(number) and 0 <= number <= 255 for number in numbers):
        raise UsageError(f"preprocessing fill = {value!r}, expected a number from 0 to 255, or three: red, green, blue")


def _check_keys(values: Mapping[str, object], where: str) -> None:
    known = [field.name for field in fields(Preprocessing)]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise UsageError(f"{where}: unknown preprocessing {', '.join(unknown)}; known are {', '.join(known)}")


def _parse_size(text: str) -> int | Pair:
    try:
        sides = [int(part) for part in text.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2):
        raise UsageError(f"size {text!r}, expected one number or HEIGHTxWIDTH, for example 256 or 224x224")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _parse_numbers(text: str) -> float | tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a list of numbers such as 0.485,0.456,0.406") from error
    return numbers[0] if len(numbers) == 1 else numbers


IMAGE_DTYPES = frozenset({np.dtype(np.uint8), np.dtype(np.float64), *NARROWED})
PARSERS: dict[str, Callable[[str], Any]] = {
    "resize": _parse_size,
    "crop": _parse_size,
    "scale": _parse_numbers,
    "mean": _parse_numbers,
    "std": _parse_numbers,
    "fill": _parse_numbers,
}
