"""Labelled samples for the report and for budgets of points: accuracy of classes, mean IoU of masks, mAP of boxes.

A budget of points chooses on every second sample and judges on the others; nothing else is chosen on labelled samples.
"""

import csv
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import onnx_ir as ir

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputRole, InputSpec, as_array, input_specs, roles
from ptqc.calibration.samples import EVERY_SAMPLE, Samples, collect
from ptqc.calibration.sources import (
    CSV,
    IMAGES,
    LABELS,
    MASKS,
    TEXT_TABLE,
    are_classes,
    are_labels,
    csv_of_texts,
    lacks_tokenizer,
    npz_members,
    spread,
    without,
)
from ptqc.calibration.texts import LabelledLine, Texts, is_table, labelled_lines
from ptqc.errors import CalibrationError, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.detection.pictures import labelled_pictures
from ptqc.evaluation.detection.precision import Matched, MeanPrecision, Truth, matched
from ptqc.evaluation.masks import MaskFile, joined, mean_iou, no_such_class, overlaps, with_masks
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.arguments import path_of, shown

MOST_DIGITS = 9  # of a class number
NO_CLASS = -1
GROUPS = 50  # of samples: a score is computed without each
MASK_AXES = 2  # the fewest of a label for each pixel
ARRAYS, COCO = ".npz", ".json"
IN_MEMORY = (
    "a dict of arrays such as {'input': images, 'labels': classes}, or an iterable of (image, class) or (image, mask)"
)

Runs = Callable[[Feeds], dict[str, np.ndarray]]
LabelSource = Path | Texts | Mapping[str, Any] | Iterable[Any]
AnyLabels = str | PathLike[str] | LabelSource


