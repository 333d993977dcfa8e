"""A content-addressed store of what was measured: immutable entries, verified when read, damaged ones set aside.

An entry is a folder named by the SHA-256 of its key: `key.json` (the full key), `entry.json` (anything JSON),
`arrays.safetensors`, and further files. It is written beside its place and renamed, so that it exists whole or not at
all.
"""

import errno
import hashlib
import json
import math
import mmap
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np

from ptqc.errors import LIMITS, MALFORMED, UNREADABLE, Interrupted, UsageError
from ptqc.utils.arguments import path_of
from ptqc.utils.locks import Claim, InUse
from ptqc.utils.memory import lacks_memory
from ptqc.utils.scratch import PREFIX

# Arrays of a safetensors file, mapped into memory: the system reads what is looked at, and may let go of it again.

# https://huggingface.co/docs/safetensors: the length of the header, the header in JSON, the bytes of all tensors.
LENGTH = 8
DTYPES: Mapping[str, Any] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def mapped(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name, not writable. Raises ValueError where the file is not what safetensors writes."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return dict(_arrays(data, path))


def _arrays(data: memoryview, path: Path) -> Iterator[tuple[str, np.ndarray]]:
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    header: dict[str, Any] = json.loads(bytes(data[LENGTH:start]))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path} holds {name!r} of type {entry['dtype']}; known are {', '.join(DTYPES)}")
        dtype, first = np.dtype(DTYPES[entry["dtype"]]), start + entry["data_offsets"][0]
        yield name, np.frombuffer(data, dtype, math.prod(entry["shape"]), first).reshape(entry["shape"])


ENVIRONMENT = "PTQC_CACHE"
SUMS, QUARANTINE = "sums.json", "quarantine"
UNFINISHED = (".new-", ".old-")


def default_folder() -> Path:
    """$PTQC_CACHE, or the user's cache folder (on Linux ~/.cache/ptqc)."""
    from platformdirs import user_cache_path

    return Path(os.environ.get(ENVIRONMENT) or user_cache_path("ptqc", appauthor=False))


def is_name(name: object) -> bool:
    """Whether this can be the name of an entry; documents that name entries may hold anything, such as a path."""
    return isinstance(name, str) and re.fullmatch("[0-9a-f]{64}", name) is not None


def is_entry(folder: Path) -> bool:
    """Whether a folder has the name of an entry, whole or damaged."""
    return is_name(folder.name) and folder.is_dir()


def is_unfinished(folder: Path) -> bool:
    """Whether a folder is one that is being written or removed, or was; an empty one may just be made."""
    try:
        return folder.name.startswith(UNFINISHED) and folder.is_dir() and any(folder.iterdir())
    except FileNotFoundError:  # its owner was faster
        return False


@dataclass(frozen=True)
class Entry:
    """One stored result. folder: holds its further files. arrays: mapped from the entry's file, not writable."""

    folder: Path
    document: Any
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Store:
    """A folder of entries; it need not exist. Raises UsageError where a file is in its place.

    Entries that were opened are not cleared away by others for as long as the store object lives. check: called before
    an entry is kept; raises where it must not be.
    """

    folder: Path
    check: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    _used: list[InUse] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        for place in (self.folder, *self.folder.parents):
            if os.path.exists(place) and not os.path.isdir(place):  # noqa: PTH110, PTH112  (these raise nothing)
                raise UsageError(f"the store {self.folder} cannot be a folder: {place} is a file; choose with --cache")

    @property
    def address(self) -> str:
        """What other processes open it by."""
        return str(self.folder.absolute())

    def anew(self) -> Self:
        """The same store; what this object opens is in use for as long as it lives."""
        return replace(self, _used=[])

    @classmethod
    def at(cls, cache: str | Path | None) -> "Store":
        """The store in a folder that a user names; None: in the usual one. Raises UsageError."""
        return cls(path_of("cache", cache) if cache is not None else default_folder())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether there is an entry of a key, whole or not."""
        return (self.folder / digest(key)).is_dir()

    def get(self, key: Mapping[str, Any]) -> Entry | None:
        """The entry of a key, or None. An entry that does not match its own checksums is set aside."""
        return self.open(digest(key))

    def open(self, name: str) -> Entry | None:
        """The entry of a key's digest, or None."""
        if not is_name(name):
            return None
        folder = self.folder / name
        try:
            self._used.append(InUse(folder))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if _is_whole(folder, name):
            with suppress(FileNotFoundError, IsADirectoryError, *MALFORMED):
                return Entry(
                    folder, json.loads((folder / "entry.json").read_text()), mapped(folder / "arrays.safetensors")
                )
        self._quarantine(folder)
        return None

    def put(
        self,
        key: Mapping[str, Any],
        document: Any,
        arrays: Mapping[str, np.ndarray],
        write_files: Callable[[Path], None] = lambda _folder: None,
    ) -> str:
        """Store a result under its key and return the key's digest. Raises Interrupted when it cannot be written."""
        name = digest(key)
        try:
            with self._temporary() as temporary:
                folder = temporary / name
                folder.mkdir()
                _write(folder, key, document, arrays)
                write_files(folder)
                _write_sums(folder)
                self.check()
                self._take(folder)
        except OSError as error:
            raise Interrupted(
                f"cannot write to the store {self.folder}: {error}. Free some space or give another folder with --cache"
            ) from error
        return name

    def forget(self, name: str) -> None:
        """Called when an entry was removed from the folder."""

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A folder beside the entries that no other process clears away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-", ignore_cleanup_errors=True) as temporary:
            used = InUse(Path(temporary))
            yield Path(temporary)
            del used

    def _take(self, folder: Path) -> None:
        """Give an entry that was written beside its place that place."""
        # Another process may have stored the same result meanwhile; entries of one key are equal.
        try:
            folder.rename(self.folder / folder.name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _quarantine(self, folder: Path) -> None:
        place = self.folder / QUARANTINE
        place.mkdir(exist_ok=True)
        shutil.rmtree(place / folder.name, ignore_errors=True)
        try:
            folder.rename(place / folder.name)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):  # another process was faster
                raise


