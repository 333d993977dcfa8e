"""Pictures drawn without any data, with the coarse statistics of photographs.

Photographs have amplitudes that fall as 1/f (Field, J. Opt. Soc. Am. A 4, 1987), channels that vary together, with most
of the variance in brightness (Ruderman et al., J. Opt. Soc. Am. A 15, 1998), edges where one thing hides another, and
a brightness and contrast of their own.
"""

from collections.abc import Callable

import numpy as np

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
