"""Folders for files that nobody else sees."""

import tempfile

PREFIX = "ptqc-"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, removed in the end; a disk that fails by then has said so where it matters."""
    return tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
