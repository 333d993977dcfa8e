"""Calibration samples, checked as they stream in and spooled to disk, so that memory does not depend on their number.

A spool is a folder of two files: `samples.bin`, the raw C-order bytes of every tensor one after the other, and
`samples.json`, written last, with each sample's offset, tensors (name, dtype, shape) and SHA-256. Raw bytes rather than
`.npz`, because `.npz` loses bfloat16, and because one file per sample is slow for many small samples.
"""

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import numpy as np

from ptqc.calibration.fixed_batches import parts_of
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputSpec, conform, input_specs, sample_name
from ptqc.calibration.sources import SampleSource, TextSettings, open_source, spread
from ptqc.errors import CalibrationError, Interrupted, PtqcError
from ptqc.execution.onnxruntime import Feeds
from ptqc.notes import Level, Note
from ptqc.utils.lazy import Lazy

__all__ = ["EVERY_SAMPLE", "InputSpec", "Samples", "checked", "collect", "input_specs", "joined"]

DATA = "samples.bin"
INDEX = "samples.json"
LAYOUT = "ptqc-samples-1"
EVERY_SAMPLE = 10**9  # as a limit: all that there are
Item = TypeVar("Item")
GOLDEN = (5**0.5 - 1) / 2  # its multiples fill the unit interval evenly
FEW = 32  # below this number of samples the observed ranges depend on which samples were drawn


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Record:
    """Where one sample lies in the data file, and what it holds.

    number: its place in the data that it was read from, counted in samples. file: what it was read from, where it was
    a file of its own. read: the SHA-256 of what was read, where something was made of that.
    """

    number: int
    offset: int
    sha256: str
    tensors: tuple[_Tensor, ...]
    file: str = ""
    read: str = ""

    @property
    def origin(self) -> str:
        """The SHA-256 of what was read: equal for copies, whatever was recorded of each."""
        return self.read or self.sha256

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def elements(self) -> int:
        """Number of elements in all tensors together; every string counts as one, however long."""
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def rows(self) -> int:
        """Length of axis 0."""
        return self.tensors[0].shape[0] if self.tensors[0].shape else 1


