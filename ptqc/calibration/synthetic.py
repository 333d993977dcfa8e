"""Calibration samples that ptqc draws itself, for a model whose data nobody has at hand.

Images are pictures with the coarse statistics of photographs, other float inputs are normal, integers index the rows
of the embedding that they select from. A text has FREE_LENGTH tokens of one kind, none of which is masked, and nothing
is cached before it; where a model takes fewer tokens in a run, the others are cached, as normal keys and values. What
an encoder made of another text or sound has as many places.

Attention over few places gives larger numbers than over many: it averages values, and of one place gives that itself.
So some samples are short, where the model runs on these: of every SHORT samples one has a text, or something heard, of
1, 2, 4, ... places.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import InputRole, InputSpec, input_specs, roles, shape_text
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.nodes import constant, number, only_consumer
from ptqc.ir.operators import Trait, named

# Pictures drawn without any data, with the coarse statistics of photographs.
#
# Photographs have amplitudes that fall as 1/f (Field, J. Opt. Soc. Am. A 4, 1987), channels that vary together, with
# most of the variance in brightness (Ruderman et al., J. Opt. Soc. Am. A 15, 1998), edges where one thing hides
# another, and a brightness and contrast of their own.

Array = np.ndarray

MEAN, STD = 0.45, 0.25  # of the pixels of photographs, of their range
COLOUR = np.array([[1.0, 0.4, 0.15], [1.0, 0.0, -0.3], [1.0, -0.4, 0.15]])  # brightness, blue-yellow, red-green
SLOPES = 0.8, 1.4  # of the amplitudes; 1 in the mean of photographs
BRIGHTNESS, CONTRAST = 0.5, (0.3, 1.3)  # standard deviation over pictures, and range within one, in units of STD
THINGS = 12  # at most, in one picture
Mask = Callable[[np.random.Generator, Array, Array], Array]


def picture(rng: np.random.Generator, channels: int, height: int, width: int) -> Array:
    """One picture (channels, height, width) of 1 or 3 channels in float32, pixels from 0 to 1."""
    layers = np.stack([_texture(rng, height, width) for _ in range(3)])
    for _ in range(rng.integers(THINGS + 1)):
        _put_thing(rng, layers)
    x = np.tensordot(COLOUR, layers, 1) if channels == 3 else layers[:1]
    x = (x - x.mean()) / max(x.std(), 1e-6)
    x = BRIGHTNESS * rng.standard_normal() + rng.uniform(*CONTRAST) * x
    pixels: Array = np.clip(MEAN + STD * x, 0, 1).astype(np.float32)
    return pixels


def _texture(rng: np.random.Generator, height: int, width: int) -> Array:
    """Noise with amplitudes 1/f^slope, of variance 1 and mean 0."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf  # no constant part
    amplitude = frequency ** -rng.uniform(*SLOPES)
    phases = rng.standard_normal(amplitude.shape) + 1j * rng.standard_normal(amplitude.shape)
    noise = np.fft.irfft2(amplitude * phases, (height, width))
    normalized: Array = noise / max(noise.std(), 1e-6)
    return normalized


def _put_thing(rng: np.random.Generator, layers: Array) -> None:
    """Something of another colour, shading and texture that hides what is behind it."""
    height, width = layers.shape[1:]
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    mask = SHAPES[rng.integers(len(SHAPES))](rng, y, x)
    slope = rng.standard_normal((3, 2, 1, 1))
    shading = rng.standard_normal((3, 1, 1)) * 1.2 + slope[:, 0] * (y - 0.5) + slope[:, 1] * (x - 0.5)
    own = rng.uniform(0, 0.5) * _texture(rng, height, width)
    layers[:, mask] = (shading + own)[:, mask]


def _rectangle(rng: np.random.Generator, y: Array, x: Array) -> Array:
    """A rectangle, turned."""
    angle, (v, u) = rng.uniform(0, np.pi), rng.uniform(0, 1, 2)
    across, along = _turned(y - v, x - u, angle)
    inside: Array = (np.abs(across) < rng.uniform(0.03, 0.4)) & (np.abs(along) < rng.uniform(0.03, 0.4))
    return inside


def _ellipse(rng: np.random.Generator, y: Array, x: Array) -> Array:
    """An ellipse, turned."""
    angle, (v, u) = rng.uniform(0, np.pi), rng.uniform(0, 1, 2)
    across, along = _turned(y - v, x - u, angle)
    inside: Array = (across / rng.uniform(0.03, 0.4)) ** 2 + (along / rng.uniform(0.03, 0.4)) ** 2 < 1
    return inside


def _half(rng: np.random.Generator, y: Array, x: Array) -> Array:
    """Everything on one side of a line."""
    across, _ = _turned(y - 0.5, x - 0.5, rng.uniform(0, 2 * np.pi))
    inside: Array = across > rng.uniform(0, 0.5)
    return inside


