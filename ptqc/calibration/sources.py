"""Where calibration samples come from: whatever the user gave becomes one stream of feeds."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.images import IMAGE_SUFFIXES, OTHER_IMAGES, Preprocessing
from ptqc.calibration.inputs import InputRole, InputSpec, as_array, roles, sample_name, shape_text
from ptqc.errors import CalibrationError, UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.notes import Level, Note
from ptqc.utils.arguments import path_of
from ptqc.utils.imports import imported, is_named
from ptqc.utils.memory import available_bytes
from ptqc.utils.store import file_digest

ARRAY_SUFFIXES = frozenset({".npy", ".npz"})
TEXT, TEXT_TABLE = ".txt", ".tsv"  # the second has texts and labels between tabs
TEXT_SUFFIXES = frozenset({TEXT, TEXT_TABLE})
CSV = ".csv"
# Behind an input's name: an array with the length of each sample along axis 0, where the input's own array has samples
# of different lengths one after the other.
LENGTHS = ".lengths"
# Beside the inputs, labels may lie in arrays, dicts and tuples; what has no use for them leaves them out.
LABELS = "labels"
IMAGES, MASKS = "images", "masks"  # folders of a data set with a mask for each image
BY_PATH = (
    "a folder of images, a folder of .npz or .npy files, a .npz or .npy file, a text file with its --tokenizer, or "
    "module:function"
)
ACCEPTED = f"{BY_PATH}, an ONNX Runtime CalibrationDataReader, an iterable of feeds, or arrays stacked on axis 0"


@dataclass(frozen=True)
class TextSettings:
    """How texts became samples: fields of `Texts`, with the SHA-256 of the tokenizer's file and the length in use."""

    tokenizer: str
    sha256: str
    length: int
    padding: str | None = None
    padding_side: str | None = None
    padding_token: str | None = None
    special_tokens: bool = True

    @property
    def path(self) -> Path | None:
        """The tokenizer's file; None where it is missing or another one."""
        path = Path(self.tokenizer)
        return path if path.is_file() and file_digest(path) == self.sha256 else None


@dataclass(frozen=True)
class SampleSource:
    """An opened source.

    samples: the stream of items, at most `limit` long where the source has a length; values are not checked yet.
    count: items expected from it, None when unknown. available: items the source holds, None when unknown.
    description: how messages name it. holds_images: whether samples are pictures that were preprocessed.
    files: where each item is a file, their names in order. batches: whether an item may hold several samples, the
    rows of a batch. places: of the items in the data, where a subset of them is read. texts: how texts were read.
    is_iterated: whether the items are the first ones, as nobody knows how many there are. reopens: whether the same
    items can be read once more. notes: gives, after the stream was read, what was left out of the data.
    """

    samples: Iterator[Mapping[str, Any]]
    description: str
    count: int | None = None
    available: int | None = None
    holds_images: bool = False
    files: Sequence[str] = ()
    batches: bool = False
    places: Sequence[int] = ()
    texts: TextSettings | None = None
    is_iterated: bool = False
    reopens: bool = False
    notes: Callable[[], Sequence[Note]] = tuple

    def place(self, index: int) -> int:
        """The place in the data of an item of the stream, by which messages name it."""
        return self.places[index] if self.places else index


class SampleReader(ABC):
    """Data that know themselves how they become samples."""

    @abstractmethod
    def open(self, inputs: Sequence[InputSpec], limit: int) -> SampleSource:
        """At most about `limit` samples for these inputs. Raises CalibrationError where there are none."""


def open_source(
    source: object, inputs: Sequence[InputSpec], limit: int, preprocessing: Preprocessing | None = None
) -> SampleSource:
    """Open what the user gave: a path, `module:function`, a reader, an iterable or arrays.

    Folders, lists and stacked arrays with more than `limit` items give an evenly spread subset, iterators all. Items of
    an iterable are dicts, or arrays (tuples of them) in the order of the model's inputs. Labels beside the inputs are
    left out: an array `labels`, or integers behind the arrays of a tuple.
    Raises CalibrationError, naming the file or the entry, for anything that cannot be read.
    """
    if not inputs:
        raise CalibrationError("the model has no inputs, so there is nothing to calibrate on")
    if isinstance(source, SampleReader):
        return source.open(inputs, limit)
    if isinstance(source, str | Path):
        return _open_path(source, inputs, limit, preprocessing)
    if hasattr(source, "__array__"):
        name = _only(inputs, "one array").name
        return _stacked({name: as_array(source, f"the array for input {name!r}")}, inputs, limit, "the array")
    if isinstance(source, Members):
        return _stacked(source, inputs, limit, str(source.path))
    if isinstance(source, Mapping):
        arrays = {str(name): as_array(array, f"the dict's array {name!r}") for name, array in source.items()}
        return _stacked(arrays, inputs, limit, "the dict of arrays")
    get_next = getattr(source, "get_next", None)
    kind = type(source).__name__
    if callable(get_next):
        return SampleSource(_named(_pulled(get_next), inputs), f"the reader {kind}", batches=True, is_iterated=True)
    return _iterated(source, inputs, limit, f"the {kind}")


