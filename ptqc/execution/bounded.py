"""Values held in memory up to a number of bytes; those beyond it wait in files until they are read."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from threading import RLock

import numpy as np

from ptqc.execution.compressed import Compressed, Held
from ptqc.utils.store import spool

# Arrays of fewer bytes are not worth a file.
SMALL = 2**16
# Bytes in memory of the values of a walk, or of all walks that go on beside each other.
WALK_MEMORY = 3 * 2**28
# Bytes in memory of the outputs, or inputs, of many samples.
OUTPUTS_MEMORY = 2**27


class Bounded:
    """Keeps account of the values that it was shown, as long as they are held by anybody. most: bytes in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._counted = set[int]()  # identities of arrays that are held
        self._lock = RLock()  # a value may be let go of while another one is counted

    def keep(self, value: Held) -> Held:
        """The same numbers, from a file where there is no room for them. Sequences stay as they are."""
        if isinstance(value, Compressed):
            return replace(value, codes=self.array(value.codes))
        return self.array(value) if isinstance(value, np.ndarray) else value

    def outputs(self, runs: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """The arrays of many runs by name, each run let go of before the next one."""
        return [{name: self.array(x) if isinstance(x, np.ndarray) else x for name, x in run.items()} for run in runs]

    def array(self, array: np.ndarray) -> np.ndarray:
        """The same of an array; only one whose numbers lie without gaps goes to a file, in the order that they have."""
        owner = _owner(array)
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        in_order = array.transpose(axes)
        is_in_file = isinstance(owner, np.memmap)
        if is_in_file or array.dtype.hasobject or array.nbytes < SMALL or not in_order.flags.c_contiguous:
            return array
        with self._lock:
            if id(owner) in self._counted:
                return array
            if has_room := self.held + owner.nbytes <= self.most:
                self.held += owner.nbytes
                self._counted.add(id(owner))
                weakref.finalize(owner, self._let_go, id(owner), owner.nbytes).atexit = False
        # With the same strides, as products round by them.
        return array if has_room else np.ndarray(array.shape, array.dtype, spool.kept(in_order), strides=array.strides)

    def _let_go(self, owner: int, size: int) -> None:
        with self._lock:
            self._counted.remove(owner)
            self.held -= size


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose numbers another one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def outputs_in_files(runs: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Inputs or outputs of many samples, by name; beyond OUTPUTS_MEMORY in files."""
    return Bounded(OUTPUTS_MEMORY).outputs(runs)
