"""The digits data: scikit-learn's 8x8 images, split once; distorted and resampled to 16x16 they are not trivial."""

import numpy as np
from sklearn.datasets import load_digits

SIDE = 16
HELD_OUT = 449
CALIBRATION_SAMPLES = 512
EVALUATION_COPIES = 4
CLASSES = 10

# Pixel values are multiples of this, so that the committed arrays compress well and are exact in binary.
PIXEL_STEP = 1 / 32


def split() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(images, labels) of the training part and of the held-out part; images (n, 8, 8) float32 in [0, 1]."""
    bunch = load_digits()
    order = np.random.default_rng(1797).permutation(len(bunch.target))
    images = (bunch.images[order] / 16).astype(np.float32)
    labels = bunch.target[order].astype(np.int64)
    return (images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


def distort(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Randomly turned, scaled, sheared, shifted, faded and noisy copies: (n, 8, 8) -> (n, 1, 16, 16) float32."""
    clean = _resample(images, *_source_points(len(images), rng))
    contrast = rng.uniform(0.6, 1.0, (len(images), 1, 1))
    background = rng.uniform(0.0, 0.3, (len(images), 1, 1))
    noisy = background + contrast * clean + rng.normal(0, 0.06, clean.shape)
    return (np.rint(np.clip(noisy, 0, 1) / PIXEL_STEP) * PIXEL_STEP).astype(np.float32)[:, None]


def _source_points(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Row and column in the 8x8 source of every pixel of the 16x16 result, each (count, 16, 16)."""
    angle = rng.uniform(-0.35, 0.35, count)
    scale = rng.uniform(0.9, 1.25, count)
    shear = rng.uniform(-0.25, 0.25, count)
    shift = rng.uniform(-0.9, 0.9, (2, count, 1, 1))
    grid = (np.arange(SIDE) + 0.5) / SIDE * 8 - 4
    row, column = (points[None] for points in np.meshgrid(grid, grid, indexing="ij"))
    cos, sin = (np.cos(angle) * scale)[:, None, None], (np.sin(angle) * scale)[:, None, None]
    slant = shear[:, None, None]
    rows = cos * row + sin * column + shift[0]
    columns = (slant * cos - sin) * row + (cos + slant * sin) * column + shift[1]
    return rows + 3.5, columns + 3.5


def _resample(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Bilinear samples at fractional positions; everything outside the image is 0."""
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    rows, columns = np.clip(rows + 1, 0, 9), np.clip(columns + 1, 0, 9)
    top, left = rows.astype(int), columns.astype(int)
    down, right = rows - top, columns - left
    index = np.arange(len(images))[:, None, None]
    upper = padded[index, top, left] * (1 - right) + padded[index, top, left + 1] * right
    lower = padded[index, top + 1, left] * (1 - right) + padded[index, top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def calibration() -> np.ndarray:
    """Unlabelled inputs (512, 1, 16, 16) made from the training part."""
    (images, _), _ = split()
    return distort(images[:CALIBRATION_SAMPLES], np.random.default_rng(1))


def evaluation() -> tuple[np.ndarray, np.ndarray]:
    """Inputs (1796, 1, 16, 16) and labels (1796,) made from the held-out part, four copies of each image."""
    _, (images, labels) = split()
    copies = np.tile(images, (EVALUATION_COPIES, 1, 1))
    return distort(copies, np.random.default_rng(2)), np.tile(labels, EVALUATION_COPIES)
