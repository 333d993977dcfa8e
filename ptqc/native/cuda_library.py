"""A CUDA library (`cuda/cuda.so`) at work on one GPU, or on the emulator that stands in for one."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.errors import InternalError, TargetError
from ptqc.native import cuda_driver
from ptqc.native.interface import INTERFACE, WEIGHTS, Interface, library_file
from ptqc.native.library import aligned, readable
from ptqc.native.runtime import LOADING, check_version, load_module, load_runtime, runtime_path

NAME, SIDECAR = "cuda", "libtvm_runtime_cuda.so"
# How the Relax virtual machine is told of its devices, and of allocators that keep memory or do not.
CUDA, CPU, POOLED, NAIVE = 2, 1, 2, 1


class _Device:
    """Memory of a GPU, copied from and to arrays."""

    def __init__(self, ffi: Any, index: int) -> None:
        self._ffi, self.index = ffi, index
        self._device = ffi.device("cuda", index)
        self._allocate = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._copy = ffi.get_global_func("runtime.TVMTensorCopyFromTo")
        self._synchronize = ffi.get_global_func("runtime.Device_StreamSync")

    def put(self, array: np.ndarray) -> Any:
        """A copy on the GPU."""
        made = self._allocate(self._ffi.Shape(array.shape), self._ffi.dtype(str(array.dtype)), self._device, None)
        self._copy(self._ffi.from_dlpack(aligned(array)), made)
        self._synchronize(self._device, 0)
        return made

    def pull(self, tensor: Any) -> np.ndarray:
        """A copy on the host."""
        made = aligned(np.empty(tuple(tensor.shape), str(tensor.dtype)))
        self._copy(tensor, self._ffi.from_dlpack(made))
        self._synchronize(self._device, 0)
        return made


class _CudaMachine:
    """One virtual machine of the library's program, with the memory that a run works in."""

    def __init__(self, module: Any, index: int) -> None:
        self.virtual = module["vm_load_executable"]()
        self.virtual["vm_initialization"](CUDA, index, POOLED, CPU, 0, NAIVE)
        self._workspace, self._batch = None, 0

    def run(self, batch: int, inputs: Sequence[Any], constants: Any) -> Sequence[Any]:
        """Outputs on the GPU. The workspace of the largest batch so far serves all."""
        if batch > self._batch:
            self._workspace, self._batch = None, 0  # frees the old one first
            self._workspace, self._batch = self.virtual["workspace"](*inputs), batch
        found: Sequence[Any] = self.virtual["main"](*inputs, constants, self._workspace)
        return found


class CudaLibrary:
    """A CUDA library, safe to share between threads: each gets its own virtual machine, all share the constants.

    Open with `CudaLibrary.open`. constants: of all kernels, in the order of their calls, unpacked on the GPU.
    """

    def __init__(self, interface: Interface, ffi: Any, module: Any, weights: np.ndarray, index: int) -> None:
        self.interface = interface
        self._module, self._local, self._device = module, threading.local(), _Device(ffi, index)
        self.constants = self._machine().virtual["prepare"](self._device.put(weights))

    @classmethod
    def open(cls, folder: Path, index: int = 0, *, emulated: bool = False) -> Self:
        """Open the library of a folder on a GPU, and unpack its constants there.

        index: of the GPU, as the driver counts them. emulated: on the emulator, whose stand-ins are loaded already.
        Raises TargetError when it cannot run here, before any of its code is loaded.
        """
        folder = Path(folder).resolve()
        interface = Interface.read(folder / INTERFACE)
        interface.choose(NAME)
        check_version(interface.tvm)
        path, weights = readable(folder / library_file(NAME)), np.fromfile(readable(folder / WEIGHTS), np.uint8)
        if not emulated:
            cuda_driver.check(index)
        with LOADING:
            ffi = load_runtime()
            _load_sidecar()
        try:
            return cls(interface, ffi, load_module(ffi, path), weights, index)
        except (RuntimeError, AttributeError, OSError, ValueError) as error:
            raise TargetError(f"{path} is not a CUDA library that runs here: {error}") from error

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, owned by the caller. Inputs may have any alignment and strides; a batch may be empty.

        Raises UsageError when a name, dtype or shape is not what the interface says.
        """
        batch = self.interface.check(feeds)
        if batch == 0:
            return self.interface.no_outputs()
        try:
            inputs = [self._device.put(np.asarray(feeds[value.name])) for value in self.interface.inputs]
            found = self._machine().run(batch or 1, inputs, self.constants)
            outputs = [self._device.pull(array) for array in found]
        except Exception as error:
            raise InternalError(f"the CUDA library failed: {error}") from error
        return {value.name: array for value, array in zip(self.interface.outputs, outputs, strict=True)}

    def kernel(self, name: str) -> Callable[..., object]:
        """One kernel of the library: called with arrays and constants, it writes to the last one."""
        return lambda *buffers: self.prepared(name, *buffers)()

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        """A call of one kernel, see `kernel`."""
        function = self._module.get_function(name, query_imports=True)
        ready = [self._device.put(b) if isinstance(b, np.ndarray) else b for b in buffers]

        def call() -> None:
            function(*ready)
            np.copyto(buffers[-1], self._device.pull(ready[-1]))

        return call

    def _machine(self) -> _CudaMachine:
        """The calling thread's virtual machine; one must not be shared."""
        machine: _CudaMachine | None = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = _CudaMachine(self._module, self._device.index)
        return machine


def _load_sidecar() -> None:
    """Load the part of TVM's runtime that calls CUDA's. Raises TargetError when it or what it needs is absent."""
    path = runtime_path().with_name(SIDECAR)
    cuda_driver.load_runtime_library()
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise TargetError(f"running a CUDA library needs {path}, which does not load: {error}") from error
