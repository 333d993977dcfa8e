"""Pictures: digits of scikit-learn, photographs of scikit-image, and drawn shapes, faces and words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SHAPES = ("disc", "square", "triangle", "ring", "cross", "star")
KINDS = len(SHAPES)
PHOTOS = ("astronaut", "chelsea", "coffee", "ihc", "motorcycle_left", "hubble_deep_field", "retina", "rocket")
UNSEEN_PHOTOS = 2  # the last of them are kept for evaluation
SMALL, LARGE = (0.1, 0.22), (0.25, 0.42)


def digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The 1797 digits in a fixed random order: (N, 1, size, size) in 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    order = np.random.default_rng(0).permutation(len(dataset.images))
    small = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in dataset.images[order]]
    large = [np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)) for image in small]
    return np.stack(large)[:, None].astype(np.float32) / 255, dataset.target[order].astype(np.int64)


@dataclass(frozen=True)
class Scene:
    """A picture (3, size, size) in 0 to 1; boxes (K, 4) as centre, width and height in pixels; kinds (K,); and the
    kind of every pixel plus one, 0 for the background, (size, size)."""

    picture: np.ndarray
    boxes: np.ndarray
    kinds: np.ndarray
    mask: np.ndarray


def scene(size: int, shapes: int, rng: np.random.Generator, halves: tuple[float, float] = SMALL) -> Scene:
    """Shapes of random kind, place, colour and size before a cloudy background; halves: of a shape's share of it."""
    picture, mask = _clouds(size, rng), Image.new("L", (size, size))
    pens = ImageDraw.Draw(picture), ImageDraw.Draw(mask)
    boxes, kinds = [], []
    for _ in range(shapes):
        kind, half = int(rng.integers(len(SHAPES))), rng.uniform(*halves) * size
        x, y = rng.uniform(half, size - half, 2)
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        _draw(SHAPES[kind], (x, y, half, rng.uniform(0, 6.28)), pens, colour, kind + 1)
        boxes.append((x, y, 2 * half, 2 * half))
        kinds.append(kind)
    noisy = np.asarray(picture, np.float32) + rng.normal(0, 8, (size, size, 3))
    pixels = np.clip(noisy, 0, 255).astype(np.float32).transpose(2, 0, 1) / 255
    return Scene(pixels, np.array(boxes, np.float32), np.array(kinds), np.asarray(mask, np.int64))


def scenes(count: int, size: int, shapes: tuple[int, int], seed: int) -> list[Scene]:
    """Scenes with between so many shapes each."""
    rng = np.random.default_rng(seed)
    return [scene(size, int(rng.integers(shapes[0], shapes[1] + 1)), rng) for _ in range(count)]


