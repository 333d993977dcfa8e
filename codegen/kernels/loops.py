"""Loops over samples and their parts: in turns on the threads of a processor, unless a target has its own way."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.program.layout import Layout

# A loop with less than about 4 µs of work gains nothing from a second thread, whose inputs lie in the other one's
# cache. The unit is an element that is moved; so many products of bytes take as long.
PARALLEL_WORK, PRODUCTS = 50_000, 16
# Of a parallel loop, in order and of equal size: what `threads.cpp` hands out, and cannot cut any finer.
SLICES = 128


class Loops(Protocol):
    """How a target runs the loops of the families, and where it keeps what is in registers."""

    def rows(self, batch: Any, count: int, work: int) -> AbstractContextManager[tuple[Any, Any]]:
        """See `rows`."""

    def elements(self, batch: Any, layout: Layout) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """See `elements`."""

    def registers(self, size: int, dtype: str) -> Any:
        """See `registers`."""


def rows(batch: Any, count: int, work: int) -> AbstractContextManager[tuple[Any, Any]]:
    """A loop over (sample, 0 … count − 1), in parallel when one sample is `work` operations worth it."""
    return _LOOPS.get().rows(batch, count, work)


def elements(batch: Any, layout: Layout) -> AbstractContextManager[tuple[Any, list[Any]]]:
    """Loops over (sample, indices) of every element, in the order in memory."""
    return _LOOPS.get().elements(batch, layout)


def registers(size: int, dtype: str) -> Any:
    """A buffer that lives in registers, asked for inside of loops."""
    return _LOOPS.get().registers(size, dtype)


@contextmanager
def written_with(loops: Loops) -> Iterator[None]:
    """Kernels that are written meanwhile have these loops."""
    token = _LOOPS.set(loops)
    try:
        yield
    finally:
        _LOOPS.reset(token)


class ProcessorLoops:
    """Loops for LLVM."""

    @contextmanager
    def rows(self, batch: Any, count: int, work: int) -> Iterator[tuple[Any, Any]]:
        """One loop over both."""
        total = batch * T.int64(count)
        with _sliced(total) if work >= PARALLEL_WORK and count > 1 else T.serial(total) as index:
            sample = T.Bind(index // T.int64(count))
            yield sample, T.Bind(T.Cast("int32", index % T.int64(count)))

    @contextmanager
    def elements(self, batch: Any, layout: Layout) -> Iterator[tuple[Any, list[Any]]]:
        """A loop for each axis; no index is found by division."""
        slowest, *inner = layout.order or (None,)
        place: list[Any] = [0] * len(layout.shape)
        with ExitStack() as loops:
            count = 1 if slowest is None else layout.shape[slowest]
            sample, row = loops.enter_context(self.rows(batch, count, layout.elements))
            if slowest is not None:
                place[slowest] = row
            for axis in inner:
                place[axis] = loops.enter_context(T.serial(layout.shape[axis]))
            yield sample, place

    def registers(self, size: int, dtype: str) -> Any:
        """TVM keeps a small buffer of scope "global" on the stack, where LLVM promotes it to registers.

        One of scope "local" would come from the heap, and be written back.
        """
        return T.alloc_buffer((size,), dtype, scope="global")


@contextmanager
def _sliced(total: Any) -> Iterator[Any]:
    """A parallel loop over 0 … total − 1."""
    count = T.int64(SLICES)
    with T.parallel(T.int64(0), count) as part, T.serial(part * total // count, (part + 1) * total // count) as index:
        yield index


_LOOPS: ContextVar[Loops] = ContextVar("loops", default=ProcessorLoops())  # noqa: B039
