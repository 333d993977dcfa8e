"""Running a native CPU library (`cpu/avx2.so` and the like): the best for this machine, one handle for all threads.

Needs numpy, tvm_ffi and libtvm_runtime.so only: importing `tvm` would load a compiler of 259 MB.
"""

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np

from ptqc.errors import InternalError, TargetError, UsageError
from ptqc.parallel import processors

INTERFACE, KERNELS, WEIGHTS = "interface.json", "kernels.json", "weights.bin"
RUNTIME, RUNTIME_VARIABLE = "libtvm_runtime.so", "PTQC_TVM_RUNTIME"
PACKAGE, INSTALL = "apache-tvm", "pip install 'ptqc[tvm]'"
# What TVM's kernels assume of every pointer, in bytes; less makes aligned vector moves fault.
ALIGNMENT = 64
# How the Relax virtual machine is told of its device and of an allocator that keeps nothing: a run only makes outputs.
CPU, DEVICE_INDEX, NAIVE = 1, 0, 1
# arch_prctl(2): a process asks the system once before it may use the tile registers of AMX.
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Value:
    """One input or output; None in the shape is the batch size, the same one everywhere in a call.

    value: what an input has to be, where the library was built for that only.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    value: Any = None

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('N' if size is None else str(size) for size in self.shape)}]"

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape is one of these, whatever its batch size."""
        return len(shape) == len(self.shape) and all(
            expected in (None, size) for size, expected in zip(shape, self.shape, strict=True)
        )

    def batches(self, shape: Sequence[int]) -> set[int]:
        """The batch sizes that a fitting shape stands for: none or one, unless it contradicts itself."""
        return {size for size, expected in zip(shape, self.shape, strict=True) if expected is None}


@dataclass(frozen=True)
class Build:
    """One library of an artifact: its instruction set, and what that needs, by the system's names."""

    isa: str
    machine: str
    features: tuple[str, ...]

    def refusal(self) -> str | None:
        """Why its instructions would kill the process on this machine, if they would."""
        system, here = platform.system(), machine()
        if (system, here) != ("Linux", self.machine):
            return f"the native library is for Linux on {self.machine}, this is {system} on {here}"
        missing = sorted(set(self.features) - processor_features())
        if missing:
            return f"the native library is for {self.isa}, this processor has no {', '.join(missing)}"
        return _refused_tiles() if "amx_tile" in self.features else None


@dataclass(frozen=True)
class Interface:
    """What goes in and out of a network, and its libraries, the best first.

    tvm: the version they were built with. threads: 0 means all processors.
    """

    libraries: tuple[Build, ...]
    tvm: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    threads: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read interface.json. Raises TargetError when it is missing or not one."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                libraries=tuple(
                    Build(str(entry["isa"]), str(entry["machine"]), tuple(entry["features"]))
                    for entry in document["libraries"]
                ),
                tvm=str(document["tvm"]),
                inputs=_values(document["inputs"]),
                outputs=_values(document["outputs"]),
                threads=int(document["threads"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(f"{path} does not describe a native library: {type(error).__name__}: {error}") from error

    @property
    def runnable(self) -> list[str]:
        """Instruction sets of the libraries that this machine can run."""
        return [build.isa for build in self.libraries if build.refusal() is None]

    def choose(self, cpu: str = "") -> Build:
        """The best library that this machine can run, or the one of an instruction set. Raises TargetError."""
        builds = [build for build in self.libraries if cpu in ("", build.isa)]
        if not builds:
            there = ", ".join(build.isa for build in self.libraries)
            raise TargetError(f"there is no native library for {cpu!r}; there are: {there or 'none'}")
        refusals = [build.refusal() for build in builds]
        if None not in refusals:
            told = "; ".join(filter(None, refusals))
            raise TargetError(f"{told}; compile for an instruction set that this machine has, or run model.onnx")
        return builds[refusals.index(None)]

    def check_runtime(self) -> None:
        """Refuse another version of TVM, whose interfaces change with every release. Raises TargetError.

        Whoever names a runtime in the environment answers for its version, which the file does not tell.
        """
        if os.environ.get(RUNTIME_VARIABLE):
            return
        with contextlib.suppress(metadata.PackageNotFoundError):  # told where the runtime is looked for
            found = metadata.version(PACKAGE)
            if found != self.tvm:
                raise TargetError(
                    f"the native library was built with {PACKAGE} {self.tvm}, and {found} is installed: "
                    f"pip install {PACKAGE}=={self.tvm}, or compile again"
                )


def library_file(isa: str) -> str:
    """The name of the library for an instruction set."""
    return f"{isa}.so"


def machine() -> str:
    """The kind of this machine, by the name that Linux gives it."""
    found = platform.machine().lower()
    return MACHINES.get(found, found)


def _values(entries: Sequence[Mapping[str, Any]]) -> tuple[Value, ...]:
    return tuple(
        Value(entry["name"], np.dtype(entry["dtype"]), tuple(entry["shape"]), entry.get("value")) for entry in entries
    )


@cache
def processor_features() -> frozenset[str]:
    """Instruction sets that every processor has and that the system supports, by the system's names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TargetError(f"cannot tell what this processor can do: {error}") from error
    named = [line.partition(":") for line in lines]
    sets = [frozenset(value.split()) for name, _, value in named if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*sets) if sets else frozenset()


@cache
def _refused_tiles() -> str | None:
    """Ask the system for the AMX tile registers: without its permission their first use kills the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))) == 0:
        return None
    return f"the system does not let this process use AMX: {os.strerror(ctypes.get_errno())}"


