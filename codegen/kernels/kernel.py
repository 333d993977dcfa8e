"""Writing one kernel: arguments, vectors."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import Varying, given


@dataclass(frozen=True)
class Constant:
    """An argument that is the same for all samples."""

    dtype: str
    size: int


Argument = Layout | Constant


def write(
    family: str, arguments: Sequence[Argument], body: Callable[..., None], lengths: Sequence[str] = ()
) -> tuple[str, Any]:
    """Name and PrimFunc of a kernel; the last argument is the output, but for one number for each length.

    body gets the batch size and one buffer per argument: (batch, stride) of a Layout, (size,) of a Constant. The name
    is made of the content, so equal kernels are one.
    """
    with IRBuilder() as builder, T.prim_func():
        T.func_name("kernel")
        T.func_attr({"global_symbol": "kernel", "tirx.noalias": True})
        handles = [T.arg(f"a{i}", T.handle()) for i in range(len(arguments))]
        sizes = {name: T.arg(name, T.int64()) for name in lengths}
        batch = T.int64()
        with given(sizes):
            declared = [_declared(handle, argument, batch) for handle, argument in zip(handles, arguments, strict=True)]
            body(batch, *(_flat(buffer, argument, batch) for buffer, argument in zip(declared, arguments, strict=True)))
    function = builder.get()
    name = f"{family}_{hashlib.sha256(function.script().encode()).hexdigest()[:16]}"
    return name, function.with_attr("global_symbol", name)


def _declared(handle: Any, argument: Argument, batch: Any) -> Any:
    """The buffer as the caller passes it."""
    if isinstance(argument, Constant):
        return T.match_buffer(handle, (argument.size,), argument.dtype)
    return T.match_buffer(handle, (batch, *map(expressed, argument.axes)), argument.stored)


def _flat(buffer: Any, argument: Argument, batch: Any) -> Any:
    """The same memory with one axis for a sample."""
    if isinstance(argument, Constant) or not argument.outside:
        return buffer
    return T.decl_buffer((batch, expressed(argument.stride)), argument.stored, data=buffer.data)


def expressed(size: Any) -> Any:
    """A size as a kernel's own expression, where it varies."""
    return size.expression if isinstance(size, Varying) else size


def in_float32(size: Any) -> Any:
    """A size as a real number."""
    return T.float32(size) if isinstance(size, int) else T.Cast("float32", expressed(size))


def in_int64(size: Any) -> Any:
    """A size as a number of the widest type."""
    return T.int64(size) if isinstance(size, int) else expressed(size)


def rounded_up(count: Any, step: int) -> Any:
    """How many steps cover a count."""
    return -(-count // step) if isinstance(count, int) else (count + (step - 1)) // step


def vector(dtype: str, lanes: int) -> str:
    """The type of `lanes` numbers."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def span(start: Any, lanes: int) -> Any:
    """The index of `lanes` neighbours."""
    return start if lanes == 1 else T.ramp(start, 1, lanes)


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
