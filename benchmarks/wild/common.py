"""What all recipes share: where they read and write, and how their samples are stored."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = Mapping[str, np.ndarray]
REMEDIED = "remedied.onnx"  # the same model as a refusal asks for it


@dataclass(frozen=True)
class Place:
    """packages: a folder of unpacked wheels. folder: where the model, of that name, and its samples are written."""

    packages: Path
    folder: Path
    name: str = "model.onnx"

    @property
    def model(self) -> Path:
        """The file that a recipe writes."""
        return self.folder / self.name


@dataclass(frozen=True)
class Pictures:
    """A folder of pictures (N, H, W, 3) of uint8, and how a compile is told to prepare them."""

    pictures: np.ndarray
    options: Sequence[str]


@dataclass(frozen=True)
class Data:
    """Samples as a user of the model would have them.

    calibration: one array per input, first axis samples; or a list of feeds, each with its own first axis; or pictures.
    evaluation: feeds that no step of a compile sees.
    larger_budget: where too small a budget is to be refused, one that will do.
    """

    calibration: Feeds | Sequence[Feeds] | Pictures
    evaluation: Sequence[Feeds]
    larger_budget: str | None = None


def save(data: Data, folder: Path) -> None:
    """Write calibration.npz, or calibration/ with a file for each sample; evaluation/; options and a larger budget."""
    if isinstance(data.calibration, Mapping):
        np.savez(folder / "calibration.npz", **_named(data.calibration))
    elif isinstance(data.calibration, Pictures):
        _save_pictures(data.calibration, folder)
    else:
        _save_each(data.calibration, folder / "calibration")
    _save_each(data.evaluation, folder / "evaluation")
    if data.larger_budget:
        (folder / "larger_budget").write_text(data.larger_budget, encoding="utf-8")


def _named(feeds: Feeds) -> dict[str, Any]:
    """For numpy's savez, some of whose parameters have names of their own."""
    return {**feeds}


def _save_each(samples: Iterable[Feeds], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number, feeds in enumerate(samples):
        np.savez(folder / f"{number:04}.npz", **_named(feeds))


def _save_pictures(images: Pictures, folder: Path) -> None:
    from PIL import Image

    (folder / "calibration").mkdir(exist_ok=True)
    for number, picture in enumerate(images.pictures):
        Image.fromarray(picture).save(folder / "calibration" / f"{number:04}.png")
    (folder / "options.json").write_text(json.dumps(list(images.options)), encoding="utf-8")


def rows(feeds: Feeds) -> list[Feeds]:
    """One array per input with samples along its first axis, as feeds of one sample each."""
    count = len(next(iter(feeds.values())))
    return [{name: array[index : index + 1] for name, array in feeds.items()} for index in range(count)]


def split(feeds: Feeds, calibration: int, evaluation: int) -> Data:
    """The first samples to calibrate with, and the last to evaluate on, one by one."""
    first = {name: array[:calibration] for name, array in feeds.items()}
    last = {name: array[-evaluation:] for name, array in feeds.items()}
    assert calibration + evaluation <= len(next(iter(feeds.values())))
    return Data(first, rows(last))


def apart(samples: Sequence[Feeds], calibration: int) -> Data:
    """The same for samples whose shapes differ."""
    return Data(samples[:calibration], samples[calibration:])
