"""Whether this machine has a GPU that CUDA libraries run on: NVIDIA's driver is asked."""

import contextlib
import ctypes
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ptqc.errors import GpuMemoryError, TargetError

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
class Found:
    """What the driver tells. version: of CUDA that it knows. capabilities, names: of the GPUs.

    is_emulator: it is a stand-in.
    """

    version: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]
    is_emulator: bool = False
    names: tuple[str, ...] = ()


class Ask(Protocol):
    """Asks the driver."""

    def __call__(self) -> Found:
        """Raises TargetError where there is none."""


def check(index: int, ask: Ask | None = None) -> None:
    """Raises TargetError where the GPU of this number cannot run CUDA libraries."""
    found = (ask or asked)()
    if found.is_emulator:
        raise TargetError(f"{DRIVER} is ptqc's emulator, which only verifies; take it out of the library path")
    if found.version < NEEDED_VERSION:
        raise TargetError(
            f"the driver knows CUDA {_dotted(found.version)}, and the library needs {_dotted(NEEDED_VERSION)}: install "
            "a newer driver, or run model.onnx"
        )
    if not 0 <= index < len(found.capabilities):
        raise TargetError(f"there is no GPU cuda:{index}; this machine has {len(found.capabilities)}")
    if found.capabilities[index] < NEEDED_CAPABILITY:
        raise TargetError(
            f"cuda:{index} has compute capability {_dotted(found.capabilities[index])}, and the library needs "
            f"{_dotted(NEEDED_CAPABILITY)} or more; run model.onnx"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def asked() -> Found:
    """What NVIDIA's driver tells, which from now on is loaded. Raises TargetError where there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise TargetError(
            f"a CUDA library needs a GPU with NVIDIA's driver, and {DRIVER} does not load ({error}); run model.onnx"
        ) from error
    if hasattr(driver, "ptqc_is_emulator"):
        return Found(NEEDED_VERSION, (), is_emulator=True)
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
    return Found((version.value // 1000, version.value % 1000 // 10), capabilities, names=named)


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