def _turned(y: Array, x: Array, angle: float) -> tuple[Array, Array]:
    return np.cos(angle) * y - np.sin(angle) * x, np.sin(angle) * y + np.cos(angle) * x


SHAPES: tuple[Mask, ...] = (_rectangle, _ellipse, _half)


# Which values a float image input takes, as far as the graph says so by a normalization at its head.
#
# A pixel p in 0..1 becomes low + (high - low) p, per channel.

BYTES = 255.0
AFFINE = named(Trait.AFFINE)
MOVES = named(Trait.COPIES) | {"Transpose"}


@dataclass(frozen=True)
class PixelRange:
    """What pixels of 0 and of 1 become, one value per channel (or one for all), and how messages name it."""

    low: Array
    high: Array
    description: str

    def apply(self, picture: Array) -> Array:
        """Pixels (channels, height, width) as the model takes them."""
        low, high = (bound.reshape(-1, 1, 1) for bound in (self.low, self.high))
        taken: Array = (low + (high - low) * picture).astype(np.float32)
        return taken

    @classmethod
    def between(cls, low: float, high: float) -> "PixelRange":
        """The same range in every channel."""
        return cls(np.array([low]), np.array([high]), f"pixels from {low:g} to {high:g}")

    @classmethod
    def normalized(cls, mean: Array, std: Array, description: str) -> "PixelRange":
        """The range in which the pixels of photographs have this mean and standard deviation."""
        return cls(mean - std * MEAN / STD, mean + std * (1 - MEAN) / STD, description)


RAW = PixelRange.between(0, BYTES)
# What trained networks take that do not say what they take, likeliest first.
COMMON = (
    PixelRange.normalized(np.zeros(1), np.ones(1), "pixels of mean 0 and variance 1"),
    PixelRange.between(0, 1),
    PixelRange.between(-1, 1),
    RAW,
)


def stated_range(value: ir.Value) -> PixelRange | None:
    """The range of an image input by the normalization that reads it; None if there is none."""
    factor, shift = np.ones(1), np.zeros(1)
    normalized = False
    while (node := only_consumer(value)) is not None and not node.domain:
        if node.op_type == "BatchNormalization" and not normalized:
            return _by_batch_normalization(node)
        if node.op_type in AFFINE and (affine := _affine(node, value)) is not None:
            factor, shift = factor * affine[0], shift * affine[0] + affine[1]
            normalized = True
        elif node.op_type not in MOVES:
            break
        value = node.outputs[0]
    return _by_affine(factor, shift) if normalized else None


def _by_batch_normalization(node: ir.Node) -> PixelRange | None:
    mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
    if mean is None or variance is None:
        return None
    std = np.sqrt(np.asarray(variance, np.float64) + number(node, "epsilon", 1e-5))
    return PixelRange.normalized(mean, std, "pixels with the statistics of the batch normalization that reads them")


def _by_affine(factor: Array, shift: Array) -> PixelRange | None:
    """The range that (x - mean) / std is made for: bytes unless mean and std are those of pixels from 0 to 1.

    A negative mean undoes another normalization: that of pixels from 0 to 1.
    """
    if not np.all(factor > 0):
        return None
    mean, std = -shift / factor, 1 / factor
    if mean.min() < 0:
        return PixelRange(mean, mean + std, "pixels that the normalization after the input takes to 0 to 1")
    top = 1.0 if (mean + std).max() <= 2 else BYTES
    return PixelRange(np.zeros(1), np.full(1, top), f"pixels from 0 to {top:g}, by the normalization after the input")


def _affine(node: ir.Node, value: ir.Value) -> tuple[Array, Array] | None:
    """(a, c) such that the node computes a x + c, with one value per channel; None for anything else."""
    left, right = node.inputs
    operand = constant(right if left is value else left)
    if operand is None or operand.size not in (1, 3) or (left is not value and node.op_type == "Div"):
        return None
    c = np.asarray(operand, np.float64).reshape(-1)
    if node.op_type in ("Mul", "Div"):
        return (c if node.op_type == "Mul" else 1 / c), np.zeros(1)
    if left is not value and node.op_type == "Sub":
        return -np.ones(1), c
    return np.ones(1), c if node.op_type == "Add" else -c


CHANNELS = (1, 3)
FREE_SIDE = 224  # of a picture whose sizes the model leaves open: a multiple of every usual stride
# Others, for models that run at one size and do not say at which, as those with a table of positions.
OTHER_SIDES = (384, 256, 336, 448, 512, 128, 64, 32)
FREE_LENGTH = 32  # of a sequence of tokens
SHORT = 4  # one sample in so many has a shorter sequence, the third the first of them
LENGTHS = (1, 2, 4, 8, 16)
ADVICE = "give real samples with --calibration DATA"

Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Drawer:
    """Draws the values of an input. shape: of what it draws."""

    shape: tuple[int, ...]
    draw: Draw


