"""How long a GPU takes for what is asked of it: launches in a CUDA graph, between two events."""

import ctypes
import weakref
from collections.abc import Callable

from ptqc.runtime.cuda_graph import CapturedRun, CudaRuntime

MICROSECONDS = 1e3  # events tell milliseconds
# The stream that everything is on unless said otherwise.
USUAL = 0
# A graph takes about so long, in microseconds, so that its own launch does not count, or has so many launches.
ENOUGH, MOST = 400.0, 20


class GpuClock:
    """Times what is asked of one GPU, whose runtime is loaded."""

    def __init__(self, index: int) -> None:
        self._index, self._runtime = index, CudaRuntime(index)
        self._events = [self._runtime.made("cudaEventCreate") for _ in range(2)]
        for event in self._events:
            weakref.finalize(self, self._runtime.call, "cudaEventDestroy", event).atexit = False

    def microseconds(self, ask: Callable[[], object]) -> float:
        """From the begin to the end of what is asked of the usual stream."""
        begin, end = self._events
        self._runtime.call("cudaEventRecord", begin, ctypes.c_void_p(USUAL))
        ask()
        self._runtime.call("cudaEventRecord", end, ctypes.c_void_p(USUAL))
        self._runtime.call("cudaEventSynchronize", end)
        found = ctypes.c_float()
        self._runtime.call("cudaEventElapsedTime", ctypes.byref(found), begin, end)
        return MICROSECONDS * found.value

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
