"""A native CPU library (`cpu/avx2.so` and the like) at work: the best for this machine, one handle for all threads."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from operator import gt
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.errors import InternalError, TargetError, UsageError
from ptqc.runtime.interface import INTERFACE, WEIGHTS, Interface, library_file
from ptqc.runtime.runtime import LOADING, check_version, load_module, load_runtime
from ptqc.utils.parallel import processors

# What TVM's kernels assume of every pointer, in bytes; less makes aligned vector moves fault.
ALIGNMENT = 64
# How the Relax virtual machine is told of its device and of an allocator that keeps nothing: a run only makes outputs.
CPU, DEVICE_INDEX, NAIVE = 1, 0, 1


class _Machine:
    """One virtual machine of the library's program, with the memory that a run works in."""

    def __init__(self, module: Any) -> None:
        self.virtual = module["vm_load_executable"]()
        self.virtual["vm_initialization"](CPU, DEVICE_INDEX, NAIVE)
        self._main, self._make_workspace = self.virtual["main"], self.virtual["workspace"]
        self._workspace: Any = None
        self._sizes: tuple[int, ...] = ()

    def run(
        self,
        sizes: Sequence[int],
        inputs: Sequence[Any],
        constants: Any,
        largest: Callable[[Sequence[int]], Sequence[Any]],
    ) -> Sequence[Any]:
        """Outputs. The workspace of the largest batch and lengths so far serves all.

        sizes: the batch and the lengths. largest: gives inputs of such sizes.
        """
        if self._workspace is None or any(map(gt, sizes, self._sizes)):
            self._workspace = None  # frees the old one first
            self._sizes = tuple(map(max, sizes, self._sizes)) if self._sizes else tuple(sizes)
            largest_inputs = inputs if self._sizes == tuple(sizes) else largest(self._sizes)
            self._workspace = self._make_workspace(*largest_inputs)
        result: Sequence[Any] = self._main(*inputs, constants, self._workspace)
        return result


class Library:
    """A native library, safe to share between threads: each gets its own virtual machine, all share the constants.

    Open with `Library.open`. isa: its instruction set. threads: how many threads one call uses, the calling thread
    included. constants: of all kernels, in the order of their calls, unpacked.
    """

    def __init__(
        self, interface: Interface, isa: str, ffi: Any, module: Any, weights: np.ndarray, threads: int
    ) -> None:
        self.interface, self.isa, self.threads = interface, isa, threads
        self._ffi, self._module, self._local = ffi, module, threading.local()
        self._set_threads = module.get_function("set_threads", query_imports=True)
        self.constants = self._machine().virtual["prepare"](ffi.from_dlpack(weights))

    @classmethod
    def open(cls, folder: Path, threads: int = 0, isa: str = "") -> Self:
        """Open the best library of a folder, which holds interface.json and weights.bin too, and unpack its constants.

        threads: per calling thread; 0 leaves it to interface.json, whose 0 means every processor the process may use.
        isa: the instruction set, in place of the best one. Raises TargetError when the library cannot run here, before
        any of its code is loaded.
        """
        if threads < 0:
            raise UsageError(f"threads = {threads}; expected a positive number, or 0 for all processors")
        folder = Path(folder).resolve()
        interface = Interface.read(folder / INTERFACE)
        isa = interface.choose(isa).isa
        check_version(interface.tvm)
        path = readable(folder / library_file(isa))
        weights = np.memmap(readable(folder / WEIGHTS), np.uint8, mode="c")
        with LOADING:
            ffi = load_runtime()
        try:
            module = load_module(ffi, path)
            count = min(threads or interface.threads or processors(), processors())
            return cls(interface, isa, ffi, module, weights, count)
        except (RuntimeError, AttributeError, OSError, ValueError) as error:
            raise TargetError(f"{path} is not a native library that runs here: {error}") from error

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, owned by the caller. Inputs may have any alignment and strides; a batch may be empty.

        Raises UsageError when a name, dtype or shape is not what the interface says.
        """
        batch, lengths = self.interface.check(feeds)
        if batch == 0:
            return self.interface.no_outputs(lengths)
        machine, convert = self._machine(), self._ffi.from_dlpack
        inputs = [convert(aligned(np.asarray(feeds[value.name]))) for value in self.interface.inputs]
        try:
            result = machine.run(
                (batch or 1, *lengths.values()), inputs, self.constants, partial(self._inputs, lengths)
            )
        except Exception as error:
            raise InternalError(f"the native library failed: {error}") from error
        outputs = zip(self.interface.outputs, result, strict=True)
        return {value.name: np.from_dlpack(array) for value, array in outputs}  # memory that each run makes anew

    def _inputs(self, names: Iterable[str], sizes: Sequence[int]) -> list[Any]:
        """Inputs of a batch and lengths, in which nothing is."""
        lengths = dict(zip(names, sizes[1:], strict=True))
        shapes = ((value.sized(sizes[0], lengths), value.dtype) for value in self.interface.inputs)
        return [self._ffi.from_dlpack(aligned(np.empty(shape, dtype))) for shape, dtype in shapes]

    def kernel(self, name: str) -> Callable[..., object]:
        """One kernel of the library: called with `aligned` arrays and constants, it writes to the last one."""
        return lambda *buffers: self.prepared(name, *buffers)()

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        """A call of one kernel, see `kernel`."""
        self._set_threads(self.threads)
        function, convert = self._module.get_function(name, query_imports=True), self._ffi.from_dlpack
        ready = [convert(b) if isinstance(b, np.ndarray) else b for b in buffers]
        return lambda: function(*ready)

    def _machine(self) -> _Machine:
        """The calling thread's virtual machine; one must not be shared."""
        self._set_threads(self.threads)
        machine: _Machine | None = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = _Machine(self._module)
        return machine


def readable(path: Path) -> Path:
    """The path of a library's file. Raises TargetError where it cannot be read."""
    if not (path.is_file() and os.access(path, os.R_OK)):
        raise TargetError(f"{path} is missing or cannot be read; compile again")
    return path


def aligned(array: np.ndarray) -> np.ndarray:
    """The array where it lies when TVM can read it there, or else a copy in contiguous memory aligned to 64 bytes."""
    if not array.size:
        return _compact(array)
    if array.flags.carray and array.ctypes.data % ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _compact(array: np.ndarray) -> np.ndarray:
    """An array without elements with the strides that TVM expects of one, which are not NumPy's."""
    strides = [prod(array.shape[axis + 1 :]) * array.itemsize for axis in range(array.ndim)]
    room = aligned(np.empty(1, array.dtype))
    return np.lib.stride_tricks.as_strided(room, array.shape, strides)
