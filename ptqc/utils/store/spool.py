"""Arrays in files of the compile's own: the system writes their pages there where it needs the memory.

They are on the disk of the temporary folder (`TMPDIR`); where that is itself in memory, nothing is gained.
"""

import tempfile

import numpy as np

from ptqc.utils.scratch import PREFIX


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros, mapped from a file that goes when nobody holds the array any more."""
    with tempfile.TemporaryFile(prefix=PREFIX) as file:  # what is mapped stays
        file.truncate(4 * int(np.prod(shape, dtype=np.int64)))
        return np.asarray(np.memmap(file, np.float32, "r+", shape=shape))


def kept(array: np.ndarray) -> np.ndarray:
    """The same numbers in such a file, not writable."""
    with tempfile.TemporaryFile(prefix=PREFIX) as file:
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "r", shape=array.shape))