def digest(key: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the canonical JSON of a key."""
    return hashlib.sha256(_canonical(key).encode()).hexdigest()


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _write(folder: Path, key: Mapping[str, Any], document: Any, arrays: Mapping[str, np.ndarray]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    (folder / "key.json").write_text(_canonical(key))
    (folder / "entry.json").write_text(json.dumps(document))
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(plain, folder / "arrays.safetensors")
    except SafetensorError as error:  # its word for whatever the disk says
        raise OSError(str(error)) from error


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    return {str(path.relative_to(folder)): file_digest(path) for path in paths}


def _write_sums(folder: Path) -> None:
    (folder / SUMS).write_text(json.dumps(_files(folder)))


def _is_whole(folder: Path, name: str) -> bool:
    try:
        sums = json.loads((folder / SUMS).read_text())
        return bool(sums == _files(folder)) and digest(json.loads((folder / "key.json").read_text())) == name
    except UNREADABLE:
        return False


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# How large a store is, and emptying it, while others may be using it.


@dataclass(frozen=True)
class Contents:
    """entries: whole results; others: what was damaged or left unfinished. bytes: of all."""

    entries: int
    others: int
    bytes: int

    def to_json(self) -> dict[str, int]:
        """The document of `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        damaged = f" and {self.others} damaged or unfinished" if self.others else ""
        return f"{self.entries} entr{'y' if self.entries == 1 else 'ies'}{damaged}, {self.bytes / 1e6:.1f} MB"


@dataclass(frozen=True)
class Cleared:
    """What was removed, and how many entries were left because a compile is using them."""

    removed: Contents
    in_use: int

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {"removed": self.removed.to_json(), "in_use": self.in_use}

    def __str__(self) -> str:
        text = f"; {self.in_use} in use by other processes stay" if self.in_use else ""
        return f"removed {self.removed}{text}"


def contents(store: Store) -> Contents:
    """What a store holds; a folder that does not exist holds nothing."""
    folders = list(_folders(store))
    entries = sum(is_entry(folder) for folder in folders)
    return Contents(entries, len(folders) - entries, sum(map(_bytes, folders)))


def clear(store: Store) -> Cleared:
    """Remove everything that nobody is using; other files in the folder stay. Raises Interrupted where that fails."""
    entries = others = size = in_use = 0
    for folder in _folders(store):
        whole = is_entry(folder)
        with Claim(folder) as claim:
            if not claim.taken:
                in_use += whole
                continue
            size += _bytes(folder)
            _remove(folder)
        entries, others = entries + whole, others + (not whole)
    return Cleared(Contents(entries, others, size), in_use)


def discard(store: Store, name: str) -> bool:
    """Remove an entry by the digest of its key, unless somebody is using it; whether it is gone."""
    folder = store.folder / name
    with Claim(folder) as claim:
        if claim.taken:
            _remove(folder)
    store.forget(name)
    return not folder.exists()


def clear_unfinished(store: Store) -> None:
    """Remove what killed processes were writing or removing."""
    for folder in store.folder.glob(".*") if store.folder.is_dir() else ():
        if is_unfinished(folder):
            with Claim(folder) as claim:
                if claim.taken:
                    shutil.rmtree(folder, ignore_errors=True)


def _folders(store: Store) -> Iterator[Path]:
    """Entries, damaged ones, and what killed processes were writing."""
    for place in (store.folder, store.folder / QUARANTINE):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if is_entry(path) or is_unfinished(path):
                yield path


def _remove(folder: Path) -> None:
    """Rename first: whoever looks for the entry finds all of it or nothing."""
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".old-", ignore_cleanup_errors=True) as temporary:
            used = InUse(Path(temporary))  # so that no other process clears it away
            folder.rename(Path(temporary) / folder.name)
            del used
    except FileNotFoundError:  # another process was faster
        return
    except OSError as error:
        raise Interrupted(f"cannot remove {folder}: {error}; what was removed before it is gone") from error


def _bytes(folder: Path) -> int:
    """Bytes of all files; those that vanish meanwhile count nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


# Archives of arrays by name, whatever the names are: NumPy's `savez` takes none called `file`.


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write what `np.load` reads, without pickles. Raises ValueError for arrays of Python objects."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


# A store at a URL (s3://bucket/folder, file:///…): each entry is one object there, and a folder of this machine too.
#
# Such places have neither locks nor a renaming that is done at once, and need none: an object holds a whole entry under
# the digest of its key, two that have one name are equal, and what is read is checked like every entry. Half an object
# is as if there were none.

COPIES, OBJECT = "shared", "entry.zip"


def store_at(cache: str | Path | None) -> Store:
    """The store in a folder or at a URL that a user names; None: the usual folder. Raises UsageError."""
    return SharedStore.of(cache) if isinstance(cache, str) and "://" in cache else Store.at(cache)


@dataclass(frozen=True)
class SharedStore(Store):
    """Entries at a URL, with copies in `folder`. place: the URL's file system, and the path of the entries there."""

    url: str = ""
    place: tuple[Any, str] = (None, "")

    @classmethod
    def of(cls, url: str) -> "SharedStore":
        """The store at a URL, whose copies are in the user's cache folder.

        Raises UsageError where what reads such URLs is not installed.
        """
        if find_spec("fsspec") is None:
            raise UsageError(f"the store {url} needs fsspec, which is not installed: pip install 'ptqc[fsspec]'")
        import fsspec

        try:
            place = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"the store {url} cannot be used: {error}") from error
        copies = default_folder() / COPIES / hashlib.sha256(url.encode()).hexdigest()[:16]
        return cls(copies, url=url, place=place)

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether there is an entry of a key, here or at the URL."""
        system, _ = self.place
        with self._reached():
            return super().has(key) or bool(system.exists(self._object(digest(key))))

    def open(self, name: str) -> Entry | None:
        """The entry of a key's digest, or None; copied where only the URL has it."""
        result = super().open(name)
        return result if result is not None or not is_name(name) or not self._copy(name) else super().open(name)

    def put(
        self,
        key: Mapping[str, Any],
        document: Any,
        arrays: Mapping[str, np.ndarray],
        write_files: Callable[[Path], None] = lambda _folder: None,
    ) -> str:
        """Store a result under its key, here and at the URL. Raises Interrupted when it cannot be written."""
        name = super().put(key, document, arrays, write_files)
        system, root = self.place
        with self._temporary() as temporary, self._reached():
            system.makedirs(root, exist_ok=True)
            system.put_file(str(_packed(self.folder / name, temporary)), self._object(name))
        return name

    def forget(self, name: str) -> None:
        """Remove an entry's object."""
        system, _ = self.place
        with self._reached():
            if system.exists(self._object(name)):
                system.rm_file(self._object(name))

    def _object(self, name: str) -> str:
        return f"{self.place[1].rstrip('/')}/{name}.zip"

    def _copy(self, name: str) -> bool:
        """Copy an entry from the URL, if it is there; whether it is whole is seen when it is opened."""
        system, _ = self.place
        with self._temporary() as temporary:
            try:
                with self._reached():
                    system.get_file(self._object(name), str(temporary / OBJECT))
            except FileNotFoundError:
                return False
            try:
                with zipfile.ZipFile(temporary / OBJECT) as archive:
                    archive.extractall(temporary / name)
            except Exception as error:  # each way to compress and to encrypt has errors of its own
                if lacks_memory(error) or getattr(error, "errno", None) in LIMITS:  # of this machine, not of the object
                    raise
                return False
            self._take(temporary / name)
        return True

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Whatever a storage raises, told as what stopped the work; what is not there is no such thing."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # each kind of storage has errors of its own
            message = f"cannot reach the store {self.url}: {error}; see that it can be read and written, and run again"
            raise Interrupted(message) from error


def _packed(folder: Path, temporary: Path) -> Path:
    """All files of a folder in one."""
    with zipfile.ZipFile(temporary / OBJECT, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(folder)))
    return temporary / OBJECT


# Arrays in files of the compile's own: the system writes their pages there where it needs the memory.
#
# They are on the disk of the temporary folder (`TMPDIR`); where that is itself in memory, nothing is gained.


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros, mapped from a file that goes when nobody holds the array any more."""
    with tempfile.TemporaryFile(prefix=PREFIX) as file:  # what is mapped stays
        file.truncate(4 * int(np.prod(shape, dtype=np.int64)))
        return np.asarray(np.memmap(file, np.float32, "r+", shape=shape))


def spool(array: np.ndarray) -> np.ndarray:
    """The same numbers in such a file, not writable."""
    with tempfile.TemporaryFile(prefix=PREFIX) as file:
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "r", shape=array.shape))