def single_shapes(count: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (N, 3, size, size) of one shape each, and its kind."""
    rng = np.random.default_rng(seed)
    drawn = [scene(size, 1, rng, LARGE) for _ in range(count)]
    return np.stack([one.picture for one in drawn]), np.array([one.kinds[0] for one in drawn])


def _clouds(size: int, rng: np.random.Generator) -> Image.Image:
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3)).astype(np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def _draw(shape: str, where: tuple[float, float, float, float], pens: Sequence, colour: tuple, mark: int) -> None:
    x, y, half, angle = where
    around = (x - half, y - half, x + half, y + half)
    for pen, fill in zip(pens, (colour, mark), strict=True):
        if shape == "disc":
            pen.ellipse(around, fill=fill)
        elif shape == "ring":
            pen.ellipse(around, outline=fill, width=max(2, int(half / 3)))
        else:
            pen.polygon(_corners(shape, x, y, half, angle), fill=fill)


def _corners(shape: str, x: float, y: float, half: float, angle: float) -> list[tuple[float, float]]:
    radii = {
        "square": [1.0] * 4,
        "triangle": [1.0] * 3,
        "star": [1.0, 0.4] * 5,
        "cross": [1.0, 1.0, 0.35] * 4,
    }[shape]
    steps = np.arange(len(radii)) / len(radii) * 2 * np.pi + angle
    if shape == "cross":
        steps = np.concatenate([[a - 0.3, a + 0.3, a + np.pi / 4] for a in np.arange(4) * np.pi / 2]) + angle
    return [(x + half * r * np.cos(a), y + half * r * np.sin(a)) for r, a in zip(radii, steps, strict=True)]


def photos(packages: Path) -> list[np.ndarray]:
    """Photographs that scikit-image ships, (H, W, 3) of uint8."""
    folder = packages / "skimage" / "data"
    paths = [next(folder.glob(f"{name}.*")) for name in PHOTOS]
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths]


def crops(pictures: Sequence[np.ndarray], count: int, size: int, seed: int) -> list[np.ndarray]:
    """Square parts of random size and place, scaled: (size, size, 3) of uint8."""
    rng = np.random.default_rng(seed)
    return [_crop(pictures[int(rng.integers(len(pictures)))], size, rng) for _ in range(count)]


def _crop(picture: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    side = int(rng.uniform(0.4, 1) * min(picture.shape[:2]))
    top, left = (int(rng.integers(0, length - side + 1)) for length in picture.shape[:2])
    part = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))


def photo_crops(packages: Path, calibration: int, evaluation: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Crops of some photographs and of others, (N, size, size, 3) of uint8 each."""
    photographs = photos(packages)
    seen, unseen = photographs[:-UNSEEN_PHOTOS], photographs[-UNSEEN_PHOTOS:]
    return np.stack(crops(seen, calibration, size, 1)), np.stack(crops(unseen, evaluation, size, 2))


def faces(packages: Path) -> np.ndarray:
    """One hundred small grey faces that scikit-image ships, (100, 25, 25) in 0 to 1."""
    return np.load(packages / "skimage" / "data" / "lfw_subset.npy")[:100].astype(np.float32)


def portraits(packages: Path, count: int, size: int) -> np.ndarray:
    """The faces scaled and varied in light, mirrored at random: (count, size, size) of uint8."""
    rng, known = np.random.default_rng(3), faces(packages)
    drawn = []
    for index in range(count):
        face = known[index % len(known)][:, :: rng.choice((-1, 1))]
        light = np.clip(face * rng.uniform(0.6, 1.2) * 255, 0, 255).astype(np.uint8)
        margin = rng.integers(0, 4, 4)
        light = light[margin[0] : 25 - margin[1], margin[2] : 25 - margin[3]]
        drawn.append(np.asarray(Image.fromarray(light).resize((size, size), Image.Resampling.BICUBIC)))
    return np.stack(drawn)


def crowds(packages: Path, count: int, size: int, seed: int) -> np.ndarray:
    """Photographs with one to three faces put in: (count, size, size, 3) of uint8."""
    rng, known = np.random.default_rng(seed), portraits(packages, 200, 96)
    return np.stack([_crowd(picture, known, rng) for picture in crops(photos(packages), count, size, seed)])


def _crowd(picture: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    canvas, size = Image.fromarray(picture), len(picture)
    for _ in range(rng.integers(1, 4)):
        side = int(rng.uniform(0.15, 0.45) * size)
        face = Image.fromarray(known[rng.integers(len(known))]).resize((side, side), Image.Resampling.BICUBIC)
        warm = Image.merge("RGB", [face, face.point(lambda v: int(v * 0.85)), face.point(lambda v: int(v * 0.75))])
        left, top = rng.integers(0, size - side, 2)
        canvas.paste(warm, (int(left), int(top)))
    return np.asarray(canvas)


def line(text: str, height: int, rng: np.random.Generator) -> np.ndarray:
    """A line of printed text, as wide as it needs, dark on light or light on dark: (height, W) of uint8."""
    font = ImageFont.load_default(size=int(rng.uniform(0.6, 0.8) * height))
    width = int(font.getlength(text)) + 2 * int(rng.integers(3, 9))
    back, ink = rng.choice([[230, 30], [200, 60], [40, 220]])
    page = Image.new("L", (width, height), int(back))
    ImageDraw.Draw(page).text((width / 2, height / 2 + rng.uniform(-1, 1)), text, int(ink), font, anchor="mm")
    blurred = page.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))
    return np.clip(np.asarray(blurred) + rng.normal(0, 6, (height, width)), 0, 255).astype(np.uint8)


def page(words: Sequence[str], height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Several lines of text on a cloudy background: (height, width, 3) of uint8."""
    canvas = np.array(_clouds(max(height, width), rng))[:height, :width] // 3 + 120
    for _ in range(int(rng.integers(3, 9))):
        text = " ".join(rng.choice(words, int(rng.integers(1, 5))))
        printed = line(text, int(rng.integers(18, 48)), rng)[:, :width]
        top, left = (int(rng.integers(0, free + 1)) for free in np.subtract((height, width), printed.shape))
        canvas[top : top + printed.shape[0], left : left + printed.shape[1]] = printed[:, :, None]
    return canvas.astype(np.uint8)


def channels_first(pictures: np.ndarray, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """(N, H, W, 3) of uint8 as (N, 3, H, W) of float32: pixels in 0 to 1, less the mean, over the deviation."""
    return ((pictures.transpose(0, 3, 1, 2) / 255 - mean) / std).astype(np.float32)
