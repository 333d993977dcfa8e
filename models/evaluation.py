"""How each network of the catalogue is fed and scored: unlabelled calibration inputs, and data it never saw."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import digits
import numpy as np
import shapes
import tags

HERE = Path(__file__).resolve().parent

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], np.ndarray]


@dataclass(frozen=True)
class Task:
    """One network's data.

    calibration(n): one feed dictionary of n samples (or all there are).
    score(run): the figure in `unit`, higher is better; run(feeds) gives the network's only output.
    """

    unit: str
    calibration: Callable[[int], Feeds]
    score: Callable[[Run], float]


def _digits_calibration(count: int) -> Feeds:
    return {"input": np.load(HERE / "digits_calibration.npz")["input"][:count]}


def _digits_score(run: Run) -> float:
    data = np.load(HERE / "digits_evaluation.npz")
    return 100 * float((run({"input": data["input"]}).argmax(1) == data["labels"]).mean())


def _shapes_calibration(count: int) -> Feeds:
    return {"images": shapes.scenes(count, np.random.default_rng(1))[0]}


def _shapes_score(run: Run) -> float:
    images, targets = shapes.scenes(500, np.random.default_rng(2))
    return shapes.f1(run({"images": images}), targets)


def _tags_calibration(count: int) -> Feeds:
    return {"tokens": tags.sequences(count, np.random.default_rng(1))[0]}


def _tags_score(run: Run) -> float:
    tokens, expected = tags.sequences(500, np.random.default_rng(2))
    return 100 * float((run({"tokens": tokens}).argmax(-1) == expected).mean())


def _pixels_calibration(count: int) -> Feeds:
    (images, _), _ = digits.split()
    return {"pixels": images[:count].reshape(-1, 64)}


def _pixels_score(run: Run) -> float:
    """Explained share of the variance of the held-out digits."""
    _, (images, _) = digits.split()
    pixels = images.reshape(-1, 64)
    error = ((run({"pixels": pixels}) - pixels) ** 2).sum()
    return 100 * float(1 - error / ((pixels - pixels.mean(0)) ** 2).sum())


TASKS = {
    "digits_resnet_dw": Task("top-1 %", _digits_calibration, _digits_score),
    "tiny_detector_silu": Task("F1 %", _shapes_calibration, _shapes_score),
    "tiny_gru_tagger": Task("tag accuracy %", _tags_calibration, _tags_score),
    "tiny_mlp": Task("explained variance %", _pixels_calibration, _pixels_score),
}
