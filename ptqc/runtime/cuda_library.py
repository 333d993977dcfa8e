"""A CUDA library (`cuda/cuda.so`) at work on one GPU, or on the emulator that stands in for one."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.errors import InternalError, TargetError
from ptqc.runtime import cuda
from ptqc.runtime.cuda import CapturedRun, GpuFeeds, are_on_gpu, key, take
from ptqc.runtime.interface import INTERFACE, WEIGHTS, Interface, library_file
from ptqc.runtime.library import aligned, readable
from ptqc.runtime.runtime import LOADING, check_version, load_module, load_runtime, runtime_path

NAME, SIDECAR = "cuda", "libtvm_runtime_cuda.so"
# How the Relax virtual machine is told of its devices, and of allocators that keep memory or do not.
CUDA, CPU, POOLED, NAIVE = 2, 1, 2, 1


# Captured runs that a thread keeps of one stream.
MOST_GRAPHS = 8


class _Device:
    """Memory of a GPU, copied from and to arrays."""

    def __init__(self, ffi: Any, index: int) -> None:
        self.ffi, self.index = ffi, index
        self._device = ffi.device("cuda", index)
        self._allocate = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._copy = ffi.get_global_func("runtime.TVMTensorCopyFromTo")
        self._synchronize = ffi.get_global_func("runtime.Device_StreamSync")
        self._clear = ffi.get_global_func("vm.builtin.memory_manager.clear")

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Memory on the GPU."""
        return self._allocate(self.ffi.Shape(tuple(shape)), self.ffi.dtype(dtype), self._device, None)

    def put(self, array: np.ndarray, value: Any = None) -> Any:
        """A copy on the GPU. value: where to."""
        value = self.empty(array.shape, str(array.dtype)) if value is None else value
        self._copy(self.ffi.from_dlpack(aligned(array)), value)
        self.wait()
        return value

    def pull(self, tensor: Any) -> np.ndarray:
        """A copy on the host."""
        pull = aligned(np.empty(tuple(tensor.shape), str(tensor.dtype)))
        self._copy(tensor, self.ffi.from_dlpack(pull))
        self.wait()
        return pull

    def wait(self) -> None:
        """For all that was asked of the stream that everything is on unless said otherwise."""
        self._synchronize(self._device, 0)

    def on(self, stream: int) -> Any:
        """A context in which everything is asked of a stream."""
        return self.ffi.use_raw_stream(self._device, stream)

    def release(self) -> None:
        """Give back what TVM keeps of memory that is not used."""
        self.wait()
        self._clear()


