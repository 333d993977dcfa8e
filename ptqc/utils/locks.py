"""Marks on folders that are in use, which the system takes away when their process ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import Self


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether an open folder still has its name: while one waits for the lock, another may take its place."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


class InUse:
    """Holds a shared lock on a folder for as long as the object lives; any number of processes may."""

    def __init__(self, folder: Path) -> None:
        while True:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_at(descriptor, folder):
                break
            os.close(descriptor)
        self._descriptor = descriptor

    def __del__(self) -> None:
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            os.close(descriptor)


class Claim:
    """Holds a folder alone within a `with` block, if nobody uses it. taken: whether that was so."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.taken = folder, False

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone, or a file
            self._descriptor = -1
            return self
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.taken = _is_at(self._descriptor, self.folder)
        except BlockingIOError:
            pass
        return self

    def __exit__(self, *_error: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
