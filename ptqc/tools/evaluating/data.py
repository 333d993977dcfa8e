"""Samples with their labels, from what the user gives.

Labels lie with the samples: `labels` in the .npz (ragged as its inputs may be), or in each .npz of a folder, unless an
input of the model has that name; the names of the folders in which images lie; the columns behind the texts of a .tsv;
lines of `image,class` in a .csv. Or they are given apart.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.images import IMAGE_SUFFIXES, Preprocessing
from ptqc.calibration.inputs import InputSpec, input_specs, sample_name
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.samples import EVERY_SAMPLE, CheckedSample, checked, guarded
from ptqc.calibration.sources import (
    CSV,
    LABELS,
    LENGTHS,
    SampleSource,
    bounds_of,
    files_below,
    is_hidden,
    npz_members,
    of_characters,
    open_source,
    spread,
    without,
)
from ptqc.calibration.texts import Texts, is_table, labelled_lines
from ptqc.errors import CalibrationError, UsageError
from ptqc.evaluation.detection.detector import ClassNumbers
from ptqc.evaluation.detection.pictures import labelled_pictures
from ptqc.evaluation.labels import from_csv, is_input, labelled_items
from ptqc.evaluation.masks import with_masks
from ptqc.execution.onnxruntime import Feeds
from ptqc.tools.evaluating.metric import Metric
from ptqc.utils.arguments import path_of, shown
from ptqc.utils.lazy import Lazy

MOST_DIGITS = 4300  # of a whole number: Python reads no more, so a longer one is a word
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class LabelledCase:
    """What a metric judges at once: the feeds of the samples of one label. label: None where there is none."""

    name: str
    feeds: Sequence[Feeds]
    label: Any


@dataclass(frozen=True)
class Judges:
    """cases: each is read when it is asked for, and none is kept. count: None where only reading tells how many.

    notes: on which of the samples they are.
    """

    cases: Iterator[LabelledCase]
    count: int | None
    notes: tuple[str, ...] = ()


def read_judges(
    data: object,
    labels: object,
    metric: Metric,
    model: ir.Model,
    most: int | None,
    preprocessing: Preprocessing | None,
) -> Judges:
    """Samples with their labels, at most `most` of these, evenly spread; of an iterator the first.

    Raises CalibrationError for data and labels that cannot be read, or do not belong together, here or from the cases.
    """
    inputs = input_specs(model)
    # Which samples labels belong to that are given apart, only their place among all samples tells.
    names = labels if isinstance(labels, Mapping) else None
    source, result, lines = data, list[Any](), list[str]()
    if isinstance(labels, str | Path) and Path(labels).suffix == CSV:
        source, result = _named_images(data, Path(labels), inputs, preprocessing, most)
        labels = None
    elif isinstance(labels, str | Path) and Path(labels).is_dir():
        source, result = _of_masks(data, Path(labels), inputs, preprocessing, most)
        labels = None
    elif names is None and isinstance(data, Texts) and is_table(data.corpus):
        source, result, lines = _of_table(data, metric)
    elif names is None:
        source, result = _opened(data, metric, inputs, preprocessing, most if labels is None else None)
    if metric.needs_labels and labels is None and is_input(LABELS, inputs):
        raise CalibrationError(
            f"the model has an input {LABELS!r}, which the array `{LABELS}` of the data feeds, and the metric "
            f"{metric.called} needs labels: give them apart, with --labels"
        )
    if labels is not None and names is None:
        result = _apart(labels)
    together = metric.samples
    limit = EVERY_SAMPLE if most is None or labels is not None or result or together > 1 else most
    stream = open_source(source, inputs, limit, preprocessing)
    if names is not None:
        result = _by_name(names, stream)
    if stream.count is not None:
        _check_counts(stream.count, result, together)
    total = len(result) or (None if stream.count is None else stream.count // together)
    if total is None or (together == 1 and not result and stream.batches):
        limit = EVERY_SAMPLE if most is None else most * together
        notes = list[str]()
        if most and stream.is_iterated and not isinstance(data, str | Path):
            notes.append(f"of the {type(data).__name__}, at most the first {most} samples are scored")
        rows = _rows_without_labels(model, result) if together == 1 else None
        return Judges(_cases(checked(stream, inputs, limit, rows), result, metric, None), None, tuple(notes))
    chosen = frozenset(spread(total, total if most is None else most))
    return Judges(_cases(checked(stream, inputs, limit), result, metric, chosen, lines), len(chosen))


def _rows_without_labels(model: ir.Model, labels: Sequence[Any]) -> Callable[[Feeds], Sequence[Feeds]]:
    """Takes batches of samples apart, unless they have a label. labels: those that were read until then."""
    batches = OpenBatches(model)
    return lambda feeds: [feeds] if labels else batches(feeds)


def _named_images(
    data: object, table: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing | None, most: int | None
) -> tuple[object, list[Any]]:
    """Those that a CSV of image,class names, which lie beside it or in the folder of the data."""
    folder = Path(data) if isinstance(data, str | Path) else None
    if folder is None or not folder.is_dir():
        raise CalibrationError(
            f"{table} names its images: give it in place of the data, or the folder of these images as the data"
        )
    images, classes = from_csv(table, tuple(inputs), preprocessing, most or EVERY_SAMPLE, folder)
    return images, list(classes)


def _of_masks(
    data: object, masks: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing | None, most: int | None
) -> tuple[object, list[Any]]:
    """The images of a folder, and the masks of these names in another one."""
    if not isinstance(data, str | Path) or not Path(data).is_dir():
        raise CalibrationError(f"{masks} is a folder, so of masks: give the folder of their images as the data")
    return with_masks(Path(data), masks, inputs, preprocessing or Preprocessing(), most or EVERY_SAMPLE)


def _by_name(labels: Mapping[str, Any], stream: SampleSource) -> list[Any]:
    """The label of each file of a folder."""
    if not stream.files:
        raise CalibrationError(
            f"labels are by name, and the samples of {stream.description} have no names: give one label for each "
            "sample, in their order"
        )
    if missing := [name for name in stream.files if name not in labels]:
        first = next(iter(labels), None)
        raise CalibrationError(
            f"labels has none for {len(missing)} of the {len(stream.files)} files of {stream.description}, such as "
            f"{missing[0]!r}; its first name is {first!r}: give the names of all files, relative to the folder"
        )
    return [labels[name] for name in stream.files]


def read_pictures(
    data: object,
    labels: object,
    numbers: ClassNumbers,
    inputs: Sequence[InputSpec],
    most: int | None,
    preprocessing: Preprocessing,
) -> Judges:
    """Pictures with what is in them, at most `most`, evenly spread.

    Raises CalibrationError for data and labels that cannot be read, or do not belong together, here or from the cases.
    """
    count, pictures = labelled_pictures(data, labels, numbers, inputs, most, preprocessing)
    return Judges((LabelledCase(one.name, [one.feeds], one.truth) for one in pictures), count)


def _cases(
    samples: Iterator[CheckedSample],
    labels: Sequence[Any],
    metric: Metric,
    chosen: Collection[int] | None,
    names: Sequence[str] = (),
) -> Iterator[LabelledCase]:
    """Those with these numbers, or all. labels: of all cases, at the latest when their samples are read.

    names: of the cases, for messages; else those of their first samples.
    """
    together, count, held = metric.samples, 0, map(_copied, samples)
    for number, first in enumerate(held):
        case = [first, *islice(held, together - 1)]
        count += len(case)
        if len(case) < together:
            break
        if metric.needs_labels and not labels:
            raise CalibrationError(
                f"the metric {metric.called} needs labels, and the data have none: an array `{LABELS}` in the .npz, "
                "images in one folder for each class, a CSV of image,class-number, a .tsv of text and class number "
                "with --tokenizer, or --labels"
            )
        if labels and number >= len(labels):
            raise _uneven(f"at least {count}", labels, together)
        if chosen is None or number in chosen:
            name = names[number] if names else first.name
            yield LabelledCase(name, [each.feeds for each in case], labels[number] if labels else None)
    _check_counts(count, labels, together)


def _copied(sample: CheckedSample) -> CheckedSample:
    """A sample that stays as it is where its reader fills one array again and again."""
    return replace(sample, feeds={name: array.copy() for name, array in sample.feeds.items()})


def _check_counts(samples: int, labels: Sequence[Any], together: int) -> None:
    if samples % together or (labels and len(labels) != samples // together):
        raise _uneven(samples, labels, together)


def _uneven(samples: int | str, labels: Sequence[Any], together: int) -> CalibrationError:
    each = "one for each" if together == 1 else f"one for {together} that follow each other"
    return CalibrationError(f"there are {samples} samples and {len(labels)} labels; give {each}")


def _opened(
    data: object, metric: Metric, inputs: Sequence[InputSpec], preprocessing: Preprocessing | None, most: int | None
) -> tuple[object, list[Any]]:
    """What `open_source` takes, and the labels that lie with it; those of files come as the files are read."""
    if isinstance(data, Mapping):
        return _of_arrays(data, inputs)
    if not isinstance(data, str | Path):
        labels: list[Any] = []
        if isinstance(data, Sequence) and _may_have_classes(data):
            places = spread(len(data), len(data) if most is None or metric.samples > 1 else most)
            items = Lazy(lambda place: data[places[place]], len(places))
            read = guarded(iter(items), lambda place: f"{sample_name(places[place])}: reading {type(data).__name__}")
            deque(labelled_items(read, inputs, labels), maxlen=0)  # all labels, so that their number is known
            return (labelled_items(items, inputs, []), labels) if labels else (data, labels)
        if isinstance(data, Iterable) and _may_have_classes(data):
            return labelled_items(data, inputs, labels), labels
        return data, labels
    path = path_of("data", data)
    if path.is_dir():
        return _of_folder(path, metric, inputs, preprocessing, most)
    if path.is_file() and path.suffix == ".npz":
        return _of_arrays(npz_members(path), inputs)
    if path.is_file() and path.suffix == CSV:
        images, classes = from_csv(path, tuple(inputs), preprocessing, most or EVERY_SAMPLE)
        return images, list(classes)
    return data, []


def _may_have_classes(data: Iterable[Any]) -> bool:
    """Whether items of an iterable may have class numbers behind their arrays, as those of a data loader."""
    if hasattr(data, "__array__") or callable(getattr(data, "get_next", None)):
        return False
    if not isinstance(data, Sequence):
        return True
    try:
        return len(data) > 0 and isinstance(data[0], tuple | list | Mapping)
    except Exception:  # of the user's code; whoever reads that sample names it
        return True


def _of_arrays(values: Mapping[str, Any], inputs: Sequence[InputSpec]) -> tuple[object, list[Any]]:
    if is_input(LABELS, inputs):
        return values, []
    arrays = without(values, (LABELS, LABELS + LENGTHS))
    return arrays, _cut(values) if LABELS in values else []


def _cut(values: Mapping[str, Any]) -> list[Any]:
    """The labels of a mapping, one of each case, where there are lengths of different lengths."""
    labels, lengths = np.asarray(values[LABELS]), values.get(LABELS + LENGTHS)
    if labels.ndim == 0:
        raise CalibrationError(f"`{LABELS}` is one value, expected an array with one label for each sample")
    if lengths is None:
        return list(labels)
    bounds = bounds_of(labels, np.asarray(lengths), f"`{LABELS}`", f"`{LABELS + LENGTHS}`")
    return np.split(labels, bounds[1:-1])


def _of_folder(
    folder: Path, metric: Metric, inputs: Sequence[InputSpec], preprocessing: Preprocessing | None, most: int | None
) -> tuple[object, list[Any]]:
    arrays, images = files_below(folder, frozenset({".npz"})), files_below(folder, IMAGE_SUFFIXES)
    labels: list[Any] = []
    if arrays and not images:
        return _of_files(_some(arrays, metric.samples, most), labels, inputs), labels
    # Folders without images count, too: else the classes behind them would be taken for others.
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(Path(path.name)))
    if not images or all(path.parent == folder for path in images):
        return str(folder), labels
    if any(path.parent == folder for path in images):
        raise CalibrationError(f"some images of {folder} are not in the folder of a class")
    if len(inputs) != 1:
        raise CalibrationError(
            f"images can only feed a model with one input; this one has {len(inputs)}: give .npz files"
        )
    numbers = {name: int(name) if all(map(str.isdecimal, classes)) else place for place, name in enumerate(classes)}
    chosen, loader = _some(images, metric.samples, most), preprocessing or Preprocessing()
    labels += [numbers[path.relative_to(folder).parts[0]] for path in chosen]
    return ({inputs[0].name: loader.load(path, inputs[0])} for path in chosen), labels


def _some(files: Sequence[Path], together: int, most: int | None) -> list[Path]:
    """Those of at most so many cases, evenly spread; what is left over stays, and is told later."""
    if most is None or len(files) % together or len(files) <= most * together:
        return list(files)
    return [
        files[together * case + place] for case in spread(len(files) // together, most) for place in range(together)
    ]


def _of_files(
    files: Iterable[Path], labels: list[Any], inputs: Sequence[InputSpec]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The feeds of each file; its label is appended to `labels`, unless an input of the model has that name."""
    for path in files:
        arrays = npz_members(path)
        if LABELS in arrays and not is_input(LABELS, inputs):
            labels.append(arrays[LABELS])
        yield arrays