@dataclass(frozen=True)
class Labelled(ABC):
    """Samples with labels, and the score that they give a model, in percent. title: of the score."""

    samples: Samples
    title: ClassVar[str]
    counts_hits: ClassVar[bool] = False  # whether each sample is a hit or none

    def score(self, run: Runs) -> float:
        """The score of a model that runs so."""
        return self.points(self.measured(run))

    @abstractmethod
    def measured(self, run: Runs) -> Sequence[Any]:
        """What each sample adds to the score."""

    @abstractmethod
    def points(self, measured: Sequence[Any]) -> float:
        """The score of samples, in percent. measured: of each."""

    @abstractmethod
    def select(self, places: Sequence[int]) -> Self:
        """The samples at these places."""

    def every_second(self, first: int) -> Self:
        """Every second sample from the first given."""
        return self.select(range(first, len(self.samples), 2))

    @property
    def distinct(self) -> Self:
        """One of several copies of a sample."""
        return self.select(sorted(set(self.samples.originals)))

    def guessing(self, run: Runs) -> float | None:
        """What guessing scores, in percent; None where that is unknown. Raises CalibrationError for wrong labels."""
        del run
        return None

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many numbers `drops` gives."""

    @abstractmethod
    def drops(self, real: Sequence[Any], values: Sequence[Any]) -> np.ndarray:
        """Independent numbers whose spread tells how sure the drop from one score to the other is."""


@dataclass(frozen=True)
class LabelledClasses(Labelled):
    """labels: the class number of each sample. names: of the samples, for messages."""

    labels: np.ndarray
    names: tuple[str, ...] = ()
    title: ClassVar[str] = "top-1 accuracy, %"
    counts_hits: ClassVar[bool] = True

    def measured(self, run: Runs) -> Sequence[int]:
        """Of each sample, 1 where its class is its label, else 0; see `predicted`."""
        pairs = zip(self.samples, self.labels, strict=True)
        return [int(predicted(run(feeds)) == label) for feeds, label in pairs]

    def points(self, measured: Sequence[int]) -> float:
        """Share of samples whose class is their label."""
        return 100 * float(np.mean(measured))

    def select(self, places: Sequence[int]) -> "LabelledClasses":
        """See `Labelled`."""
        names = tuple(self.names[place] for place in places) if self.names else ()
        return LabelledClasses(self.samples.select(places), self.labels[list(places)], names)

    def guessing(self, run: Runs) -> float | None:
        """See `Labelled`: one of the classes that the model scores."""
        answer = _answer(run(self.samples[0]))
        if answer.dtype.kind != "f" or answer.size < 2 or answer.size != max(answer.shape):
            return None
        outside = np.flatnonzero((self.labels < 0) | (self.labels >= answer.size))
        if outside.size:
            first = int(outside[0])
            name = self.names[first] if self.names else self.samples.names[first]
            raise CalibrationError(f"{name}: {no_such_class(int(self.labels[first]), 'the model', answer.size)}")
        return 100 / answer.size

    @property
    def draws(self) -> int:
        """See `Labelled`."""
        return len(self.samples)

    def drops(self, real: Sequence[int], numbers: Sequence[int]) -> np.ndarray:
        """Points of each sample."""
        return 100.0 * np.subtract(real, numbers, dtype=np.float64)


class Pooled(Labelled):
    """Samples whose score is that of all of them together, and no mean over samples."""

    @property
    def draws(self) -> int:
        """See `Labelled`."""
        return min(GROUPS, len(self.samples))

    def drops(self, real: Sequence[Any], values: Sequence[Any]) -> np.ndarray:
        """Pseudo-values of the jackknife (Tukey 1958), one of each group of samples that is left out."""
        count = self.draws
        whole = self.points(real) - self.points(values)
        left = [self.points(_without(real, i, count)) - self.points(_without(values, i, count)) for i in range(count)]
        return count * whole - (count - 1) * np.array(left)


def _without(measured: Sequence[Any], group: int, groups: int) -> list[Any]:
    return [one for place, one in enumerate(measured) if place % groups != group]


@dataclass(frozen=True)
class LabelledObjects(Pooled):
    """truths: what is in each picture. detector: how the model writes what it finds."""

    truths: tuple[Truth, ...]
    detector: Detector
    title: ClassVar[str] = "mAP 50-95, %"

    def measured(self, run: Runs) -> Sequence[Matched]:
        """What is found in each picture, and whether it is there. Raises UsageError as `Detector.decode`."""
        pairs = zip(self.samples, self.truths, strict=True)
        return [matched(self.detector.decode(run(feeds), truth.size), truth) for feeds, truth in pairs]

    def points(self, measured: Sequence[Matched]) -> float:
        """Mean average precision as COCO defines it."""
        return 100 * MeanPrecision.of(measured).mean

    def select(self, places: Sequence[int]) -> "LabelledObjects":
        """See `Labelled`."""
        return LabelledObjects(self.samples.select(places), tuple(self.truths[i] for i in places), self.detector)


@dataclass(frozen=True)
class LabelledMasks(Pooled):
    """masks: the class of each pixel of each picture, as `overlaps` takes them."""

    masks: tuple[np.ndarray | MaskFile, ...]
    title: ClassVar[str] = "mean IoU, %"

    def measured(self, run: Runs) -> Sequence[np.ndarray]:
        """The overlaps of each picture. Raises CalibrationError where output and mask do not fit."""
        result = []
        for feeds, mask, name in zip(self.samples, self.masks, self.samples.names, strict=True):
            try:
                result.append(overlaps(_answer(run(feeds)), np.asarray(mask), "the output"))
            except CalibrationError as error:
                raise CalibrationError(f"{name}: {error}") from error
        return result

    def points(self, measured: Sequence[np.ndarray]) -> float:
        """The mean over classes of intersection over union, of the pixels of all pictures."""
        return mean_iou(joined(measured))

    def select(self, places: Sequence[int]) -> "LabelledMasks":
        """See `Labelled`."""
        return LabelledMasks(self.samples.select(places), tuple(self.masks[place] for place in places))


def is_input(name: str, inputs: Sequence[InputSpec]) -> bool:
    """Whether a model has an input of this name, which an array of that name then feeds."""
    return any(spec.name == name for spec in inputs)


def predicted(outputs: Mapping[str, object]) -> int:
    """The class that a model gives one sample.

    That with the largest score in the first output of several real numbers; where there is none, the first integer
    alone, as classifiers of scikit-learn give it; else the first output decides. NO_CLASS where a score is NaN.
    """
    answer = _answer(outputs)
    is_class = answer.dtype.kind in "iu" and answer.size == 1
    if answer.dtype.kind == "f" and np.isnan(answer).any():
        return NO_CLASS
    return int(answer.item() if is_class else answer.reshape(-1).argmax())


def _answer(outputs: Mapping[str, object]) -> np.ndarray:
    arrays = [array for array in outputs.values() if isinstance(array, np.ndarray)]
    scores = (array for array in arrays if array.dtype.kind == "f" and array.size > 1)
    classes = (array for array in arrays if array.dtype.kind in "iu" and array.size == 1)
    return next(chain(scores, classes, arrays))


def labels_of(labels: AnyLabels, texts: Texts | None = None) -> LabelSource:
    """Labelled samples as `read_labels` takes them. texts: how a .tsv becomes samples.

    Raises UsageError for what holds no samples, and for a .tsv without texts.
    """
    if isinstance(labels, Texts):
        return labels
    if isinstance(labels, str | PathLike) and is_table(labels):
        path = path_of("labels", labels)
        if texts is None:
            raise lacks_tokenizer(path)
        return replace(texts, corpus=path, unit=None, overlong="cut")
    if isinstance(labels, str | PathLike):
        return path_of("labels", labels)
    if hasattr(labels, "__array__") or not isinstance(labels, Iterable) or are_classes(labels):
        raise UsageError(
            f"labels is {shown(labels)}, which holds no samples; give the samples with their class numbers: {IN_MEMORY}"
        )
    return labels


def read_labels(
    model: ir.Model,
    labels: LabelSource,
    folder: Path,
    preprocessing: Preprocessing | None,
    detector: Detector | None = None,
    images: Path | None = None,
) -> Labelled:
    """Samples and labels, spooled into `folder`: an .npz, a CSV of `image,class`, a .tsv of texts, pictures with boxes.

    The last are a folder with labels as YOLO writes them, or a file as COCO writes it, below whose folder the pictures
    lie. A folder with the folders `images` and `masks` has masks. In memory: a mapping like the .npz, or items as
    `labelled_items` reads them. images: the folder of those that a CSV names, where they are not beside it. Raises
    CalibrationError naming the file and what is wrong.
    """
    inputs = input_specs(model)
    if isinstance(labels, Texts):
        return _of_texts(labels, inputs, folder)
    if not isinstance(labels, Path):
        return _in_memory(labels, inputs, folder)
    path = labels
    if path.is_dir() and all((path / part).is_dir() for part in (IMAGES, MASKS)):
        return _of_mask_files(path, inputs, folder, preprocessing or Preprocessing())
    if path.is_dir() or (path.is_file() and path.suffix == COCO):
        return _objects(path, inputs, folder, preprocessing or Preprocessing(), detector or Detector())
    if not path.is_file():
        raise CalibrationError(
            f"the labels {path} do not exist; give an .npz with `{LABELS}`, a CSV of image,class, or a .tsv of text "
            "and class; for a detector a folder of images with labels as YOLO writes them, or a COCO file; for "
            f"segmentation a folder with the folders {IMAGES} and {MASKS}"
        )
    if path.suffix not in (ARRAYS, CSV):
        raise CalibrationError(
            f"the labels {path} are neither {ARRAYS}, {CSV}, {TEXT_TABLE} nor {COCO}; give an .npz with `{LABELS}`, a "
            "CSV of image,class, a .tsv of text and class, or for a detector a COCO file"
        )
    if path.suffix == ARRAYS:
        return _of_arrays(npz_members(path), str(path), inputs, folder)
    feeds, classes = from_csv(path, inputs, preprocessing, folder=images)
    return LabelledClasses(collect(feeds, inputs, folder, EVERY_SAMPLE, preprocessing), classes)


def _of_texts(texts: Texts, inputs: tuple[InputSpec, ...], folder: Path) -> LabelledClasses:
    if not is_table(texts.corpus):
        raise CalibrationError(
            f"the labels {texts.corpus} are no {TEXT_TABLE}: write a text, a tab and its class in each line"
        )
    lines = labelled_lines(texts)
    classes = np.array([_class_number(line) for line in lines])
    corpus = [text for line in lines for text in line.texts]
    samples = collect(replace(texts, corpus=corpus), inputs, folder, EVERY_SAMPLE)
    return LabelledClasses(samples, classes, tuple(line.where for line in lines))


def _class_number(line: LabelledLine) -> int:
    text = line.label.strip()
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise CalibrationError(f"{line.where}: {no_class_number(text)}")
    return int(text)


def no_class_number(label: object) -> str:
    """Say what is wrong with a label that is no number of a class."""
    return f"the label {shown(label)} is no class number: write the place of its class among the scores, from 0"


def _in_memory(labels: Mapping[str, Any] | Iterable[Any], inputs: tuple[InputSpec, ...], folder: Path) -> Labelled:
    if isinstance(labels, Mapping):
        arrays = {str(name): as_array(array, f"the array {name!r} of labels") for name, array in labels.items()}
        return _of_arrays(arrays, "labels", inputs, folder)
    classes = list[np.ndarray]()
    samples = collect(labelled_items(labels, inputs, classes), inputs, folder, EVERY_SAMPLE)
    if len(classes) != len(samples) or any(each.size != 1 and each.ndim < MASK_AXES for each in classes):
        numbers = sum(each.size for each in classes)
        raise CalibrationError(
            f"labels holds {len(samples)} samples and {numbers} class numbers; give one with each sample: {IN_MEMORY}"
        )
    if any(each.ndim >= MASK_AXES for each in classes):
        return LabelledMasks(samples, tuple(classes))
    return LabelledClasses(samples, np.array([each.item() for each in classes]))


def _of_arrays(arrays: Mapping[str, np.ndarray], where: str, inputs: tuple[InputSpec, ...], folder: Path) -> Labelled:
    if is_input(LABELS, inputs):
        raise CalibrationError(
            f"the model has an input {LABELS!r}, so that {where} has no place for class numbers: judge the compiled "
            "file with `ptqc eval`, whose --labels has them alone"
        )
    feeds = without(arrays, (LABELS,))
    labels = arrays.get(LABELS)
    if labels is not None and labels.size and labels.dtype.kind in "US":
        raise CalibrationError(f"{where}, `{LABELS}`: {no_class_number(labels.flat[0].item())}")
    if labels is not None and 1 < labels.ndim <= MASK_AXES:
        raise CalibrationError(
            f"{where}: `{LABELS}` has shape {labels.shape}, expected one class number or one mask for each sample; "
            "with another label for each sample, score the model by `evaluate` in Python"
        )
    if labels is None or labels.ndim == 0 or labels.dtype.kind not in "iu":
        raise CalibrationError(f"{where} has no array `{LABELS}` of one integer per sample; it has {sorted(feeds)}")
    samples = collect(feeds, inputs, folder, EVERY_SAMPLE)
    if len(samples) != len(labels):
        raise CalibrationError(
            f"{where} has {len(samples)} samples and {len(labels)} labels; give one label per sample"
        )
    return LabelledMasks(samples, tuple(labels)) if labels.ndim > MASK_AXES else LabelledClasses(samples, labels)


def labelled_items(items: Iterable[Any], inputs: Sequence[InputSpec], labels: list[np.ndarray]) -> Iterator[Any]:
    """The items, without the labels behind their arrays or under `labels`, which are appended to `labels`.

    A label is a class number or a mask. A batch whose rows have a label each is taken apart, as far as the model leaves
    the size of its batch open.
    """
    for item in items:
        parts = _with_label(item, inputs)
        if parts is None:
            yield item
            continue
        *values, label = (as_array(value, "an item") for value in parts)
        pairs = list(zip(values, inputs, strict=True))
        is_batch = label.ndim > 0 and all(
            value.ndim == len(spec.shape) > 0 and len(value) == len(label) and _takes_rows(spec)
            for value, spec in pairs
        )
        for row in range(len(label)) if is_batch else ():
            labels.append(label[row].copy())
            yield tuple(value[row : row + 1] for value in values)
        if not is_batch:
            labels.append(label.copy())  # a reader may fill one array again and again
            yield tuple(values)


def _with_label(item: Any, inputs: Sequence[InputSpec]) -> list[Any] | None:
    """The arrays of an item in the order of the inputs, and its labels; None where it has none of them."""
    names = [spec.name for spec in inputs]
    if isinstance(item, Mapping) and LABELS not in names and item.keys() >= {*names, LABELS}:
        parts = [item[name] for name in (*names, LABELS)]
    elif isinstance(item, tuple | list) and len(item) == len(inputs) + 1:
        parts = list(item)
    else:
        return None
    return parts if are_labels(parts[-1]) else None


def _takes_rows(spec: InputSpec) -> bool:
    return not isinstance(spec.shape[0], int) or spec.shape[0] == 1


def _objects(
    path: Path, inputs: tuple[InputSpec, ...], folder: Path, preprocessing: Preprocessing, detector: Detector
) -> LabelledObjects:
    place, labels = (path, None) if path.is_dir() else (path.parent, path)
    _, pictures = labelled_pictures(place, labels, detector.classes, inputs, None, preprocessing)
    truths = list[Truth]()

    def feeds_of() -> Any:
        for picture in pictures:
            truths.append(picture.truth)
            yield picture.feeds

    samples = collect(feeds_of(), inputs, folder, EVERY_SAMPLE)
    if not any(np.any(~truth.crowd) for truth in truths):
        raise CalibrationError(f"the labels {path} name no object in any of {len(truths)} images, so none can be found")
    return LabelledObjects(samples, tuple(truths), detector)


def _of_mask_files(
    path: Path, inputs: tuple[InputSpec, ...], folder: Path, preprocessing: Preprocessing
) -> LabelledMasks:
    feeds, masks = with_masks(path / IMAGES, path / MASKS, inputs, preprocessing)
    return LabelledMasks(collect(feeds, inputs, folder, EVERY_SAMPLE), tuple(masks))


def from_csv(
    path: Path,
    inputs: tuple[InputSpec, ...],
    preprocessing: Preprocessing | None,
    most: int = EVERY_SAMPLE,
    folder: Path | None = None,
) -> tuple[object, np.ndarray]:
    """Images of `image,class` lines, as feeds one by one, and their classes; at most so many, evenly spread.

    folder: of images, where those lie that are not beside the CSV. Raises CalibrationError.
    """
    if InputRole.TOKENS in roles(inputs).values():
        raise csv_of_texts(path)
    if len(inputs) != 1:
        raise CalibrationError(f"a CSV of images fits models with one input; this one has {len(inputs)}: give an .npz")
    folders = [path.parent, *([folder] if folder is not None and folder.is_dir() else [])]
    rows = _rows(path, folders)
    rows = [rows[place] for place in spread(len(rows), most)]
    files = [_file_in(name, folders) for name, _ in rows]
    if None in files:
        missing = rows[files.index(None)][0]
        tried = " nor ".join(str(place / missing) for place in folders)
        where = "the CSV" if len(folders) == 1 else "the CSV or to the folder of images"
        raise CalibrationError(f"{path} names {missing}, and there is no {tried}: give paths relative to {where}")
    loader = preprocessing or Preprocessing()
    images = ({inputs[0].name: loader.load(file, inputs[0])} for file in files if file is not None)
    return images, np.array([label for _, label in rows])


def _file_in(name: str, folders: Sequence[Path]) -> Path | None:
    # Unlike Path.is_file, this raises nothing for names that no file can have.
    return next((place / name for place in folders if os.path.isfile(place / name)), None)  # noqa: PTH113


def _rows(path: Path, folders: Sequence[Path]) -> list[tuple[str, int]]:
    """Image and class number of every line. folders: that the images may lie in."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise CalibrationError(f"cannot read the labels {path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        label = line[1].strip() if len(line) >= 2 else ""
        if label.isdecimal() and len(label) <= MOST_DIGITS:
            rows.append((line[0], int(label)))
        elif line and (number > 1 or _file_in(line[0], folders) is not None):  # a first line without image is a heading
            raise CalibrationError(f"{path}, line {number}: {line} is not `image,class number`")
    if not rows:
        raise CalibrationError(f"{path} has no line `image,class number`")
    return rows
