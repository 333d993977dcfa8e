"""Pictures and what is in them: labels in the form of YOLO or of COCO.

YOLO: a text file for each picture, with a line `class centre-x centre-y width height` for each object, in shares of the
picture; it lies beside the picture, or in a folder `labels` where the picture lies in `images`. A picture without such
a file has no objects. COCO: one JSON file for all, with `images`, `annotations` and `categories`.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.images import IMAGE_SUFFIXES, Placement, Preprocessing
from ptqc.calibration.inputs import InputSpec, conform
from ptqc.calibration.samples import guarded
from ptqc.calibration.sources import files_below, spread
from ptqc.errors import UNREADABLE, CalibrationError
from ptqc.evaluation.detection.detector import ClassNumbers
from ptqc.evaluation.detection.precision import Truth
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.arguments import shown

FIELDS = 5
LARGEST_CLASS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Objects:
    """What labels say of a picture. boxes (n, 4): left, top, right and bottom as shares of it."""

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray

    def placed(self, place: Placement) -> Truth:
        """In pixels of the model's input."""
        size, corner = (place.width, place.height) * 2, (place.left, place.top) * 2
        boxes = self.boxes * np.array(size) + np.array(corner)
        return Truth(boxes, self.labels, self.crowd, (place.whole_width, place.whole_height))


@dataclass(frozen=True)
class LabelledPicture:
    """A picture as the model takes it, and what is in it."""

    name: str
    feeds: Feeds
    truth: Truth


def labelled_pictures(
    data: object,
    labels: object,
    numbers: ClassNumbers,
    inputs: Sequence[InputSpec],
    most: int | None,
    preprocessing: Preprocessing,
) -> tuple[int, Iterator[LabelledPicture]]:
    """How many pictures there are, and each of them when it is asked for; at most so many, evenly spread.

    Raises CalibrationError for what are no pictures with labels, here or from the pictures.
    """
    if not isinstance(data, str | Path) or not Path(data).is_dir():
        wrong = isinstance(data, str | Path) and not Path(data).exists()
        message = f"there is no folder {data}" if wrong else f"data is {shown(data)}"
        raise CalibrationError(f"{message}; mean average precision needs a folder of images")
    if len(inputs) != 1:
        raise CalibrationError(f"a folder of images fits models with one input; this one has {len(inputs)}")
    folder = Path(data)
    files = files_below(folder, IMAGE_SUFFIXES)
    if not files:
        raise CalibrationError(f"folder {folder} holds no images: {', '.join(sorted(IMAGE_SUFFIXES))}")
    read, files = _reader(folder, files, labels, numbers)
    chosen = [files[place] for place in spread(len(files), len(files) if most is None else most)]
    pictures = (_picture(path, read, inputs[0], preprocessing) for path in chosen)
    return len(chosen), guarded(pictures, lambda index: f"reading {chosen[index]}")


def _picture(
    path: Path, read: Callable[[Path], Objects], spec: InputSpec, preprocessing: Preprocessing
) -> LabelledPicture:
    place = preprocessing.placement(path, spec)
    if not place.is_whole:
        raise CalibrationError(
            f"the input shows only a part of {path.name}, so its objects cannot all be found: give --fit letterbox, "
            "letterbox-corner or stretch, whatever the model was trained with"
        )
    feeds = conform({spec.name: preprocessing.load(path, spec)}, [spec], 0, path.name)
    return LabelledPicture(path.name, feeds, read(path).placed(place))


def _reader(
    folder: Path, files: list[Path], labels: object, numbers: ClassNumbers
) -> tuple[Callable[[Path], Objects], list[Path]]:
    """What tells the objects of a picture, and the pictures that have labels."""
    if labels is not None and not isinstance(labels, str | Path):
        raise CalibrationError(f"labels is {shown(labels)}; give a folder of text files, or a COCO file")
    path = None if labels is None else Path(labels)
    if path is not None and not path.exists():
        raise CalibrationError(f"the labels {path} do not exist; give a folder of text files, or a COCO file")
    if path is not None and path.is_file():
        result = _of_coco(path, numbers)
        named = [file for file in files if _key(file, folder, result) is not None]
        if not named:
            raise CalibrationError(
                f"{path} names none of the images in {folder}; it has {shown(next(iter(result), ''))}"
            )
        return (lambda file: result[str(_key(file, folder, result))]), named
    if numbers == "ids":
        raise CalibrationError("classes 'ids' are those of a COCO file: give it with --labels")
    texts = {file: _text_of(file, folder, path) for file in files}
    if not any(text.is_file() for text in texts.values()):
        first = next(iter(texts.values()))
        raise CalibrationError(
            f"the images in {folder} have no labels: {first} and the like do not exist; give text files beside the "
            "images or in a folder `labels` beside `images`, or --labels FOLDER or COCO.json"
        )
    return (lambda file: _of_text(texts[file])), files


