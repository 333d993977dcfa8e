"""Scenes with squares, discs and crosses, and the rule by which a detector's output on them is scored."""

import numpy as np

SIDE = 64
STRIDES = (8, 16)
CLASSES = 3
ANCHORS = sum((SIDE // stride) ** 2 for stride in STRIDES)
COLUMNS = 5 + CLASSES  # left, top, right, bottom distances in strides; objectness logit; class logits

# Half widths from here on belong to the coarse stride.
LARGE = 9.0


def scenes(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 3, 64, 64) in [0, 1] and targets (count, 80, 8) laid out like the network's output."""
    pairs = [_scene(rng) for _ in range(count)]
    return np.stack([image for image, _ in pairs]), np.stack([target for _, target in pairs])


def _scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One scene: up to one shape in each quadrant, on a noisy slope of color."""
    slope = rng.uniform(-0.2, 0.2, (3, 2, 1, 1)) * np.mgrid[:SIDE, :SIDE] / SIDE
    image = rng.uniform(0.2, 0.6, (3, 1, 1)) + slope.sum(1)
    target = np.zeros((ANCHORS, COLUMNS), np.float32)
    for corner in ((0, 0), (0, 32), (32, 0), (32, 32)):
        if rng.random() < 0.6:
            half = rng.uniform(4.0, 14.0)
            center = np.array(corner) + rng.uniform(half + 1, 31 - half, 2)
            kind = int(rng.integers(CLASSES))
            color = image.mean((1, 2)) + rng.choice([-1, 1], 3) * rng.uniform(0.12, 0.4, 3)
            image = np.where(_mask(kind, center, half), color[:, None, None], image)
            _assign(target, kind, center, half)
    image = image + rng.normal(0, 0.05, image.shape)
    return np.clip(image, 0, 1).astype(np.float32), target


def _mask(kind: int, center: np.ndarray, half: float) -> np.ndarray:
    """Pixels (64, 64) covered by a square (0), a disc (1) or a cross (2)."""
    down, right = np.abs(np.mgrid[:SIDE, :SIDE] + 0.5 - center[:, None, None])
    square = np.maximum(down, right) <= half
    if kind == 0:
        return square
    if kind == 1:
        return down**2 + right**2 <= half**2
    return square & (np.minimum(down, right) <= half / 3)


def _assign(target: np.ndarray, kind: int, center: np.ndarray, half: float) -> None:
    """Write one shape into the row of the cell that holds its center, at the stride of its size."""
    coarse = half >= LARGE
    stride = STRIDES[coarse]
    row, column = (center // stride).astype(int)
    anchor = coarse * (SIDE // STRIDES[0]) ** 2 + row * (SIDE // stride) + column
    down, right = center - stride * (np.array([row, column]) + 0.5)
    target[anchor, :4] = np.array([half - right, half - down, half + right, half + down]) / stride
    target[anchor, 4] = 1
    target[anchor, 5 + kind] = 1


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (..., 4) given as distances from the same cell center."""
    first, second = np.maximum(first, 0), np.maximum(second, 0)
    inner = np.minimum(first, second)
    areas = [(box[..., 0] + box[..., 2]) * (box[..., 1] + box[..., 3]) for box in (inner, first, second)]
    return areas[0] / np.maximum(areas[1] + areas[2] - areas[0], 1e-9)


def f1(output: np.ndarray, target: np.ndarray) -> float:
    """F1 of detections in percent: right cell, right class, and an overlap of at least one half."""
    found, real = output[..., 4] > 0, target[..., 4] > 0
    same_class = output[..., 5:].argmax(-1) == target[..., 5:].argmax(-1)
    hits = found & real & same_class & (overlap(output[..., :4], target[..., :4]) >= 0.5)
    return 200 * float(hits.sum()) / max(int(found.sum() + real.sum()), 1)
