"""Writing one kernel: arguments, the loop over samples, vectors."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.program.layout import Layout

# A loop with less than about 4 µs of work gains nothing from a second thread, whose inputs lie in the other one's
# cache. The unit is an element that is moved; so many products of bytes take as long.
PARALLEL_WORK, PRODUCTS = 50_000, 16
# Of a parallel loop, in order and of equal size: what `threads.cpp` hands out, and cannot cut any finer.
SLICES = 128


@dataclass(frozen=True)
class Constant:
    """An argument that is the same for all samples."""

    dtype: str
    size: int


Argument = Layout | Constant


def write(family: str, arguments: Sequence[Argument], body: Callable[..., None]) -> tuple[str, Any]:
    """Name and PrimFunc of a kernel; the last argument is the output.

    body gets the batch size and one buffer per argument: (batch, stride) of a Layout, (size,) of a Constant. The name
    is made of the content, so equal kernels are one.
    """
    with IRBuilder() as builder, T.prim_func():
        T.func_name("kernel")
        T.func_attr({"global_symbol": "kernel", "tirx.noalias": True})
        handles = [T.arg(f"a{i}", T.handle()) for i in range(len(arguments))]
        batch = T.int64()
        declared = [_declared(handle, argument, batch) for handle, argument in zip(handles, arguments, strict=True)]
        body(batch, *(_flat(buffer, argument, batch) for buffer, argument in zip(declared, arguments, strict=True)))
    function = builder.get()
    name = f"{family}_{hashlib.sha256(function.script().encode()).hexdigest()[:16]}"
    return name, function.with_attr("global_symbol", name)


def _declared(handle: Any, argument: Argument, batch: Any) -> Any:
    """The buffer as the caller passes it."""
    if isinstance(argument, Constant):
        return T.match_buffer(handle, (argument.size,), argument.dtype)
    return T.match_buffer(handle, (batch, *argument.axes), argument.stored)


def _flat(buffer: Any, argument: Argument, batch: Any) -> Any:
    """The same memory with one axis for a sample."""
    if isinstance(argument, Constant) or not argument.outside:
        return buffer
    return T.decl_buffer((batch, argument.stride), argument.stored, data=buffer.data)


@contextmanager
def rows(batch: Any, count: int, work: int) -> Iterator[tuple[Any, Any]]:
    """A loop over (sample, 0 … count − 1), in parallel when one sample is `work` operations worth it."""
    total = batch * T.int64(count)
    with _sliced(total) if work >= PARALLEL_WORK and count > 1 else T.serial(total) as index:
        sample = T.Bind(index // T.int64(count))
        yield sample, T.Bind(T.Cast("int32", index % T.int64(count)))


@contextmanager
def _sliced(total: Any) -> Iterator[Any]:
    """A parallel loop over 0 … total − 1."""
    count = T.int64(SLICES)
    with T.parallel(T.int64(0), count) as part, T.serial(part * total // count, (part + 1) * total // count) as index:
        yield index


@contextmanager
def elements(batch: Any, layout: Layout) -> Iterator[tuple[Any, list[Any]]]:
    """Loops over (sample, indices) of every element, in the order in memory; no index is found by division."""
    slowest, *inner = layout.order or (None,)
    place: list[Any] = [0] * len(layout.shape)
    with ExitStack() as loops:
        count = 1 if slowest is None else layout.shape[slowest]
        sample, row = loops.enter_context(rows(batch, count, layout.elements))
        if slowest is not None:
            place[slowest] = row
        for axis in inner:
            place[axis] = loops.enter_context(T.serial(layout.shape[axis]))
        yield sample, place


def vector(dtype: str, lanes: int) -> str:
    """The type of `lanes` numbers."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def span(start: Any, lanes: int) -> Any:
    """The index of `lanes` neighbours."""
    return start if lanes == 1 else T.ramp(start, 1, lanes)


def registers(size: int, dtype: str) -> Any:
    """A buffer that lives in registers: TVM keeps a small one of scope "global" on the stack, where LLVM promotes it.

    One of scope "local" would come from the heap, and be written back.
    """
    return T.alloc_buffer((size,), dtype, scope="global")


def pieces(count: int, widest: int) -> Iterator[tuple[int, int]]:
    """Start and length of vectors, powers of two, that cover `count` neighbours."""
    start = 0
    while start < count:
        length = min(widest, 1 << ((count - start).bit_length() - 1))
        yield start, length
        start += length


def fill(value: Any, lanes: int) -> Any:
    """A number in every lane."""
    return value if lanes == 1 else T.Broadcast(value, lanes)


def to_codes(rounded: Any, lanes: int) -> Any:
    """uint8 of whole float numbers, saturated."""
    clipped = T.min(T.max(rounded, fill(T.float32(0), lanes)), fill(T.float32(255), lanes))
    return T.Cast(vector("uint8", lanes), T.Cast(vector("int32", lanes), clipped))
