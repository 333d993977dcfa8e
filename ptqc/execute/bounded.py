"""Values held in memory up to a number of bytes; those beyond it wait in files until they are read."""

import weakref
from dataclasses import replace
from threading import RLock

import numpy as np

from ptqc.execute.compressed import Compressed, Held
from ptqc.store import spool

# Arrays of fewer bytes are not worth a file.
SMALL = 2**16


class Bounded:
    """Keeps account of the values that it was shown, as long as they are held by anybody. most: bytes in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._lock = RLock()  # a value may be let go of while another one is counted

    def keep(self, value: Held) -> Held:
        """The same numbers, from a file where there is no room for them. Sequences stay as they are."""
        if isinstance(value, Compressed):
            return replace(value, codes=self.array(value.codes))
        return self.array(value) if isinstance(value, np.ndarray) else value

    def array(self, array: np.ndarray) -> np.ndarray:
        """The same of an array; only one whose numbers lie in order goes to a file, as products may round by order."""
        if array.dtype.hasobject or array.nbytes < SMALL or not array.flags.c_contiguous:
            return array
        with self._lock:
            has_room = self.held + array.nbytes <= self.most
            self.held += array.nbytes if has_room else 0
        if not has_room:
            return spool.kept(array)
        weakref.finalize(array, self._let_go, array.nbytes).atexit = False
        return array

    def _let_go(self, size: int) -> None:
        with self._lock:
            self.held -= size