def _open_path(
    source: str | Path, inputs: Sequence[InputSpec], limit: int, preprocessing: Preprocessing | None
) -> SampleSource:
    path = path_of("calibration data", source)
    if path.is_dir():
        return _open_folder(path, inputs, limit, preprocessing)
    if path.is_file():
        return _open_file(path, inputs, limit)
    if isinstance(source, str) and is_named(source):
        # The function is called once, however long it takes.
        return replace(open_source(_called(source), inputs, limit, preprocessing), reopens=False)
    raise CalibrationError(f"calibration data {str(source)!r}: no such file or folder")


def _open_folder(
    folder: Path, inputs: Sequence[InputSpec], limit: int, preprocessing: Preprocessing | None
) -> SampleSource:
    if all((folder / part).is_dir() for part in (IMAGES, MASKS)):  # masks are images, too
        folder = folder / IMAGES
    images = files_below(folder, IMAGE_SUFFIXES)
    arrays = files_below(folder, ARRAY_SUFFIXES)
    if images and arrays:
        raise CalibrationError(
            f"{folder} holds images ({images[0].name}) and arrays ({arrays[0].name}): keep one kind in the folder"
        )
    files = images or arrays
    if not files and (texts := files_below(folder, TEXT_SUFFIXES)):
        if all(path.suffix.lower() == TEXT_TABLE for path in texts):
            raise CalibrationError(f"folder {folder} holds tables of texts: give one, such as {texts[0].name}, alone")
        raise lacks_tokenizer(folder)
    if not files:
        kinds = " ".join(sorted(IMAGE_SUFFIXES | ARRAY_SUFFIXES))
        raise CalibrationError(f"folder {folder} holds no calibration data, expected files ending in {kinds}")
    read = _image_reader(folder, inputs, preprocessing) if images else _array_file_reader(inputs)
    places = spread(len(files), limit)
    chosen = [files[index] for index in places]
    names = [path.relative_to(folder).as_posix() for path in chosen]
    source = SampleSource(map(read, chosen), f"folder {folder}", len(chosen), len(files), files=names, places=places)
    if images:
        return replace(source, holds_images=True, notes=partial(_unread_images, folder))
    return replace(source, places=_of_part(places, len(files)), batches=True, reopens=True)


def _unread_images(folder: Path) -> list[Note]:
    """What is said of images in formats that are not read."""
    files = files_below(folder, OTHER_IMAGES)
    kinds = ", ".join(sorted({path.suffix.lower() for path in files}))
    message = f"{len(files)} files ending in {kinds} are left out: save them as .png"
    return [Note("calibrate", "", message, Level.WARNING)] if files else []


