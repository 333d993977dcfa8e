"""Whether this machine has a GPU that CUDA libraries run on: NVIDIA's driver is asked."""

import contextlib
import ctypes
import json
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from ptqc.errors import GpuMemoryError, InternalError, TargetError, UsageError
from ptqc.runtime.interface import Interface
from ptqc.runtime.library import ALIGNMENT
from ptqc.utils import sandbox

DRIVER, RUNTIME = "libcuda.so.1", "libcudart.so.13"
INSTALL = "pip install 'ptqc[cuda]'"
# What the libraries are built for: the version of CUDA that the driver has to know, and the oldest chips.
NEEDED_VERSION, NEEDED_CAPABILITY = (13, 0), (8, 0)
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
OUT_OF_MEMORY = re.compile("out of memory|OUT_OF_MEMORY|MemoryAllocation")
NO_CODE = re.compile("NO_BINARY_FOR_GPU|UNSUPPORTED_PTX_VERSION|INVALID_PTX|JIT_COMPILER_NOT_FOUND|no kernel image")
MOST_LETTERS = 256  # of a GPU's name
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


@dataclass(frozen=True)
class DriverInfo:
    """What the driver tells. version: of CUDA that it knows. capabilities, names: of the GPUs.

    is_emulator: it is a stand-in.
    """

    version: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]
    is_emulator: bool = False
    names: tuple[str, ...] = ()


class Ask(Protocol):
    """Asks the driver."""

    def __call__(self) -> DriverInfo:
        """Raises TargetError where there is none."""