@dataclass(frozen=True)
class Samples(Sequence[Feeds]):
    """A spooled sequence of samples; each is read from disk when asked for.

    notes: what the caller should tell the user (few samples, a subset taken).
    batchable: whether the model treats rows along axis 0 independently, so that samples of equal shapes may be
    concatenated there; set by the caller, `dataclasses.replace(samples, batchable=True)`.
    preprocessing, texts: of the images or texts that they were made of; None of anything else.
    """

    directory: Path
    records: tuple[_Record, ...]
    notes: tuple[Note, ...] = ()
    batchable: bool = False
    preprocessing: Preprocessing | None = None
    texts: TextSettings | None = None

    @classmethod
    def open(cls, directory: Path) -> "Samples":
        """The samples of a finished spool, every byte checked; notes are not kept.

        Raises CalibrationError when the spool is missing, unfinished or damaged.
        """
        records = _read_index(directory)
        samples = cls(directory, records)
        for index, record in enumerate(records):
            if _digest(samples[index]) != record.sha256:
                raise CalibrationError(f"{directory / DATA}: sample {index} is damaged: collect the samples again")
        return samples

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Feeds: ...
    @overload
    def __getitem__(self, index: slice) -> "Samples": ...
    def __getitem__(self, index: int | slice) -> "Feeds | Samples":
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        record = self.records[operator.index(index)]
        with (self.directory / DATA).open("rb") as file:
            file.seek(record.offset)
            return {tensor.name: _read(file, tensor) for tensor in record.tensors}

    def __iter__(self) -> Iterator[Feeds]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the samples' own digests in order: names, dtypes, shapes and bytes."""
        return hashlib.sha256("".join(record.sha256 for record in self.records).encode()).hexdigest()

    def select(self, indices: Sequence[int]) -> "Samples":
        """The samples at these indices, in this order, read from the same spool."""
        return replace(self, records=tuple(self.records[operator.index(index)] for index in indices), notes=())

    def some(self, most: int) -> "Samples":
        """At most this many, evenly spread: the first ones of data that lie sorted by class are of one class."""
        return self.select(spread(len(self), most))

    def save(self, directory: Path) -> None:
        """Spool the same samples to another folder. Raises Interrupted when it cannot be written."""
        self.rewritten(directory, self)

    def extended(self, directory: Path, more: Callable[[Feeds], Feeds]) -> "Samples":
        """The same samples with further arrays, spooled to another folder. Raises Interrupted."""
        return self.rewritten(directory, ({**feeds, **more(feeds)} for feeds in self))

    def rewritten(self, directory: Path, feeds_of_each: Iterable[Feeds]) -> "Samples":
        """The samples that were made of these, one of each, spooled to another folder. Raises Interrupted."""
        with _spooling(directory), (directory / DATA).open("wb") as file:
            records = [
                _append(file, record.number, feeds, record.file, record.origin)
                for record, feeds in zip(self.records, feeds_of_each, strict=True)
            ]
            _write_index(directory, records)
        return replace(self, directory=directory, records=tuple(records))

    def batches(self, size: int) -> Iterator[Feeds]:
        """Feeds of up to `size` samples of equal shapes joined along axis 0, in the order of their first ones.

        One sample each unless `batchable`.
        """
        return iter(self.batched(size))

    def batched(self, size: int) -> Sequence[Feeds]:
        """The same batches as a sequence; each is read from disk when it is asked for."""
        if size < 1:
            raise ValueError(f"batch size {size}, expected at least 1")
        groups = self._groups(size)
        return Lazy(lambda place: joined([self[index] for index in groups[place]]), len(groups))

    def _groups(self, size: int) -> list[list[int]]:
        groups: list[list[int]] = []
        open_groups: dict[object, list[int]] = {}
        for index, record in enumerate(self.records):
            tails = _row_shapes(record)
            group = open_groups.get(tails) if self.batchable and tails else None
            if group is None or len(group) == size:
                group = open_groups[tails] = []
                groups.append(group)
            group.append(index)
        return groups

    def of_each_shape(self, most: int) -> "Samples":
        """The first sample of each shape, or of `most` of them, evenly spread from the smallest to the largest."""
        first: dict[object, int] = {}
        for index, record in enumerate(self.records):
            first.setdefault(tuple(tensor.shape for tensor in record.tensors), index)
        by_size = sorted(first.values(), key=lambda index: self.records[index].elements)
        return self.select([by_size[place] for place in spread(len(by_size), most)])

    def of_main_size(self) -> "Samples":
        """Those of the size beyond axis 0 that more than half have; all where there is no such size."""
        sizes = [tuple(tensor.shape[1:] for tensor in record.tensors) for record in self.records]
        ((main, count),) = Counter(sizes).most_common(1) or [((), 0)]
        if 2 * count <= len(sizes):
            return self
        return self.select([index for index, size in enumerate(sizes) if size == main])

    def few(self, most: int) -> "Samples":
        """At most this many samples for a check: of one shape evenly spread, else one of each shape."""
        return self.of_each_shape(most) if len(self.row_shapes) > 1 else self.some(most)

    @property
    def distinct(self) -> "Samples":
        """One of several copies."""
        return self.select(sorted(set(self.originals)))

    @property
    def originals(self) -> Sequence[int]:
        """Of each sample, the place of the first one that it is a copy of: its own, where it is none."""
        first: dict[str, int] = {}
        return [first.setdefault(record.origin, place) for place, record in enumerate(self.records)]

    def among(self, others: "Samples") -> Sequence[bool]:
        """Of each sample, whether others have it."""
        # What earlier releases recorded does not tell what it was made of.
        known = {digest for record in others.records for digest in (record.origin, record.sha256)}
        return [not known.isdisjoint((record.origin, record.sha256)) for record in self.records]

    @property
    def row_shapes(self) -> frozenset[tuple[tuple[int, ...], ...]]:
        """The shapes beyond axis 0 that samples have."""
        return frozenset(tuple(tensor.shape[1:] for tensor in record.tensors) for record in self.records)

    @property
    def names(self) -> list[str]:
        """How messages name each sample: by its number and the file that it came from."""
        return [sample_name(record.number, record.file) for record in self.records]

    def pair(self) -> tuple[Feeds, Feeds] | None:
        """The first two samples that differ and may be joined, as far as their shapes tell."""
        first: dict[object, int] = {}
        for index, record in enumerate(self.records):
            tails = _row_shapes(record)
            if tails and record.sha256 != self.records[first.setdefault(tails, index)].sha256:
                return self[first[tails]], self[index]
        return None

    @property
    def largest(self) -> "Samples":
        """Only the sample with the most elements, the first of several."""
        return self.select([max(range(len(self)), key=lambda index: self.records[index].elements)])

    @property
    def elements(self) -> int:
        """Number of elements in all samples together."""
        return sum(record.elements for record in self.records)

    @property
    def rows(self) -> int:
        """How many there are; where they may be joined, each row is one."""
        return sum(record.rows for record in self.records) if self.batchable else len(self)


