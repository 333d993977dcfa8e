"""Masks: a class for each pixel, and how well the answers of a model cover them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.images import IGNORED, IMAGE_SUFFIXES, Preprocessing
from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.samples import EVERY_SAMPLE
from ptqc.calibration.sources import files_below, spread
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Feeds

# Of which a pixel names one; scores may be of more.
MOST_CLASSES = 2**16


@dataclass(frozen=True)
class MaskFile:
    """A mask that is read whenever it is asked for, and placed as its image is. preprocessing: of the image."""

    path: Path
    spec: InputSpec
    preprocessing: Preprocessing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # it is always new
        return self.preprocessing.mask(self.path, self.spec).astype(dtype or np.int32, copy=False)


def mask_files(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Each image below a folder with its mask: the file of the same name, whatever its suffix, below the other folder.

    Raises CalibrationError where a mask is missing, or not to be told from another.
    """
    by_name: dict[Path, list[Path]] = {}
    for path in files_below(masks, IMAGE_SUFFIXES):
        by_name.setdefault(path.relative_to(masks).with_suffix(""), []).append(path)
    result = []
    for image in files_below(images, IMAGE_SUFFIXES):
        name = image.relative_to(images).with_suffix("")
        files = by_name.get(name, [])
        if len(files) != 1:
            what = f"several masks, {files[0].name} and {files[1].name}" if files else f"no mask {name} of any suffix"
            raise CalibrationError(f"{masks} has {what}, for the image {image}: give each image one mask of its name")
        result.append((image, files[0]))
    if not result:
        raise CalibrationError(f"{images} has no images")
    return result


def with_masks(
    images: Path, masks: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing, most: int = EVERY_SAMPLE
) -> tuple[Iterator[Feeds], list[MaskFile]]:
    """The images of a folder as feeds, and their masks; at most so many, evenly spread. Raises CalibrationError."""
    if len(inputs) != 1:
        raise CalibrationError(f"images fit models with one input; this one has {len(inputs)}: give an .npz")
    pairs, spec = mask_files(images, masks), inputs[0]
    chosen = [pairs[place] for place in spread(len(pairs), most)]
    feeds = ({spec.name: preprocessing.load(image, spec)} for image, _ in chosen)
    return feeds, [MaskFile(mask, spec, preprocessing) for _, mask in chosen]


def scores_by_place(answer: np.ndarray, label: np.ndarray) -> np.ndarray | None:
    """The scores of the classes at each place of a label, (places, classes); None where the shapes do not fit.

    The classes lie along the last axis of the answer, or along the first behind the batch.
    """
    if label.size == 1:
        return answer.reshape(1, -1)
    whole = answer[0] if answer.shape[:1] == (1,) and answer.ndim > label.squeeze().ndim + 1 else answer
    axes = [axis for axis in (-1, 0) if np.delete(whole.shape, axis).tolist() == list(label.squeeze().shape)]
    return np.moveaxis(whole, axes[0], -1).reshape(label.size, -1) if axes else None


def no_such_class(label: int, where: str, classes: int) -> str:
    """Say what is wrong with a label. where: what scores so many classes."""
    return f"the label is class {label}, but {where} has {classes} classes: class numbers start at 0"


def overlaps(answer: np.ndarray, mask: np.ndarray, where: str) -> np.ndarray:
    """Pixels of each class that the answer and the mask share, and that either of them has: (2, classes).

    answer: scores of classes as `scores_by_place` takes them, or the class of each pixel. mask: pixels below 0 do not
    count, nor those of 255 where there are fewer classes. where: the answer, for messages. Raises CalibrationError.
    """
    if mask.dtype.kind not in "iub":
        raise CalibrationError(f"the mask is of type {mask.dtype.name}, expected the numbers of classes")
    scores = None if answer.dtype.kind in "iub" else scores_by_place(answer, mask)
    if scores is None and (answer.dtype.kind not in "iub" or answer.size != mask.size):
        raise CalibrationError(f"{where} has shape {answer.shape}, and the mask {mask.shape}")
    classes = 0 if scores is None else scores.shape[1]
    predicted = answer.reshape(-1).astype(np.int64) if scores is None else scores.argmax(1)
    if classes == 1:
        raise CalibrationError(f"{where} has scores of one class: score the model by `evaluate`, with your threshold")
    truth = mask.reshape(-1).astype(np.int64)
    counted = (truth >= 0) & ((truth != IGNORED) | (classes > IGNORED))
    truth, predicted = truth[counted], predicted[counted]
    if classes and truth.max(initial=0) >= classes:
        raise CalibrationError(no_such_class(int(truth.max()), where, classes))
    count = classes or 1 + int(max(truth.max(initial=0), predicted.max(initial=0)))
    lowest = int(predicted.min(initial=0))
    if not classes and (lowest < 0 or count > MOST_CLASSES):
        raise CalibrationError(
            f"{where} or the mask has class {lowest if lowest < 0 else count - 1}, expected numbers from 0 to "
            f"{MOST_CLASSES - 1}; pixels of a mask below 0 do not count"
        )
    hits = np.bincount(truth[truth == predicted], minlength=count)
    both = np.bincount(truth, minlength=count) + np.bincount(predicted, minlength=count)
    return np.stack([hits, both - hits])


def joined(counts: Sequence[np.ndarray]) -> np.ndarray:
    """The overlaps of several pictures as (pictures, 2, classes), where some show fewer classes than others."""
    classes = max(each.shape[1] for each in counts)
    return np.stack([np.pad(each, ((0, 0), (0, classes - each.shape[1]))) for each in counts])


def mean_iou(counts: np.ndarray) -> float:
    """The mean over classes of intersection over union, in percent; NaN where no class was seen.

    counts: (pictures, 2, classes), which are added up first. A class that neither masks nor answers have is left out.
    """
    shared, either = counts.sum(0)
    return 100 * float(np.mean(shared[either > 0] / either[either > 0])) if either.any() else float("nan")