@dataclass(frozen=True)
class Sizes:
    """Sizes of drawn sequences: tokens of a text with those that are cached, and places of what an encoder made."""

    tokens: int = FREE_LENGTH
    heard: int = FREE_LENGTH


def draw(
    model: ir.Model,
    count: int,
    seed: int,
    pixels: Mapping[str, PixelRange],
    side: int = FREE_SIDE,
    short: Sequence[Sizes] = (),
) -> Iterator[Feeds]:
    """Samples for every input of the model, the same for the same seed; a free batch is 1.

    pixels: the range of each image, by input name (default: bytes). side: of images whose sizes are open. short: what
    short samples are like, one after the other.
    Raises CalibrationError, at once, for an input that nothing can be drawn for.
    """
    inputs = input_specs(model)
    kinds = [_drawers(inputs, pixels, side, sizes) for sizes in (Sizes(), *short)]
    return (_sample(kinds[_kind(n, len(short))], np.random.default_rng((seed, n))) for n in range(count))


def drawn_shapes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The shapes of what `draw` draws, by input. Raises CalibrationError as it does."""
    return {name: one.shape for name, one in _drawers(input_specs(model), {}, FREE_SIDE, Sizes()).items()}


def _drawers(
    inputs: Sequence[InputSpec], pixels: Mapping[str, PixelRange], side: int, sizes: Sizes
) -> dict[str, Drawer]:
    result = roles(inputs)
    lengths = _Lengths.of(inputs, result, sizes)
    return {spec.name: _drawer(spec, result[spec.name], pixels.get(spec.name, RAW), side, lengths) for spec in inputs}


def short_sizes(model: ir.Model) -> list[Sizes]:
    """What short samples of a model can be like; none where it has no sequence, or one of a fixed length."""
    inputs = input_specs(model)
    result = roles(inputs)
    tried = [Sizes(**{kind: length}) for length in LENGTHS for kind in ("heard", "tokens")]
    shapes = [_shapes(inputs, result, sizes) for sizes in (Sizes(), *tried)]
    return [sizes for sizes, shape in zip(tried, shapes[1:], strict=True) if shape != shapes[0]]


def _shapes(inputs: Sequence[InputSpec], roles: Mapping[str, InputRole], sizes: Sizes) -> list[tuple[int, ...]]:
    """Of all inputs with tokens and of those that are heard."""
    lengths = _Lengths.of(inputs, roles, sizes)
    return [
        lengths.of_axes(spec, lengths.heard if role is InputRole.HEARD else lengths.whole)
        for spec in inputs
        if (role := roles[spec.name]) in (InputRole.TOKENS, InputRole.HEARD)
    ]


def is_image(spec: InputSpec) -> bool:
    """Whether pictures are drawn for this input."""
    return _channel_axis(spec) is not None


def spatial_axes(spec: InputSpec) -> tuple[int, ...]:
    """Where height and width of images stand; none for any other input."""
    axis = _channel_axis(spec)
    return () if axis is None else (1, 2) if axis == 3 else (2, 3)


def _kind(index: int, others: int) -> int:
    """Of which kind a sample is: 0 where it is whole, else the number of one of so many short ones, from 1."""
    block, place = divmod(index, SHORT)
    return 1 + block % others if others and place == SHORT // 2 else 0


def _sample(drawn: Mapping[str, Drawer], rng: np.random.Generator) -> Feeds:
    return {name: one.draw(rng) for name, one in drawn.items()}


@dataclass(frozen=True)
class _Lengths:
    """Sizes that inputs leave open.

    past, whole: tokens that are cached, and those of a text with these. heard: places of what an encoder made. symbols:
    by symbol, of the axes that inputs of integers leave open, which other inputs have too.
    """

    past: int
    whole: int
    heard: int
    symbols: Mapping[str, int]

    @classmethod
    def of(cls, inputs: Sequence[InputSpec], roles: Mapping[str, InputRole], sizes: Sizes) -> Self:
        """Of a model with these inputs, whose roles are known."""
        tokens = [spec.shape[-1] for spec in inputs if roles[spec.name] is InputRole.TOKENS and len(spec.shape) > 1]
        at_once = next((size for size in tokens if isinstance(size, int)), sizes.tokens)
        whole = max(sizes.tokens, at_once)
        symbols = (dim for spec in inputs if spec.dtype.kind in "iub" and not is_image(spec) for dim in spec.shape[1:])
        heard = {dim for spec in inputs if roles[spec.name] is InputRole.HEARD for dim in spec.shape[1:]} - set(tokens)
        by_symbol = {dim: sizes.heard if dim in heard else whole for dim in symbols if isinstance(dim, str)}
        return cls(whole - at_once, whole, sizes.heard, by_symbol)

    def of_axes(self, spec: InputSpec, free: int) -> tuple[int, ...]:
        """The input's shape with a batch of 1 and this size where it and all symbols leave an axis open."""
        return _sizes(spec, dict.fromkeys(range(1, len(spec.shape)), free), self.symbols)


