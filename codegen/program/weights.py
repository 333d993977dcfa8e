"""The file of constants that all libraries of an artifact read: the same bytes lie there once."""

import hashlib

import numpy as np

from ptqc.runtime.library import ALIGNMENT


class Weights:
    """The file in the making; never empty, so that it can be mapped."""

    def __init__(self) -> None:
        self._data = bytearray(ALIGNMENT)
        self._places: dict[bytes, int] = {}

    def place(self, array: np.ndarray) -> int:
        """Where the bytes of an array begin: a multiple of what kernels assume of pointers."""
        data = array.tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self._places:
            self._data += bytes(-len(self._data) % ALIGNMENT)
            self._places[key] = len(self._data)
            self._data += data
        return self._places[key]

    def __bytes__(self) -> bytes:
        return bytes(self._data)