class _Hidden(MetaPathFinder):
    """Makes one module look absent to the thread that made this finder."""

    def __init__(self, name: str) -> None:
        self.name, self.thread = name, threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Refuse the module here and now; leave everything else to the other finders."""
        del path, target
        if name == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _import_ffi() -> Any:
    """The module tvm_ffi. Its import would load torch where that is installed, for seconds and without need."""
    hidden = _Hidden("torch")
    sys.meta_path.insert(0, hidden)
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise TargetError(f"running a native library needs tvm_ffi ({error}): {INSTALL}") from error
    finally:
        sys.meta_path.remove(hidden)


def _runtime_path() -> Path:
    """Where libtvm_runtime.so is: as the environment says, or inside the installed package, which stays unimported."""
    if named := os.environ.get(RUNTIME_VARIABLE):
        found = [Path(named)]
    else:
        spec = importlib.util.find_spec("tvm")
        found = [Path(folder) / "lib" / RUNTIME for folder in (spec and spec.submodule_search_locations) or ()]
    for path in found:
        if path.is_file():
            return path.resolve()
    looked = f"{found[0]} does not exist" if found else "the package apache-tvm is not installed"
    raise TargetError(
        f"running a native library needs TVM's runtime, and {looked}: {INSTALL}, or set {RUNTIME_VARIABLE} "
        f"to the path of {RUNTIME}"
    )


_LOADING = threading.Lock()
# By SHA-256. TVM keeps what it loads for as long as the process lives, and more of it each time that it loads it again.
_MODULES: dict[str, Any] = {}


@cache
def _load_runtime() -> Any:
    """Load TVM's runtime once; the module tvm_ffi. Raises TargetError when it is absent or of another version."""
    path = _runtime_path()
    ffi = _import_ffi()
    try:
        # The generated code finds its backend functions through this library, which must come first.
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise TargetError(f"{path} is not a TVM runtime that fits this version of ptqc ({error}): {INSTALL}") from error
    return ffi


