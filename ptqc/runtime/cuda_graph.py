"""CUDA graphs: what a run asks of a stream, kept and asked for again as a whole, without Python and TVM in between."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ptqc.errors import InternalError
from ptqc.runtime.cuda_driver import RUNTIME

Held = TypeVar("Held")
# cudaStreamCaptureModeRelaxed: memory may be allocated meanwhile. cudaStreamNonBlocking: waits for no other stream.
RELAXED, NON_BLOCKING = 2, 1


class CapturedRun(Generic[Held]):
    """What a function asks of the current stream. held: what it returned: the memory that it wrote to.

    The memory that it read, and worked in, has to stay as long as this is launched.
    """

    def __init__(self, index: int, on_stream: Callable[[int], Held]) -> None:
        self._runtime = CudaRuntime(index)
        stream = self._runtime.made("cudaStreamCreateWithFlags", NON_BLOCKING)
        try:
            self._runtime.call("cudaStreamBeginCapture", stream, RELAXED)
            try:
                self.held = on_stream(stream.value or 0)
            finally:  # a capture that is left open would fail whatever comes
                graph = ctypes.c_void_p()
                self._runtime.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        finally:
            self._runtime.call("cudaStreamDestroy", stream)
        self._graph = self._runtime.made("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
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
            told = self._library.cudaGetErrorString(code).decode()
            raise InternalError(f"{name} failed: {told}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function writes to its first argument."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found


def key(batch: int, tensors: Sequence[Any]) -> tuple[int, ...]:
    """What a captured run is of: its reads have addresses in them."""
    return batch, *(int(tensor.data_ptr()) for tensor in tensors)
