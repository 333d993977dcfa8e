"""How large a store is, and emptying it, while others may be using it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptqc.errors import Interrupted
from ptqc.utils.locks import Claim, InUse
from ptqc.utils.store.entries import QUARANTINE, Store, is_entry, is_unfinished


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
        kept = f"; {self.in_use} in use by other processes stay" if self.in_use else ""
        return f"removed {self.removed}{kept}"


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
