"""Folders for files that nobody else sees."""

import errno
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptqc.errors import Interrupted
from ptqc.utils.locks import Claim, InUse

FULL = (errno.ENOSPC, errno.EDQUOT)
TRIED = 2**20  # bytes
PREFIX, LOCKED = "ptqc-", "ptqc-locked-"


@contextmanager
def scratch() -> Iterator[str]:
    """A temporary folder, removed in the end; a disk that fails by then has said so where it matters.

    The one of a process that was killed is removed by the next that makes one. Raises Interrupted, which names the
    folder, where its disk is full.
    """
    with _naming_the_folder():
        held = Scratch()
    try:
        with _naming_the_folder():
            yield str(held.folder)
    finally:
        shutil.rmtree(held.folder, ignore_errors=True)


@contextmanager
def _naming_the_folder() -> Iterator[None]:
    """Tells of a full disk which one it is, where it is that of temporary files: writing tells no name."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or not _is_full():
            raise
        raise Interrupted(
            f"{error.strerror} in {tempfile.gettempdir()}, where temporary files are: make room there, or name another "
            "folder with the environment variable TMPDIR, and run the same command again"
        ) from error


def _is_full() -> bool:
    """Whether the disk of temporary files takes no more."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(TRIED))
            file.flush()
    except OSError as error:
        return error.errno in FULL
    return False


class Scratch:
    """A temporary folder that is removed when nobody holds this object any more.

    What is mapped from its files stays readable. A process that was killed leaves its folder; the next one clears it.
    """

    def __init__(self) -> None:
        _clear_left()
        result = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._used = InUse(result)
        # Named so only now that it is locked: whoever finds the name without a lock may remove it.
        try:
            self.folder = result.rename(result.with_name(LOCKED + result.name.removeprefix(PREFIX)))
        except OSError:
            shutil.rmtree(result, ignore_errors=True)
            raise
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def _clear_left() -> None:
    """Remove the folders that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{LOCKED}*"):
        with Claim(folder) as claim:
            if claim.taken:
                shutil.rmtree(folder, ignore_errors=True)
