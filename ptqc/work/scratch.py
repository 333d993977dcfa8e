"""Folders for files that nobody else sees."""

import shutil
import tempfile
import weakref
from pathlib import Path

PREFIX = "ptqc-"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, removed in the end; a disk that fails by then has said so where it matters."""
    return tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)


class Scratch:
    """A temporary folder that is removed when nobody holds this object any more.

    What is mapped from its files stays readable.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
