"""Labelled samples for the report: top-1 accuracy of the float and the compiled model. Never used for decisions."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputSpec, input_specs
from ptqc.calibration.samples import EVERY_SAMPLE, Samples, collect
from ptqc.calibration.sources import spread
from ptqc.errors import CalibrationError
from ptqc.execute.onnxruntime import Feeds

KEY = "labels"


@dataclass(frozen=True)
class Labelled:
    """Samples and the class number of each."""

    samples: Samples
    labels: np.ndarray

    def top1(self, run: Callable[[Feeds], dict[str, np.ndarray]]) -> float:
        """Share, in percent, of samples whose class is their label; see `predicted`."""
        return 100 * float(self.hits(run).mean())

    def hits(self, run: Callable[[Feeds], dict[str, np.ndarray]]) -> np.ndarray:
        """Of each sample, 1 where its class is its label, else 0."""
        pairs = zip(self.samples, self.labels, strict=True)
        return np.array([int(predicted(run(feeds)) == label) for feeds, label in pairs])

    def every_second(self, first: int) -> "Labelled":
        """Every second sample from the first given."""
        return Labelled(self.samples[first::2], self.labels[first::2])


def is_input(name: str, inputs: Sequence[InputSpec]) -> bool:
    """Whether a model has an input of this name, which an array of that name then feeds."""
    return any(spec.name == name for spec in inputs)


def predicted(outputs: Mapping[str, object]) -> int:
    """The class that a model gives one sample.

    That with the largest score in the first output of several real numbers; where there is none, the first integer
    alone, as classifiers of scikit-learn give it; else the first output decides.
    """
    arrays = [array for array in outputs.values() if isinstance(array, np.ndarray)]
    scores = next((array for array in arrays if array.dtype.kind == "f" and array.size > 1), None)
    classes = next((array for array in arrays if array.dtype.kind in "iu" and array.size == 1), None)
    if scores is None and classes is not None:
        return int(classes.item())
    return int((arrays[0] if scores is None else scores).reshape(-1).argmax())


def read_labels(model: ir.Model, path: Path, folder: Path, preprocessing: Preprocessing | None) -> Labelled:
    """Samples and labels from an .npz or a CSV of `image,class` lines, spooled into `folder`.

    Raises CalibrationError naming the file and what is wrong.
    """
    inputs = input_specs(model)
    if not path.is_file():
        raise CalibrationError(f"the labels {path} do not exist; give an .npz with `{KEY}` or a CSV of image,class")
    if path.suffix == ".npz" and is_input(KEY, inputs):
        raise CalibrationError(
            f"the model has an input {KEY!r}, so that {path} has no place for class numbers: judge the compiled file "
            "with `ptqc eval`, whose --labels has them alone"
        )
    feeds, labels = _from_npz(path) if path.suffix == ".npz" else from_csv(path, inputs, preprocessing)
    samples = collect(feeds, inputs, folder, EVERY_SAMPLE, preprocessing)
    if len(samples) != len(labels):
        raise CalibrationError(f"{path} has {len(samples)} samples and {len(labels)} labels; give one label per sample")
    return Labelled(samples, labels)


def _from_npz(path: Path) -> tuple[object, np.ndarray]:
    try:
        # numpy.load, given a path, leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # NumPy and zipfile raise many types for a damaged file
        raise CalibrationError(f"cannot read the labels {path}: {error}") from error
    labels = arrays.pop(KEY, None)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise CalibrationError(f"{path} has no array `{KEY}` of one integer per sample; it has {sorted(arrays)}")
    return arrays, labels


def from_csv(
    path: Path, inputs: tuple[InputSpec, ...], preprocessing: Preprocessing | None, most: int = EVERY_SAMPLE
) -> tuple[object, np.ndarray]:
    """Images of `image,class` lines, as feeds one by one, and their classes; at most so many, evenly spread.

    Raises CalibrationError.
    """
    if len(inputs) != 1:
        raise CalibrationError(f"a CSV of images fits models with one input; this one has {len(inputs)}: give an .npz")
    rows = _rows(path)
    rows = [rows[place] for place in spread(len(rows), most)]
    if missing := next((name for name, _ in rows if not (path.parent / name).is_file()), None):
        raise CalibrationError(
            f"{path} names {missing}, and there is no {path.parent / missing}: give paths relative to the CSV"
        )
    loader = preprocessing or Preprocessing()
    images = ({inputs[0].name: loader.load(path.parent / name, inputs[0])} for name, _ in rows)
    return images, np.array([label for _, label in rows])


def _rows(path: Path) -> list[tuple[str, int]]:
    """Image and class number of every line."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise CalibrationError(f"cannot read the labels {path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if len(line) >= 2 and line[1].strip().isdecimal():
            rows.append((line[0], int(line[1])))
        elif line and (number > 1 or (path.parent / line[0]).is_file()):  # a first line without image is a heading
            raise CalibrationError(f"{path}, line {number}: {line} is not `image,class number`")
    if not rows:
        raise CalibrationError(f"{path} has no line `image,class number`")
    return rows