def _of_table(texts: Texts, metric: Metric) -> tuple[Texts, list[Any], list[str]]:
    """The texts of a table, the label of each line, and what messages call the lines."""
    lines = labelled_lines(texts, metric.samples)
    corpus = [text for line in lines for text in line.texts]
    return replace(texts, corpus=corpus), [_number(line.label) for line in lines], [line.where for line in lines]


def _number(text: str) -> int | float | str:
    """The number that a text writes, if any; what Python also takes for one ("nan", "infinity", "1_000") are words."""
    if not NUMBER.fullmatch(text.strip()):
        return text
    whole = text.strip().lstrip("+-")
    if not whole.isdecimal():
        return float(text)
    return int(text) if len(whole) <= MOST_DIGITS else text


def _apart(labels: object) -> list[Any]:
    """Labels that are given for themselves: in an .npz or .npy, or as a sequence."""
    if not isinstance(labels, str | Path):
        try:
            return list(labels)  # type: ignore[call-overload, no-any-return]
        except TypeError as error:
            raise UsageError(f"labels is {shown(labels)}; give a path, or one label for each sample") from error
    path = path_of("labels", labels)
    if not path.is_file():
        raise CalibrationError(f"the labels {path} do not exist; give an .npz with `{LABELS}`, or an .npy")
    if path.suffix == ".npz":
        members = npz_members(path)
        if LABELS not in members:
            raise CalibrationError(f"{path} has no array `{LABELS}`; it has {sorted(members)}")
        return _cut(members)
    if is_table(path):
        raise CalibrationError(f"{path} has its texts beside the labels: give it as the data, in place of --labels")
    if path.suffix != ".npy":
        raise CalibrationError(f"the labels {path} are neither .npz nor .npy; give an .npz with `{LABELS}`, or an .npy")
    try:
        return list(of_characters(np.load(path, allow_pickle=False)))
    except Exception as error:  # NumPy raises many types for a damaged file
        raise CalibrationError(f"cannot read the labels {path}: {error}") from error