def _text_of(file: Path, folder: Path, labels: Path | None) -> Path:
    """Where the labels of an image are, whether there are any or not."""
    if labels is not None:
        return (labels / file.relative_to(folder)).with_suffix(".txt")
    beside = file.with_suffix(".txt")
    parts = list(beside.absolute().parts)
    if beside.is_file() or "images" not in parts:
        return beside
    place = len(parts) - 1 - parts[::-1].index("images")
    return Path(*parts[:place], "labels", *parts[place + 1 :])


def _of_text(path: Path) -> Objects:
    if not path.is_file():
        return _objects([], [])
    boxes, labels = list[list[float]](), list[int]()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"cannot read the labels {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = line.split()
        try:
            label, (x, y, width, height) = int(words[0]), map(float, words[1:FIELDS])
        except ValueError:
            raise CalibrationError(
                f"{path}, line {number}: {line[:60]!r} is not `class centre-x centre-y width height`"
            ) from None
        in_image = 0 <= x <= 1 and 0 <= y <= 1 and 0 < width <= 1 and 0 < height <= 1
        if len(words) > FIELDS or not (0 <= label <= LARGEST_CLASS and in_image):
            raise CalibrationError(
                f"{path}, line {number}: {line[:60]!r} is not a class and a box in fractions of the image, from 0 to 1"
            )
        labels.append(label)
        boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    return _objects(boxes, labels)


def _objects(boxes: Sequence[Sequence[float]], labels: Sequence[int], crowd: Sequence[bool] | None = None) -> Objects:
    result = np.zeros(len(labels), bool) if crowd is None else np.array(crowd, bool)
    return Objects(np.array(boxes, np.float64).reshape(-1, 4), np.array(labels, np.int64), result)


def _key(file: Path, folder: Path, annotations: Mapping[str, Objects]) -> str | None:
    """As a COCO file names an image: with its folder below the given one, or without."""
    return next((name for name in (file.relative_to(folder).as_posix(), file.name) if name in annotations), None)


def _of_coco(path: Path, numbers: ClassNumbers) -> dict[str, Objects]:
    """By the name of the image."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        by_image: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
        for annotation in document["annotations"]:
            by_image[annotation["image_id"]].append(annotation)
        ids = sorted(category["id"] for category in document["categories"])
        labels = {one: one if numbers == "ids" else place for place, one in enumerate(ids)}
        return {
            image["file_name"]: _of_annotations(image, by_image[image["id"]], labels) for image in document["images"]
        }
    except (*UNREADABLE, LookupError, TypeError, ArithmeticError) as error:
        raise CalibrationError(
            f"{path} is not a COCO file with images, annotations and categories ({type(error).__name__}: {error})"
        ) from error


def _of_annotations(
    image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], labels: Mapping[int, int]
) -> Objects:
    width, height = image["width"], image["height"]
    if not (width > 0 and height > 0):
        raise ValueError(f"{image['file_name']} has {width} x {height} pixels")
    for annotation in annotations:
        box = annotation["bbox"]
        if not (all(map(math.isfinite, box)) and min(box[2:]) >= 0):
            raise ValueError(f"{image['file_name']} has a box {box}, expected [left, top, width, height] in pixels")
    boxes = [
        [left / width, top / height, (left + wide) / width, (top + high) / height]
        for left, top, wide, high in (annotation["bbox"] for annotation in annotations)
    ]
    crowd = [bool(annotation.get("iscrowd", 0)) for annotation in annotations]
    return _objects(boxes, [labels[annotation["category_id"]] for annotation in annotations], crowd)
