"""Loops over samples and their parts: in turns on the threads of a processor, unless a target has its own way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.kernel import expressed, in_int64
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import typical

# A loop with less than about 4 µs of work gains nothing from a second thread, whose inputs lie in the other one's
# cache. The unit is an element that is moved; so many products of bytes take as long.
PARALLEL_WORK, PRODUCTS = 50_000, 16
# Of a parallel loop, in order and of equal size: what `threads.cpp` hands out, and cannot cut any finer.
SLICES = 128


class Loops(Protocol):
    """How a target runs the loops of the families, and where it keeps what is in registers."""

    def nest(self, batch: Any, sizes: Sequence[Any], work: Any) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """See `nest`."""

    def each(self, sizes: Sequence[Any]) -> AbstractContextManager[list[Any]]:
        """See `each`."""

    def registers(self, size: int, dtype: str) -> Any:
        """See `registers`."""


def nest(batch: Any, sizes: Sequence[Any], work: Any) -> AbstractContextManager[tuple[Any, list[Any]]]:
    """Loops over (sample, indices within sizes), whose turns know nothing of each other.

    work: operations of one sample; where that is much, it is shared.
    """
    return _LOOPS.get().nest(batch, sizes, work)


@contextmanager
def rows(batch: Any, count: Any, work: Any) -> Iterator[tuple[Any, Any]]:
    """A loop over (sample, 0 … count − 1); see `nest`."""
    with nest(batch, (count,), work) as (sample, (row,)):
        yield sample, row


@contextmanager
def elements(batch: Any, layout: Layout) -> Iterator[tuple[Any, list[Any]]]:
    """Loops over (sample, indices) of every element, in the order in memory."""
    place: list[Any] = [0] * len(layout.shape)
    with nest(batch, [layout.shape[axis] for axis in layout.order], layout.elements) as (sample, indices):
        for axis, index in zip(layout.order, indices, strict=True):
            place[axis] = index
        yield sample, place


def each(sizes: Sequence[Any]) -> AbstractContextManager[list[Any]]:
    """Loops over all indices within sizes, without samples; turns know nothing of each other."""
    return _LOOPS.get().each(sizes)


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


def in_vectors(length: Any, lanes: int, visit: Callable[[Any, int], None]) -> None:
    """Visit elements one after the other: vectors, then what is left one by one.

    length: how many; a number, a size that varies or an expression. visit: gets a place and how many there are.
    """
    blocks, left = length // lanes, length % lanes if lanes > 1 else 0
    if not isinstance(blocks, int) or blocks:
        with T.serial(expressed(blocks)) as block:
            visit(block * lanes, lanes)
    if not isinstance(left, int) or left:
        with T.serial(expressed(left)) as rest:
            visit(blocks * lanes + rest, 1)


class ProcessorLoops:
    """Loops for LLVM: the sample and the slowest index in one loop, the others inside of each other."""

    @contextmanager
    def nest(self, batch: Any, sizes: Sequence[Any], work: Any) -> Iterator[tuple[Any, list[Any]]]:
        """No index but the first is found by division."""
        first = sizes[0] if sizes else 1
        count = in_int64(first)
        total = batch * count
        with ExitStack() as loops:
            is_shared = typical(work) >= PARALLEL_WORK and (not isinstance(first, int) or first > 1)
            index = loops.enter_context(_sliced(total) if is_shared else T.serial(total))
            sample = T.Bind(index // count)
            row = T.Bind(T.Cast("int32", index % count))
            inner = [loops.enter_context(T.serial(expressed(size))) for size in sizes[1:]]
            yield sample, [row, *inner][: len(sizes)]

    @contextmanager
    def each(self, sizes: Sequence[Any]) -> Iterator[list[Any]]:
        """One inside the other."""
        with ExitStack() as loops:
            yield [loops.enter_context(T.serial(expressed(size))) for size in sizes]

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