def files_below(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    """Files below `folder` and folders linked there, sorted by path, without hidden ones (macOS's `._photo.jpg`).

    What lies in hidden folders (`.ipynb_checkpoints` has copies) is left out, too.
    """
    files, seen = list[Path](), set[str]()
    for name, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(name)
        if real in seen:  # a link to a folder above or beside it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        place = Path(name)
        files += [place / each for each in names if Path(each).suffix.lower() in suffixes and not each.startswith(".")]
    return sorted((path for path in files if path.is_file()), key=lambda path: path.relative_to(folder).as_posix())


def holds_images(data: object) -> bool:
    """Whether data are files of images, in a folder or named by a CSV."""
    if not isinstance(data, str | PathLike):
        return False
    path = path_of("data", data)
    return bool(files_below(path, IMAGE_SUFFIXES)) if path.is_dir() else path.suffix.lower() == CSV


def may_hold_images(data: str) -> bool:
    """Whether data that are named so may be images: not where they are arrays or text."""
    path = path_of("data", data)
    if path.is_dir():
        return bool(files_below(path, IMAGE_SUFFIXES)) or not files_below(path, ARRAY_SUFFIXES | TEXT_SUFFIXES)
    return path.suffix.lower() not in ARRAY_SUFFIXES | TEXT_SUFFIXES


def is_hidden(path: Path) -> bool:
    """Whether a file or a folder on the way to it is hidden; `path` is relative."""
    return any(part.startswith(".") for part in path.parts)


def _image_reader(
    folder: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing | None
) -> Callable[[Path], Feeds]:
    spec = _only(inputs, f"the folder of images {folder}")
    if preprocessing is None:
        raise CalibrationError(
            f"{folder} holds images: say how the model takes them (resize, scale, mean, std) with a Preprocessing, or "
            "with --scale and the like"
        )
    return lambda path: {spec.name: preprocessing.load(path, spec)}


def _array_file_reader(inputs: Sequence[InputSpec]) -> Callable[[Path], Mapping[str, Any]]:
    def read(path: Path) -> Mapping[str, Any]:
        if path.suffix.lower() == ".npz":
            return _without_labels(npz_members(path), inputs)
        return {_only(inputs, str(path)).name: _load_npy(path)}

    return read


def _open_file(path: Path, inputs: Sequence[InputSpec], limit: int) -> SampleSource:
    if path.suffix.lower() == ".npy":
        return _stacked({_only(inputs, str(path)).name: _load_npy(path)}, inputs, limit, str(path))
    if path.suffix.lower() == ".npz":
        return _stacked(npz_members(path), inputs, limit, str(path))
    if path.suffix.lower() in TEXT_SUFFIXES:
        raise lacks_tokenizer(path)
    if path.suffix.lower() == CSV and InputRole.TOKENS in roles(inputs).values():
        raise csv_of_texts(path)
    raise CalibrationError(f"calibration file {path} ends in {path.suffix!r}; give {BY_PATH}")


def lacks_tokenizer(path: Path, recorded: TextSettings | None = None) -> UsageError:
    """Make the error for text without a tokenizer. recorded: of a compile, whose tokenizer is missing or changed."""
    lost = (
        "" if recorded is None else f", and the tokenizer of the compile, {recorded.tokenizer}, is gone or has changed"
    )
    return UsageError(f"{path} holds text{lost}: give its --tokenizer too (in Python, ptqc.Texts)")


def csv_of_texts(path: Path) -> CalibrationError:
    """Make the error for a CSV where the model reads tokens."""
    return CalibrationError(
        f"{path}: a CSV can only list images, and this model reads token ids: save the column of texts as .txt, one "
        "text a line, or with class numbers as .tsv (text, tab, class number), and give the model's --tokenizer"
    )


def _load_npy(path: Path) -> np.ndarray:
    try:
        return of_characters(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # NumPy raises many types for a damaged file
        raise CalibrationError(f"{path} is not a readable .npy array ({error}): write it with numpy.save") from error


def of_characters(array: np.ndarray) -> np.ndarray:
    """The array itself. Raises ValueError for text with numbers that are no characters: Python makes no str of it."""
    if array.dtype.kind == "U" and array.nbytes:
        numbers = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if numbers.max() > sys.maxunicode:
            raise ValueError("its text holds numbers that are no characters")
    return array


@dataclass(frozen=True, eq=False)
class Members(Mapping[str, np.ndarray]):
    """Arrays of an .npz by name, each of which is read when it is first asked for."""

    path: Path
    names: Sequence[str]
    _held: dict[str, np.ndarray] = field(default_factory=dict, init=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises CalibrationError for what is no plain array, and for one that memory has no room for."""
        if name not in self.names:
            raise KeyError(name)
        if name not in self._held:
            with _opened(self.path) as archive:
                self._held[name] = _member(archive, name, str(self.path))
        return self._held[name]


def npz_members(path: Path) -> Members:
    """The arrays of an .npz. Raises CalibrationError for anything else."""
    with _opened(path) as archive:
        return Members(path, list(dict.fromkeys(archive.files)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:  # numpy.load, given a path, leaves a truncated file open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single .npy array")
            yield archive
    except CalibrationError:
        raise
    except Exception as error:  # NumPy and zipfile raise many types for a damaged file
        raise CalibrationError(
            f"{path} is not a readable .npz archive of plain arrays ({error}): write it with numpy.savez"
        ) from error


def _member(archive: Any, name: str, where: str) -> np.ndarray:
    needed = sum(each.file_size for each in archive.zip.infolist() if each.filename in (name, f"{name}.npy"))
    if needed > (free := available_bytes()):
        raise CalibrationError(
            f"{where}: array {name!r} has {needed:,} bytes, and {free:,} bytes of memory are free: give a folder of "
            "files with fewer samples each"
        )
    array = archive[name]
    if not isinstance(array, np.ndarray):  # NumPy hands out a member of another kind as bytes
        raise ValueError(f"member {name!r} is not an array")
    return of_characters(array)


def without(arrays: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """The arrays of other names; those of a file are not read for that."""
    others = [name for name in arrays if name not in names]
    return Members(arrays.path, others) if isinstance(arrays, Members) else {name: arrays[name] for name in others}


def _stacked(arrays: Mapping[str, np.ndarray], inputs: Sequence[InputSpec], limit: int, where: str) -> SampleSource:
    """Samples cut from arrays that hold one array per input, the samples along axis 0; see `LENGTHS`."""
    arrays = _without_labels(arrays, inputs)
    expected = [spec.name for spec in inputs]
    result = {name for name in arrays if name in expected or name.removesuffix(LENGTHS) not in expected}
    if result != set(expected):
        message = f"{where} holds arrays {sorted(arrays)}, expected the model's inputs {sorted(expected)}"
        if set(expected) < result:
            message += f": leave out {', '.join(sorted(result - set(expected)))} (labels are called `{LABELS}`)"
        raise CalibrationError(message)
    lengths = {name: array for name, array in arrays.items() if name not in expected}
    stacks = {spec.name: _stack(arrays[spec.name], lengths.get(spec.name + LENGTHS), spec, where) for spec in inputs}
    counts = {name: stack.count for name, stack in stacks.items()}
    count = counts[expected[0]]
    if len(set(counts.values())) > 1:
        raise CalibrationError(f"{where} holds different numbers of samples {counts}: give every input the same number")
    if count and not any(array.size for array in arrays.values()):
        raise CalibrationError(
            f"{where} holds {count:,} samples without a number in them, expected values for the model's inputs"
        )
    chosen = spread(count, limit)

    def cut(index: int) -> Feeds:
        return {name: stack.cut(index) for name, stack in stacks.items()}

    return SampleSource(map(cut, chosen), where, len(chosen), count, places=chosen)


def _without_labels(arrays: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Mapping[str, Any]:
    """The arrays but for labels, where no input has that name."""
    taken = {spec.name for spec in inputs}
    return without(arrays, {LABELS, LABELS + LENGTHS} - taken)


@dataclass(frozen=True)
class _Stack:
    """The samples of one input in one array.

    rows: of axis 0 that make one sample; 0 when axis 0 is not an axis of the input, but only counts samples. bounds:
    where each sample begins, and the last one ends, in an array of samples of different lengths.
    """

    array: np.ndarray
    rows: int = 0
    bounds: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.array) // (self.rows or 1) if self.bounds is None else len(self.bounds) - 1

    def cut(self, index: int) -> np.ndarray:
        """One sample."""
        if self.bounds is not None:
            return self.array[self.bounds[index] : self.bounds[index + 1]]
        rows = self.rows
        return self.array[index * rows : (index + 1) * rows] if rows else np.asarray(self.array[index])


def _stack(array: np.ndarray, lengths: np.ndarray | None, spec: InputSpec, where: str) -> _Stack:
    if lengths is None:
        return _Stack(array, _rows_per_sample(array, spec, where))
    return _Stack(array, bounds=bounds_of(array, lengths, repr(spec.name), f"{where}, {spec.name + LENGTHS!r}"))


def bounds_of(array: np.ndarray, lengths: np.ndarray, name: str, where: str) -> np.ndarray:
    """Where each part of an array begins, and the last one ends: see `LENGTHS`.

    name, where: of array and lengths, for messages. Raises CalibrationError for lengths that do not fit the array.
    """
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise CalibrationError(f"{where}: {lengths.dtype.name} of shape {lengths.shape}, expected a length per sample")
    if array.ndim == 0 or lengths.sum() != len(array):
        raise CalibrationError(
            f"{where}: sums up to {lengths.sum()}, but {name} has shape {array.shape}: join its samples along axis 0"
        )
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _rows_per_sample(array: np.ndarray, spec: InputSpec, where: str) -> int:
    """See `_Stack`."""
    if array.ndim == len(spec.shape) + 1:
        return 0
    if array.ndim != len(spec.shape) or array.ndim == 0:
        raise CalibrationError(
            f"{where}, input {spec.name!r}: has shape {array.shape}, expected samples of shape "
            f"{shape_text(spec.shape)} joined along axis 0 or stacked on a new one"
        )
    leading = spec.shape[0]
    rows = leading if isinstance(leading, int) and leading > 0 else 1
    if len(array) % rows:
        raise CalibrationError(
            f"{where}, input {spec.name!r}: has {len(array)} rows, expected a multiple of the model's batch {rows}"
        )
    return rows


def spread(count: int, limit: int) -> Sequence[int]:
    """At most `limit` different indices below `count`, evenly spread, the first and last among them."""
    if count <= limit:
        return range(count)
    return [int(index) for index in np.rint(np.linspace(0, count - 1, limit))]


def _called(text: str) -> object:
    """What `module:function` returns."""
    try:
        result = imported(text)()  # type: ignore[operator]
    except Exception as error:  # the user's module may raise anything
        raise CalibrationError(
            f"calibration data {text!r}: {type(error).__name__}: {error}; "
            f"expected a function without arguments, importable from {Path.cwd()}, that returns samples"
        ) from error
    if isinstance(result, str | Path):
        raise CalibrationError(f"calibration data {text!r}: returned {result!r}, expected samples, not a path")
    return result


def _pulled(get_next: Callable[[], Any]) -> Iterator[Any]:
    while (item := get_next()) is not None:
        yield item


def _iterated(source: object, inputs: Sequence[InputSpec], limit: int, where: str) -> SampleSource:
    try:
        if isinstance(source, bytes):
            raise TypeError("bytes are not samples")
        items: Iterator[Any] = iter(source)  # type: ignore[call-overload]
        length = len(source) if hasattr(source, "__len__") else None
    except Exception as error:  # iter() and len() of the user's object may raise anything
        raise CalibrationError(f"cannot read calibration samples from {where} ({error}); give {ACCEPTED}") from error
    # What is iterated in its own way, such as a DataLoader of PyTorch, may not be indexed in the same.
    item: Any = getattr(source, "__getitem__", None)
    if length is None or item is None or (hasattr(source, "__iter__") and not isinstance(source, Sequence)):
        count = None if length is None else min(length, limit)
        return SampleSource(_named(items, inputs), where, count, length, batches=True, is_iterated=True)
    places = spread(length, limit)
    listed = (_feeds(item(place), inputs, place) for place in places)
    return SampleSource(listed, where, len(places), length, batches=True, places=_of_part(places, length), reopens=True)


def _of_part(places: Sequence[int], length: int) -> Sequence[int]:
    """The places of items that are a part of all; of all, rows of batches are counted."""
    return places if len(places) < length else ()


def _named(items: Iterable[Any], inputs: Sequence[InputSpec]) -> Iterator[Mapping[str, Any]]:
    return (_feeds(item, inputs, index) for index, item in enumerate(items))


def _feeds(item: Any, inputs: Sequence[InputSpec], index: int) -> Mapping[str, Any]:
    """One item of an iterable as feeds: a dict, or arrays in the order of the model's inputs."""
    if isinstance(item, Mapping):
        return _without_labels(item, inputs)
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) == len(inputs) + 1 and are_labels(values[-1]):
        values = values[:-1]
    if len(values) != len(inputs):
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise CalibrationError(
            f"{sample_name(index)}: {type(item).__name__} of {len(values)} values for {len(inputs)} inputs ({names}): "
            f"yield one array for each input, or dicts, as in ({{{inputs[0].name!r}: x}} for x, *_ in loader); "
            "integers after the inputs are taken for labels and left out"
        )
    return {spec.name: value for spec, value in zip(inputs, values, strict=True)}


def are_labels(value: object, axes: int | None = None) -> bool:
    """Whether what stands behind the arrays of a tuple are labels: integers. axes: the most that they may have."""
    try:
        result = as_array(value, "labels")
    except CalibrationError:
        return False
    return result.dtype.kind in "iub" and (axes is None or result.ndim <= axes)


def are_classes(value: object) -> bool:
    """Whether they are class numbers: of a sample, or of each row of a batch."""
    return are_labels(value, 1)


def _only(inputs: Sequence[InputSpec], where: str) -> InputSpec:
    if len(inputs) == 1:
        return inputs[0]
    names = ", ".join(repr(spec.name) for spec in inputs)
    raise CalibrationError(f"{where} can feed a model with one input, this one has {names}: give .npz or dicts instead")