def _load_module(ffi: Any, path: Path) -> Any:
    """The library in a file, loaded once however often it is opened."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with _LOADING:
        if digest not in _MODULES:
            _MODULES[digest] = ffi.load_module(str(path))
        return _MODULES[digest]


class _Machine:
    """One virtual machine of the library's program, with the memory that a run works in."""

    def __init__(self, module: Any) -> None:
        self.virtual = module["vm_load_executable"]()
        self.virtual["vm_initialization"](CPU, DEVICE_INDEX, NAIVE)
        self._main, self._make_workspace = self.virtual["main"], self.virtual["workspace"]
        self._workspace, self._batch = None, 0

    def run(self, batch: int, inputs: Sequence[Any], constants: Any) -> Sequence[Any]:
        """Outputs. The workspace of the largest batch so far serves all."""
        if batch > self._batch:
            self._workspace = None  # frees the old one first
            self._workspace, self._batch = self._make_workspace(*inputs), batch
        found: Sequence[Any] = self._main(*inputs, constants, self._workspace)
        return found


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
    def open(cls, folder: Path, threads: int = 0, cpu: str = "") -> Self:
        """Open the best library of a folder, which holds interface.json and weights.bin too, and unpack its constants.

        threads: per calling thread; 0 leaves it to interface.json, whose 0 means every processor the process may use.
        cpu: the instruction set, in place of the best one. Raises TargetError when the library cannot run here, before
        any of its code is loaded.
        """
        if threads < 0:
            raise UsageError(f"threads = {threads}; expected a positive number, or 0 for all processors")
        folder = Path(folder).resolve()
        interface = Interface.read(folder / INTERFACE)
        isa = interface.choose(cpu).isa
        interface.check_runtime()
        path = _readable(folder / library_file(isa))
        weights = np.memmap(_readable(folder / WEIGHTS), np.uint8, mode="c")
        with _LOADING:
            ffi = _load_runtime()
        try:
            module = _load_module(ffi, path)
            count = min(threads or interface.threads or processors(), processors())
            return cls(interface, isa, ffi, module, weights, count)
        except (RuntimeError, AttributeError, OSError, ValueError) as error:
            raise TargetError(f"{path} is not a native library that runs here: {error}") from error

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, owned by the caller. Inputs may have any alignment and strides; a batch may be empty.

        Raises UsageError when a name, dtype or shape is not what the interface says.
        """
        batch = self._check(feeds)
        if batch == 0:
            return {value.name: np.empty(_with_batch(value.shape, 0), value.dtype) for value in self.interface.outputs}
        machine, convert = self._machine(), self._ffi.from_dlpack
        inputs = [convert(aligned(np.asarray(feeds[value.name]))) for value in self.interface.inputs]
        try:
            found = machine.run(batch or 1, inputs, self.constants)
        except Exception as error:
            raise InternalError(f"the native library failed: {error}") from error
        # Copies: an output may be memory that the allocator, a constant or an input owns.
        outputs = zip(self.interface.outputs, found, strict=True)
        return {value.name: np.array(np.from_dlpack(array)) for value, array in outputs}

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

    def _check(self, feeds: Mapping[str, np.ndarray]) -> int | None:
        """The batch size of inputs that fit the interface; None when it has none."""
        expected = [value.name for value in self.interface.inputs]
        if set(feeds) != set(expected):
            raise UsageError(f"inputs {', '.join(map(repr, feeds)) or 'none'} were given; the model takes {expected}")
        batches: set[int] = set()
        for value in self.interface.inputs:
            _check_input(value, feeds[value.name])
            batches |= value.batches(feeds[value.name].shape)
        if len(batches) > 1:
            raise UsageError(f"the inputs have batch sizes {sorted(batches)}; expected the same one")
        return next(iter(batches), None)


def _readable(path: Path) -> Path:
    if not (path.is_file() and os.access(path, os.R_OK)):
        raise TargetError(f"{path} is missing or cannot be read; compile again")
    return path


def _check_input(value: Value, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise UsageError(f"input {value.name!r} is a {type(array).__name__}; expected a numpy array, {value}")
    if array.dtype != value.dtype or not value.fits(array.shape):
        raise UsageError(f"input {value.name!r} is {array.dtype} {list(array.shape)}; expected {value}")
    if value.value is not None and not np.array_equal(array, value.value):
        raise UsageError(f"input {value.name!r} is {array.tolist()}; the library was built for {value.value}")


def _with_batch(shape: Sequence[int | None], batch: int) -> tuple[int, ...]:
    return tuple(batch if size is None else size for size in shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """The array where it lies when TVM can read it there, or else a copy in contiguous memory aligned to 64 bytes."""
    if array.flags.carray and array.ctypes.data % ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