class _CudaMachine:
    """One virtual machine of the library's program on one stream, with the memory that a run works in."""

    def __init__(self, module: Any, device: _Device, stream: int) -> None:
        self.virtual, self._device, self._stream = module["vm_load_executable"](), device, stream
        self.virtual["vm_initialization"](CUDA, device.index, POOLED, CPU, 0, NAIVE)
        self._workspace, self._batch = None, 0
        self._graphs: dict[tuple[int, ...], CapturedRun[Sequence[Any]]] = {}
        self._rooms: dict[int, list[Any]] = {}

    def run(self, batch: int, inputs: Sequence[Any], constants: Any) -> Sequence[Any]:
        """Outputs on the GPU. The workspace of the largest batch so far serves all."""
        with self._device.on(self._stream):
            if batch > self._batch:
                self._workspace, self._batch = None, 0  # frees the old one first
                self._graphs.clear()
                self._workspace, self._batch = self.virtual["workspace"](*inputs), batch
            result: Sequence[Any] = self.virtual["main"](*inputs, constants, self._workspace)
        return result

    def replay(self, batch: int, inputs: Sequence[Any], constants: Any) -> Sequence[Any]:
        """The same by a CUDA graph of a run on these addresses; its outputs are overwritten by its next run."""
        wanted = key(batch, inputs)
        if wanted not in self._graphs:
            self.run(batch, inputs, constants)  # loads the kernels, and leaves memory for the outputs behind
            if len(self._graphs) == MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]

            def captured(stream: int) -> Sequence[Any]:
                with self._device.on(stream):
                    outputs: Sequence[Any] = self.virtual["main"](*inputs, constants, self._workspace)
                return outputs

            self._graphs[wanted] = CapturedRun(self._device.index, captured)
        return self._graphs[wanted].launch(self._stream)

    def room(self, batch: int, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Copies on the GPU, at the same place for every batch of a size."""
        if batch not in self._rooms:
            self._rooms[batch] = [self._device.empty(array.shape, str(array.dtype)) for array in arrays]
        return [self._device.put(*pair) for pair in zip(arrays, self._rooms[batch], strict=True)]


class CudaLibrary:
    """A CUDA library, safe to share between threads: each gets its own virtual machine, all share the constants.

    Open with `CudaLibrary.open`. constants: of all kernels, in the order of their calls, unpacked on the GPU. graph:
    runs are captured as CUDA graphs, one for each size of batch and each place of the inputs.
    """

    def __init__(
        self, interface: Interface, ffi: Any, module: Any, weights: np.ndarray, index: int, *, graph: bool = False
    ) -> None:
        self.interface, self.graph = interface, graph
        self._module, self._local, self._device = module, threading.local(), _Device(ffi, index)
        self.constants = self._machine(0).virtual["prepare"](self._device.put(weights))
        self._device.release()  # what `prepare` worked in is as large as the constants

    @classmethod
    def open(cls, folder: Path, index: int = 0, *, graph: bool = False, emulated: bool = False) -> Self:
        """Open the library of a folder on a GPU, and unpack its constants there.

        index: of the GPU, as the driver counts them. graph: capture runs. emulated: on the emulator, whose stand-ins
        are loaded already. Raises TargetError when it cannot run here, before any of its code is loaded, and
        GpuMemoryError where the GPU has no room for it.
        """
        folder = Path(folder).resolve()
        interface = Interface.read(folder / INTERFACE)
        interface.choose(NAME)
        check_version(interface.tvm)
        path, weights = readable(folder / library_file(NAME)), np.fromfile(readable(folder / WEIGHTS), np.uint8)
        if not emulated:
            cuda.check(index)
        with LOADING:
            ffi = load_runtime(cuda.INSTALL)
            _load_sidecar()
        try:
            return cls(interface, ffi, load_module(ffi, path), weights, index, graph=graph)
        except (RuntimeError, AttributeError, OSError, ValueError, MemoryError) as error:
            if result := cuda.refusal_of(error, index):
                raise result from error
            raise TargetError(f"{path} is not a CUDA library that runs here: {error}") from error

    def run(self, feeds: Mapping[str, Any], stream: int | None = None) -> dict[str, Any]:
        """Outputs by name.

        Of NumPy arrays, with any alignment and strides, they are NumPy arrays owned by the caller. Of tensors on the
        GPU, of torch or of whatever else speaks DLPack, they are tensors there, which nothing waited for: their values
        come on `stream` (a handle; by default torch's current one, or 0), on which the inputs have to be made. With
        `graph` these are overwritten by the thread's next run on the same inputs. A batch may be empty.

        Raises UsageError when a name, dtype, shape or place is not what the interface says, and GpuMemoryError where
        the GPU has no room for so many samples.
        """
        self.interface.check_names(feeds)
        if are_on_gpu(feeds):
            return self._run_there(take(self._device.ffi, feeds, self.interface, self._device.index), stream)
        batch, _ = self.interface.check(feeds)
        if batch == 0:
            return self.interface.no_outputs()
        arrays = [np.asarray(feeds[value.name]) for value in self.interface.inputs]
        with self._failing(batch or 1):
            machine = self._machine(0)
            place = machine.room(batch or 1, arrays) if self.graph else list(map(self._device.put, arrays))
            outputs = [self._device.pull(tensor) for tensor in self._start(machine, batch or 1, place)]
        return self._named(outputs)

    def _run_there(self, gpu_feeds: GpuFeeds, stream: int | None) -> dict[str, Any]:
        batch = self.interface.batch(gpu_feeds.shapes)
        with self._failing(1 if batch is None else batch):
            if batch == 0:
                return self._named([gpu_feeds.give(self._device.put(a)) for a in self.interface.no_outputs().values()])
            machine = self._machine(gpu_feeds.stream if stream is None else stream)
            inputs = [gpu_feeds.inputs[value.name] for value in self.interface.inputs]
            result = self._start(machine, batch or 1, inputs)
            return self._named([gpu_feeds.give(tensor) for tensor in result])

    def _start(self, machine: _CudaMachine, batch: int, inputs: Sequence[Any]) -> Sequence[Any]:
        run = machine.replay if self.graph else machine.run
        return run(batch, inputs, self.constants)

    def _named(self, outputs: Sequence[Any]) -> dict[str, Any]:
        return {value.name: output for value, output in zip(self.interface.outputs, outputs, strict=True)}

    @contextmanager
    def _failing(self, samples: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            what = f"a run of {samples} samples"
            raise cuda.refusal_of(error, self._device.index, what) or InternalError(
                f"the CUDA library failed: {error}"
            ) from error

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

    def launcher(self, name: str, *tensors: Any) -> Callable[[int], object]:
        """What asks a stream for a kernel on memory of the GPU; see `kernel`."""
        function = self._module.get_function(name, query_imports=True)

        def launch(stream: int) -> None:
            with self._device.on(stream):
                function(*tensors)

        return launch

    def put(self, array: np.ndarray) -> Any:
        """A copy on the GPU."""
        return self._device.put(array)

    def pull(self, tensor: Any) -> np.ndarray:
        """A copy of what lies on the GPU, once all that was asked of the usual stream is done."""
        return self._device.pull(tensor)

    def _machine(self, stream: int) -> _CudaMachine:
        """The calling thread's virtual machine on a stream; one must not be shared."""
        machines: dict[int, _CudaMachine] = self._local.__dict__.setdefault("machines", {})
        if stream not in machines:
            machines[stream] = _CudaMachine(self._module, self._device, stream)
        return machines[stream]


def _load_sidecar() -> None:
    """Load the part of TVM's runtime that calls CUDA's. Raises TargetError when it or what it needs is absent."""
    path = runtime_path().with_name(SIDECAR)
    cuda.load_runtime_library()
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise TargetError(f"running a CUDA library needs {path}, which does not load: {error}") from error