def _drawer(spec: InputSpec, role: InputRole, pixels: PixelRange, side: int, lengths: _Lengths) -> Drawer:
    if is_image(spec) and role not in (InputRole.MASK, InputRole.PAST, InputRole.HEARD):
        return _pictures(spec, pixels, side)
    if role in (InputRole.PAST, InputRole.HEARD):
        return _normal(lengths.of_axes(spec, lengths.past if role is InputRole.PAST else lengths.heard), spec.dtype)
    if spec.dtype.kind in "iub" or role is InputRole.MASK:
        return _of_tokens(spec, role, lengths)
    if spec.dtype.kind in "cU":
        raise CalibrationError(f"input {spec}: no samples can be generated for this type: {ADVICE}")
    return _normal(_sizes(spec, {}, lengths.symbols), spec.dtype)


def _normal(shape: tuple[int, ...], dtype: np.dtype) -> Drawer:
    return Drawer(shape, lambda rng: rng.standard_normal(shape).astype(dtype))


def _always(number: int, shape: tuple[int, ...], dtype: np.dtype) -> Drawer:
    return Drawer(shape, lambda _rng: np.full(shape, number, dtype))


def _channel_axis(spec: InputSpec) -> int | None:
    """The axis of the channels where the input is a batch of images: 1, or 3 for channels last; None for any other."""
    if len(spec.shape) != 4 or (spec.dtype.kind in "iub" and spec.dtype != np.uint8):
        return None
    return next((axis for axis in (1, 3) if spec.shape[axis] in CHANNELS), None)


def _pictures(spec: InputSpec, pixels: PixelRange, side: int) -> Drawer:
    axis, spatial = _channel_axis(spec), spatial_axes(spec)
    shape = _sizes(spec, dict.fromkeys(spatial, side), {})
    channels, height, width = (shape[a] for a in (axis or 1, *spatial))

    def one(rng: np.random.Generator) -> np.ndarray:
        batch = np.stack([pixels.apply(picture(rng, channels, height, width)) for _ in range(shape[0])])
        batch = np.moveaxis(batch, 1, -1) if axis == 3 else batch
        return np.rint(batch).astype(spec.dtype) if spec.dtype == np.uint8 else batch.astype(spec.dtype)

    return Drawer(shape, one)


def _of_tokens(spec: InputSpec, role: InputRole, lengths: _Lengths) -> Drawer:
    """What is said of each token: its row of a table, and what else a model of texts takes."""
    shape = lengths.of_axes(spec, lengths.whole)
    if role is InputRole.MASK:  # where it is added to what a softmax gets, the same everywhere changes nothing
        return _always(1, shape, spec.dtype)
    if role is InputRole.PLACES and shape:
        return Drawer(shape, lambda _rng: _places(spec, shape, lengths))
    if role in (InputRole.TYPES, InputRole.FLAG):
        return _always(0, shape, spec.dtype)
    rows = spec.rows
    if spec.dtype.kind == "b":
        raise CalibrationError(f"input {spec}: no samples can be generated for this type: {ADVICE}")
    if not rows:
        raise CalibrationError(
            f"input {spec}: no embedding says which integers it takes, so none can be generated: {ADVICE}"
        )
    return Drawer(shape, lambda rng: rng.integers(0, rows, shape).astype(spec.dtype))


def _places(spec: InputSpec, shape: tuple[int, ...], lengths: _Lengths) -> np.ndarray:
    places = lengths.whole - shape[-1] + np.arange(shape[-1]) if lengths.past else np.arange(shape[-1])
    return np.broadcast_to(places % (spec.rows or lengths.whole), shape).astype(spec.dtype)


def _sizes(spec: InputSpec, free: Mapping[int, int], lengths: Mapping[str, int]) -> tuple[int, ...]:
    """The input's shape with a batch of 1 and these sizes where it leaves an axis open. lengths: by symbol."""
    free = {0: 1, **free}
    sizes = [dim if isinstance(dim, int) else lengths.get(dim or "", free.get(a)) for a, dim in enumerate(spec.shape)]
    if None in sizes:
        raise CalibrationError(
            f"input {spec}: axis {sizes.index(None)} of {shape_text(spec.shape)} has no size, and none can be guessed: "
            f"fix it in the model, or {ADVICE}"
        )
    return tuple(size for size in sizes if size is not None)