def collect(
    source: object,
    inputs: Sequence[InputSpec],
    directory: Path,
    limit: int,
    preprocessing: Preprocessing | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    rows: Callable[[Feeds], Sequence[Feeds]] | None = None,
) -> Samples:
    """Read at most `limit` samples from anything `open_source` accepts, check each, and spool them into `directory`.

    Where there are more, they are evenly spread; those of an iterator, whose number nobody knows, are its first.
    progress: called after each sample with the number done and the number expected, if known. rows: takes batches of a
    model apart that leaves the size of a batch open (`OpenBatches`).
    Raises CalibrationError for data that do not fit the inputs or a reader that raises (its exception is the cause),
    and Interrupted when the spool cannot be written.
    """
    if limit < 1:
        raise CalibrationError(f"a limit of {limit} calibration samples, expected at least 1")
    stream = open_source(source, inputs, limit, preprocessing)
    reader = _Reader(stream, inputs, limit, rows)
    records, unbatched = _spooled(reader, directory, progress)
    if len(records) < min(limit, reader.seen) and stream.reopens:  # small items leave room for more of the others
        again = open_source(source, inputs, limit, preprocessing)
        reader = _Reader(again, inputs, limit, rows, _shares(reader.rows_of, limit))
        records, unbatched = _spooled(reader, directory, progress)
    notes = (*_notes(reader, records, preprocessing), *map(_added_axis, sorted(unbatched)))
    images = preprocessing if stream.holds_images else None
    return Samples(directory, tuple(records), notes, preprocessing=images, texts=stream.texts)


def _spooled(
    reader: "_Reader", directory: Path, progress: Callable[[int, int | None], None] | None
) -> tuple[list[_Record], set[str]]:
    """Records of the samples, and the inputs to which a batch axis was added."""
    records: list[_Record] = []
    unbatched: set[str] = set()
    with _spooling(directory), (directory / DATA).open("wb") as file:
        for sample in reader:
            unbatched |= sample.unbatched
            records.append(_append(file, sample.number, sample.feeds, sample.file))
            if progress:
                progress(len(records), reader.stream.count)
    with _spooling(directory):
        _write_index(directory, records)
    return records, unbatched


def _shares(rows_of: Sequence[int], limit: int) -> list[int]:
    """How many rows of each item make `limit` together: as many of each as of the others that have so many."""
    result, left = [0] * len(rows_of), limit
    for done, place in enumerate(sorted(range(len(rows_of)), key=rows_of.__getitem__)):
        result[place] = min(rows_of[place], ceil(left / (len(rows_of) - done)))
        left -= result[place]
    return result


@dataclass(frozen=True)
class CheckedSample:
    """A sample as the model takes it. unbatched: inputs to which a batch axis was added. Others: see `_Record`."""

    number: int
    file: str
    feeds: Feeds
    unbatched: frozenset[str]

    @property
    def name(self) -> str:
        """How messages name it."""
        return sample_name(self.number, self.file)


def checked(
    stream: SampleSource,
    inputs: Sequence[InputSpec],
    limit: int,
    rows: Callable[[Feeds], Sequence[Feeds]] | None = None,
) -> Iterator[CheckedSample]:
    """At most `limit` samples of an opened source, each checked when it is asked for; none is kept.

    rows: see `collect`. Raises CalibrationError for data that do not fit the inputs, a reader that raises, and a source
    without samples.
    """
    return iter(_Reader(stream, inputs, limit, rows))


