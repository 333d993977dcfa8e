"""A store at a URL (s3://bucket/folder, file:///…): each entry is one object there, and a folder of this machine too.

Such places have neither locks nor a renaming that is done at once, and need none: an object holds a whole entry under
the digest of its key, two that have one name are equal, and what is read is checked like every entry. Half an object
is as if there were none.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.errors import Interrupted, UsageError
from ptqc.utils.store.entries import Entry, Store, default_folder, digest

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
        found = super().open(name)
        return found if found is not None or not self._copy(name) else super().open(name)

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
                with zipfile.ZipFile(temporary / OBJECT) as archive:
                    archive.extractall(temporary / name)
            except (FileNotFoundError, zipfile.BadZipFile):
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