def check(index: int, ask: Ask | None = None) -> None:
    """Raises TargetError where the GPU of this number cannot run CUDA libraries."""
    driver = (ask or asked)()
    if driver.is_emulator:
        raise TargetError(f"{DRIVER} is ptqc's emulator, which only verifies; take it out of the library path")
    if driver.version < NEEDED_VERSION:
        raise TargetError(
            f"the driver knows CUDA {_dotted(driver.version)}, and the library needs {_dotted(NEEDED_VERSION)}: "
            "install a newer driver, or run model.onnx"
        )
    if not 0 <= index < len(driver.capabilities):
        raise TargetError(f"there is no GPU cuda:{index}; this machine has {len(driver.capabilities)}")
    if driver.capabilities[index] < NEEDED_CAPABILITY:
        raise TargetError(
            f"cuda:{index} has compute capability {_dotted(driver.capabilities[index])}, and the library needs "
            f"{_dotted(NEEDED_CAPABILITY)} or more; run model.onnx"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def asked() -> DriverInfo:
    """What NVIDIA's driver tells, which from now on is loaded. Raises TargetError where there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise TargetError(
            f"a CUDA library needs a GPU with NVIDIA's driver, and {DRIVER} does not load ({error}); run model.onnx"
        ) from error
    if hasattr(driver, "ptqc_is_emulator"):
        return DriverInfo(NEEDED_VERSION, (), is_emulator=True)
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    if code := driver.cuInit(0):
        if code != NO_DEVICE:
            raise _failed("cuInit", code)
    else:
        _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    gpus = range(count.value)
    capabilities = tuple((_attribute(driver, MAJOR, i), _attribute(driver, MINOR, i)) for i in gpus)
    named = tuple(_name(driver, i) for i in gpus)
    return DriverInfo((version.value // 1000, version.value % 1000 // 10), capabilities, names=named)


def _attribute(driver: Any, which: int, index: int) -> int:
    value = ctypes.c_int()
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), which, index)
    return value.value


def _name(driver: Any, index: int) -> str:
    room = ctypes.create_string_buffer(MOST_LETTERS)
    _call(driver, "cuDeviceGetName", room, MOST_LETTERS, index)
    return room.value.decode(errors="replace")


def _call(driver: Any, name: str, *arguments: Any) -> None:
    if code := getattr(driver, name)(*arguments):
        raise _failed(name, code)


def _failed(name: str, code: int) -> TargetError:
    return TargetError(f"NVIDIA's driver answers {name} with error {code}; run model.onnx")


def refusal_of(error: BaseException, index: int, what: str = "the library") -> TargetError | None:
    """What to tell of a failure of TVM or the driver that has a reason of its own; None of any other."""
    if OUT_OF_MEMORY.search(str(error)):
        return GpuMemoryError(
            f"cuda:{index} has no memory left for {what}: give fewer samples at a time, or end what else is using it"
        )
    if NO_CODE.search(str(error)):
        return TargetError(
            f"the library has no machine code for cuda:{index}, and the driver does not translate its PTX: name its "
            "architecture in --gpu and compile again, or run model.onnx"
        )
    return None


def load_runtime_library() -> None:
    """Load CUDA's runtime, the system's or the one that pip installed. Raises TargetError where it is absent."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(RUNTIME, ctypes.RTLD_GLOBAL)
        return
    spec = find_spec("nvidia")
    for room in (spec and spec.submodule_search_locations) or ():
        path = Path(room) / "cu13" / "lib" / RUNTIME
        if path.is_file():
            try:
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise TargetError(f"running a CUDA library needs {path}, which does not load: {error}") from error
            return
    raise TargetError(f"running a CUDA library needs {RUNTIME}, which is not here: {INSTALL}")


# The GPU of this machine, asked for in a process of its own: the driver stays loaded in whichever process asks it.
#
# `python -m ptqc.runtime.cuda` prints what there is, as JSON. Where the system has no device of NVIDIA's, no
# process is started.

# Of NVIDIA's driver on Linux, and of Windows' on Linux in Windows.
NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
VERSION = Path("/sys/module/nvidia/version")
# A driver that wakes several GPUs takes seconds.
PATIENCE = 60.0
# That the driver sets aside for the memory of all GPUs; of this machine's memory it takes none for them.
ADDRESSES = 1 << 47


@dataclass(frozen=True)
class CudaDevice:
    """The first GPU, cuda:0. driver: its version. is_emulator: it is none, but the emulator; never so where `find`
    found it."""

    name: str
    capability: tuple[int, int]
    driver: str
    is_emulator: bool = False

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        major, minor = document["capability"]
        is_emulator = bool(document.get("is_emulator"))
        return cls(str(document["name"]), (int(major), int(minor)), str(document["driver"]), is_emulator)

    def to_json(self) -> dict[str, Any]:
        """The document for jobs and artifacts."""
        return asdict(self) | {"capability": list(self.capability)}


def find() -> CudaDevice:
    """The GPU that CUDA libraries run on here. Raises TargetError, with the reason, where there is none."""
    if not any(node.exists() for node in NODES):
        raise TargetError("this machine has no GPU of NVIDIA, or no driver for it")
    done = sandbox.run(__name__, [], PATIENCE, ADDRESSES)
    if done.problem:
        raise TargetError(f"the process that asked NVIDIA's driver {done.problem}")
    result = json.loads(done.said)
    if "refused" in result:
        raise TargetError(result["refused"])
    return CudaDevice.from_json(result)


def _asked() -> dict[str, Any]:
    """What the driver tells of the first GPU, or why it cannot be used."""
    try:
        result = asked()
        check(0, lambda: result)
    except TargetError as error:
        return {"refused": str(error)}
    known = VERSION.read_text().strip() if VERSION.is_file() else ""
    return CudaDevice(result.names[0], result.capabilities[0], known or ".".join(map(str, result.version))).to_json()


if __name__ == "__main__":
    print(json.dumps(_asked()))


# CUDA graphs: what a run asks of a stream, kept and asked for again as a whole, without Python and TVM in between.

Held = TypeVar("Held")
# cudaStreamCaptureModeRelaxed: memory may be allocated meanwhile. cudaStreamNonBlocking: waits for no other stream.
RELAXED, NON_BLOCKING = 2, 1


class CapturedRun(Generic[Held]):
    """What a function asks of the current stream. held: what it returned: the memory that it wrote to.

    The memory that it read, and worked in, has to stay as long as this is launched.
    """

    def __init__(self, index: int, on_stream: Callable[[int], Held]) -> None:
        self._runtime = CudaRuntime(index)
        stream = self._runtime.create("cudaStreamCreateWithFlags", NON_BLOCKING)
        try:
            self._runtime.call("cudaStreamBeginCapture", stream, RELAXED)
            try:
                self.held = on_stream(stream.value or 0)
            finally:  # a capture that is left open would fail whatever comes
                graph = ctypes.c_void_p()
                self._runtime.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        finally:
            self._runtime.call("cudaStreamDestroy", stream)
        self._graph = self._runtime.create("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
        self._runtime.call("cudaGraphDestroy", graph)
        weakref.finalize(self, self._runtime.call, "cudaGraphExecDestroy", self._graph).atexit = False

    def launch(self, stream: int) -> Held:
        """Ask for all of it again; what will be in `held` once the stream gets there."""
        self._runtime.call("cudaGraphLaunch", self._graph, ctypes.c_void_p(stream))
        return self.held


class CudaRuntime:
    """Functions of CUDA's runtime, which is loaded already, for one GPU."""

    def __init__(self, index: int) -> None:
        """Raises InternalError where the GPU cannot be used."""
        self._library = ctypes.CDLL(RUNTIME)
        self.call("cudaSetDevice", index)

    def call(self, name: str, *arguments: Any) -> None:
        """Raises InternalError where a function does not succeed."""
        if code := getattr(self._library, name)(*arguments):
            self._library.cudaGetErrorString.restype = ctypes.c_char_p
            result = self._library.cudaGetErrorString(code).decode()
            raise InternalError(f"{name} failed: {result}")

    def create(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that writes a handle to its first argument."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle


def key(batch: int, tensors: Sequence[Any]) -> tuple[int, ...]:
    """What a captured run is of: its reads have addresses in them."""
    return batch, *(int(tensor.data_ptr()) for tensor in tensors)


# How long a GPU takes for what is asked of it: launches in a CUDA graph, between two events.

MICROSECONDS = 1e3  # events tell milliseconds
# The stream that everything is on unless said otherwise.
USUAL = 0
# A graph takes about so long, in microseconds, so that its own launch does not count, or has so many launches.
ENOUGH, MOST = 400.0, 20


class GpuClock:
    """Times what is asked of one GPU, whose runtime is loaded."""

    def __init__(self, index: int) -> None:
        self._index, self._runtime = index, CudaRuntime(index)
        self._events = [self._runtime.create("cudaEventCreate") for _ in range(2)]
        for event in self._events:
            weakref.finalize(self, self._runtime.call, "cudaEventDestroy", event).atexit = False

    def microseconds(self, ask: Callable[[], object]) -> float:
        """From the begin to the end of what is asked of the usual stream."""
        begin, end = self._events
        self._runtime.call("cudaEventRecord", begin, ctypes.c_void_p(USUAL))
        ask()
        self._runtime.call("cudaEventRecord", end, ctypes.c_void_p(USUAL))
        self._runtime.call("cudaEventSynchronize", end)
        result = ctypes.c_float()
        self._runtime.call("cudaEventElapsedTime", ctypes.byref(result), begin, end)
        return MICROSECONDS * result.value

    def repeated(self, launch: Callable[[int], object], times: int) -> Callable[[], float]:
        """Tells the microseconds of one of so many launches in a row, as often as it is called.

        launch: asks a stream; has been called before.
        """

        def launches(stream: int) -> None:
            for _ in range(times):
                launch(stream)

        captured = CapturedRun(self._index, launches)
        return lambda: self.microseconds(lambda: captured.launch(USUAL)) / times


def launches(microseconds: float) -> int:
    """How many of so long a launch make a graph that is long enough."""
    return max(1, min(MOST, round(ENOUGH / max(microseconds, 1e-3))))


# Tensors of other libraries on a GPU, taken and given by DLPack without a copy.

GPU = 2  # kDLCUDA


@dataclass(frozen=True)
class GpuFeeds:
    """Inputs as TVM has them. stream: that they come on. give: makes an output what the caller's library has."""

    inputs: Mapping[str, Any]
    stream: int
    give: Callable[[Any], Any]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name."""
        return {name: tuple(tensor.shape) for name, tensor in self.inputs.items()}


def are_on_gpu(feeds: Mapping[str, Any]) -> bool:
    """Whether inputs are on a GPU. Raises UsageError where only some are."""
    result = {name: _is_on_gpu(value) for name, value in feeds.items()}
    if len(set(result.values())) > 1:
        where = ", ".join(f"{name!r} is {'on a GPU' if is_there else 'not'}" for name, is_there in result.items())
        raise UsageError(f"inputs have to be on the GPU all or none: {where}")
    return any(result.values())


def _is_on_gpu(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] == GPU


def take(ffi: Any, feeds: Mapping[str, Any], interface: Interface, index: int) -> GpuFeeds:
    """Inputs where they lie. Raises UsageError for what the interface does not take, or TVM cannot read there."""
    inputs = {}
    for value in interface.inputs:
        result = feeds[value.name]
        tensor = _imported(ffi, value.name, result)
        if result.__dlpack_device__()[1] != index:
            raise UsageError(
                f"input {value.name!r} is on cuda:{result.__dlpack_device__()[1]}; the library on cuda:{index}"
            )
        value.check_kind(np.dtype(str(tensor.dtype)), tuple(tensor.shape))
        if value.value is not None:
            raise UsageError(f"the library was built for one value of input {value.name!r}: give NumPy arrays")
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            raise UsageError(
                f"input {value.name!r} is not contiguous, or does not begin at a multiple of {ALIGNMENT} bytes; "
                "give a copy of it"
            )
        inputs[value.name] = tensor
    torch = sys.modules.get("torch") if any(map(_is_of_torch, feeds.values())) else None
    if torch is None:
        return GpuFeeds(inputs, 0, lambda tensor: tensor)
    return GpuFeeds(inputs, int(torch.cuda.current_stream(index).cuda_stream), torch.from_dlpack)


def _imported(ffi: Any, name: str, value: Any) -> Any:
    try:
        return ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"input {name!r} cannot be taken by DLPack: {error}") from error


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"