@dataclass
class _Reader:
    """Reads an opened source; see `checked`.

    shares: how many samples of each item are taken; else as many of each as of the others, where their number is known.
    rows_of: how many samples each item that was read has. seen: all of these together.
    """

    stream: SampleSource
    inputs: Sequence[InputSpec]
    limit: int
    rows: Callable[[Feeds], Sequence[Feeds]] | None = None
    shares: Sequence[int] = ()
    rows_of: list[int] = field(default_factory=list)
    seen: int = 0

    def __iter__(self) -> Iterator[CheckedSample]:
        stream, taken = self.stream, 0
        read = guarded(
            stream.samples, lambda index: f"{sample_name(stream.place(index))}: reading {stream.description}"
        )
        for place, item in enumerate(read):
            for sample in self._taken(place, item, self._share(place, self.limit - taken)):
                yield sample
                taken += 1
                if taken >= self.limit:
                    return
        if not taken:
            raise CalibrationError(f"{stream.description} holds no samples: give at least one, better {FEW} or more")

    def gives_more(self) -> bool:
        """Whether there is a further item."""
        if self.stream.available is not None:
            return self.stream.available > len(self.rows_of)
        try:
            next(self.stream.samples)
        except Exception:  # the end, or what the user's code raises for an item that is not wanted
            return False
        return True

    def _share(self, place: int, left: int) -> int:
        """How many samples of an item are taken. left: how many of it and those behind."""
        if self.shares:
            return self.shares[place]
        if self.stream.is_iterated or self.stream.count is None:
            return left
        return ceil(left / max(self.stream.count - place, 1))

    def _taken(self, place: int, item: Mapping[str, Any], most: int) -> Iterator[CheckedSample]:
        """At most so many samples of an item, evenly spread; of iterated ones the first."""
        stream, start = self.stream, self.seen
        file = stream.files[place] if place < len(stream.files) else ""
        parts = parts_of(item, self.inputs) if stream.batches else (item,)
        first = stream.place(place) if stream.places and len(parts) == 1 else start
        rows = self._rows(conform(parts[0], self.inputs, first, file)) if parts else ()
        count, part = len(parts) * len(rows), 0  # parts of one item have equal shapes
        self.rows_of.append(count)
        self.seen += count
        for number in self._chosen(place, count, most):
            if number // len(rows) != part:
                part = number // len(rows)
                rows = self._rows(conform(parts[part], self.inputs, start + number, file))
            feeds = rows[number % len(rows)]
            added = frozenset(name for name, array in feeds.items() if np.ndim(parts[part][name]) < array.ndim)
            yield CheckedSample(first if count == 1 else start + number, file, feeds, added)

    def _rows(self, feeds: Feeds) -> Sequence[Feeds]:
        return self.rows(feeds) if self.rows and self.stream.batches else (feeds,)

    def _chosen(self, place: int, count: int, most: int) -> Sequence[int]:
        """Which of so many samples of an item are taken."""
        if self.stream.is_iterated:
            return range(min(count, most))
        if most == 1 < count:  # of each item another place: recordings begin alike
            return [int(place * GOLDEN % 1 * count)]
        return spread(count, most)


def guarded(samples: Iterator[Item], reading: Callable[[int], str]) -> Iterator[Item]:
    """The samples, with whatever the user's code or a library raises turned into a CalibrationError.

    reading: says what is done for the sample of a number.
    """
    index = 0
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except PtqcError:
            raise
        except Exception as error:
            raise CalibrationError(f"{reading(index)} raised {type(error).__name__}: {error}") from error
        yield sample
        index += 1


@contextmanager
def _spooling(directory: Path) -> Iterator[None]:
    """Make `directory` an unfinished spool, and report a full or unwritable disk as an interruption."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / INDEX).unlink(missing_ok=True)
        yield
    except OSError as error:
        if error.errno is None:  # none of the system's: what a progress raises to cancel, such as TimeoutError
            raise
        raise Interrupted(
            f"cannot write calibration samples to {directory}: {error}: make room and run again"
        ) from error


def _notes(reader: _Reader, records: Sequence[_Record], preprocessing: Preprocessing | None) -> tuple[Note, ...]:
    stream, notes = reader.stream, []
    count, distinct = len(records), len({record.sha256 for record in records})
    if preprocessing not in (None, Preprocessing()) and not stream.holds_images:
        message = f"{stream.description} holds arrays, which are taken as they are: the preprocessing is for images"
        notes.append(Note("calibrate", "", message, Level.WARNING))
    if stream.holds_images and len(sizes := {record.tensors[0].shape for record in records}) > 1:
        message = (
            f"images of {len(sizes)} sizes are taken as they are; --resize 320 --crop 320, or --resize 320 "
            "--fit letterbox, would bring them to one"
        )
        notes.append(Note("calibrate", "", message))
    notes += [*_of_part(reader, count), *stream.notes()]
    if count < FEW:
        message = f"only {count} calibration samples: the observed ranges may be too narrow; give {FEW} or more"
        notes.append(Note("calibrate", "", message, Level.WARNING))
    if distinct < min(count, FEW):
        message = (
            f"only {distinct} of the {count} calibration samples differ from one another: what is measured on them "
            "says little about other inputs; check what reads them"
        )
        notes.append(Note("calibrate", "", message, Level.WARNING))
    elif distinct < count:
        message = f"{count - distinct} of the {count} calibration samples are copies of others: no two splits share one"
        notes.append(Note("calibrate", "", message))
    return tuple(notes)


def _of_part(reader: _Reader, count: int) -> Iterator[Note]:
    """What is said where the source holds more samples than are used."""
    stream, seen = reader.stream, reader.seen
    items = len(reader.rows_of)
    if stream.is_iterated:
        if count >= reader.limit and (seen > count or reader.gives_more()):
            message = (
                f"the first {count} samples of {stream.description} are used, and it gives more: where these lie in an "
                "order, such as by class, give a list or an array, of which evenly spread ones are used"
            )
            yield Note("calibrate", "", message, Level.WARNING)
    elif stream.available is not None and stream.available > items < seen:
        message = f"{count} samples of {items} of the {stream.available} items given are used, evenly spread"
        yield Note("calibrate", "", message)
    elif (available := max(seen, stream.available or 0)) > count:
        yield Note("calibrate", "", f"{count} of the {available} samples given are used, evenly spread")


def _added_axis(name: str) -> Note:
    return Note("calibrate", name, "samples have no batch axis for this input: each is taken as a batch of one")


def _append(file: BinaryIO, number: int, feeds: Feeds, source: str, read: str = "") -> _Record:
    offset = file.tell()
    for array in feeds.values():
        file.write(_raw(array))
    digest = _digest(feeds)
    return _Record(number, offset, digest, _tensors(feeds), source, "" if read == digest else read)


def _raw(array: np.ndarray) -> memoryview:
    """The array's bytes without a copy; viewed as uint8, because memoryview does not know bfloat16."""
    return array.reshape(-1).view(np.uint8).data


