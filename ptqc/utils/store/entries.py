"""A content-addressed store of what was measured: immutable entries, verified when read, damaged ones set aside.

An entry is a folder named by the SHA-256 of its key: `key.json` (the full key), `entry.json` (anything JSON),
`arrays.safetensors`, and further files. It is written beside its place and renamed, so that it exists whole or not at
all.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.errors import Interrupted, UsageError
from ptqc.utils.arguments import path_of
from ptqc.utils.locks import InUse
from ptqc.utils.store.arrays import mapped

ENVIRONMENT = "PTQC_CACHE"
SUMS, QUARANTINE = "sums.json", "quarantine"
UNFINISHED = (".new-", ".old-")


def default_folder() -> Path:
    """$PTQC_CACHE, or the user's cache folder (on Linux ~/.cache/ptqc)."""
    from platformdirs import user_cache_path

    return Path(os.environ.get(ENVIRONMENT) or user_cache_path("ptqc", appauthor=False))


def is_entry(folder: Path) -> bool:
    """Whether a folder has the name of an entry, whole or damaged."""
    return re.fullmatch("[0-9a-f]{64}", folder.name) is not None and folder.is_dir()


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
        folder = self.folder / name
        try:
            self._used.append(InUse(folder))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not _is_whole(folder, name):
            self._quarantine(folder)
            return None
        return Entry(folder, json.loads((folder / "entry.json").read_text()), mapped(folder / "arrays.safetensors"))

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
    except (OSError, ValueError):
        return False


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