def _tensors(feeds: Feeds) -> tuple[_Tensor, ...]:
    return tuple(_Tensor(name, _type_name(array.dtype), array.shape) for name, array in feeds.items())


def _type_name(dtype: np.dtype) -> str:
    """What `np.dtype` makes the type of again: the name, or for text the code (bfloat16 has none)."""
    return dtype.str if dtype.kind == "U" else dtype.name


def _digest(feeds: Feeds) -> str:
    header = [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in _tensors(feeds)]
    digest = hashlib.sha256(json.dumps(header, separators=(",", ":")).encode())
    for array in feeds.values():
        digest.update(_raw(array))
    return digest.hexdigest()


def _read(file: BinaryIO, tensor: _Tensor) -> np.ndarray:
    array = np.empty(tensor.shape, np.dtype(tensor.dtype))
    if file.readinto(_raw(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise CalibrationError(f"{file.name} ends inside tensor {tensor.name!r}: collect the samples again")
    return array


def _write_index(directory: Path, records: Sequence[_Record]) -> None:
    content = {"layout": LAYOUT, "samples": [asdict(record) for record in records]}
    unfinished = directory / f"{INDEX}.part"
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(directory / INDEX)


def _read_index(directory: Path) -> tuple[_Record, ...]:
    path = directory / INDEX
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["layout"] != LAYOUT:
            raise ValueError(f"layout {content['layout']!r}, expected {LAYOUT!r}")
        records = tuple(map(_record, content["samples"]))
        size = (directory / DATA).stat().st_size
        end = max((record.offset + record.nbytes for record in records), default=0)
        if end > size:
            raise ValueError(f"{DATA} has {size} bytes, expected {end}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(
            f"{path} is not a finished calibration spool ({error}): collect the samples again"
        ) from error
    return records


def _record(entry: dict[str, object]) -> _Record:
    number, offset, sha256, tensors = (entry[name] for name in ("number", "offset", "sha256", "tensors"))
    if not (isinstance(number, int) and isinstance(offset, int) and isinstance(sha256, str)):
        raise TypeError("a sample without number, offset and sha256")
    if not isinstance(tensors, list):
        raise TypeError("a sample without tensors")
    held = tuple(_Tensor(t["name"], t["dtype"], tuple(t["shape"])) for t in tensors)
    return _Record(number, offset, sha256, held, str(entry.get("file", "")), str(entry.get("read", "")))


def _row_shapes(record: _Record) -> tuple[tuple[int, ...], ...]:
    """Shapes beyond axis 0, empty when a tensor has no axis to join along."""
    if any(not tensor.shape for tensor in record.tensors):
        return ()
    return tuple(tensor.shape[1:] for tensor in record.tensors)


def joined(group: Sequence[Feeds]) -> Feeds:
    """Samples of equal shapes concatenated along axis 0."""
    if len(group) == 1:
        return group[0]
    return {name: np.concatenate([feeds[name] for feeds in group]) for name in group[0]}
