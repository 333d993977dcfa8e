"""Writing one kernel: arguments, loops, vectors."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import BFLOAT16, Layout
from ptqc.codegen.program.program import USUAL, Accuracy, Alternatives, CompiledKernel
from ptqc.runtime.lengths import Size, SymExpr, hint, varies, with_lengths


@dataclass(frozen=True)
class Constant:
    """An argument that is the same for all samples."""

    dtype: str
    size: int


Argument = Layout | Constant


# Loops over samples and their parts, which each target runs in its own way.

Around = Callable[[], AbstractContextManager[None]]


class Loops(Protocol):
    """How a target runs the loops of kernels, and where it keeps what is in registers."""

    def nest(
        self, batch: Any, sizes: Sequence[Any], work: Any, around: Around | None = None
    ) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """See `KernelGrid.nest`."""

    def each(self, sizes: Sequence[Any]) -> AbstractContextManager[list[Any]]:
        """See `KernelGrid.each`."""

    def registers(self, size: int, dtype: str) -> Any:
        """See `KernelGrid.registers`."""


@dataclass(frozen=True)
class KernelGrid:
    """The loops of one kernel. batch: how many samples a call has."""

    batch: Any
    loops: Loops

    def nest(
        self, sizes: Sequence[Any], work: Any, around: Around | None = None
    ) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """Loop over (sample, indices within sizes); turns are independent of each other.

        work: operations of one sample; where that is much, threads share it. around: what every thread does before and
        behind its turns.
        """
        return self.loops.nest(self.batch, sizes, work, around)

    @contextmanager
    def rows(self, count: Any, work: Any) -> Iterator[tuple[Any, Any]]:
        """Loop over (sample, 0 … count − 1); see `nest`."""
        with self.nest((count,), work) as (sample, (row,)):
            yield sample, row

    @contextmanager
    def elements(self, layout: Layout) -> Iterator[tuple[Any, list[Any]]]:
        """Loop over (sample, indices) of every element, in the order in memory."""
        place: list[Any] = [0] * len(layout.shape)
        with self.nest([layout.shape[axis] for axis in layout.order], layout.elements) as (sample, indices):
            for axis, index in zip(layout.order, indices, strict=True):
                place[axis] = index
            yield sample, place

    def each(self, sizes: Sequence[Any]) -> AbstractContextManager[list[Any]]:
        """Loop over all indices within sizes, without samples; turns are independent of each other."""
        return self.loops.each(sizes)

    def registers(self, size: int, dtype: str) -> Any:
        """Allocate a buffer that lives in registers, inside of loops."""
        return self.loops.registers(size, dtype)


@dataclass(frozen=True, eq=False)
class KernelSource:
    """A kernel as its family describes it: all but the loops of a target."""

    #: What it computes, as reports call it.
    family: str
    #: Inputs, constants and the output, in this order.
    arguments: tuple[Argument, ...]
    #: Writes the kernel; gets a `KernelGrid` and one buffer for each argument: (batch, stride) of a Layout, (size,) of
    #: a Constant.
    body: Callable[..., None]
    constants: tuple[Stored, ...] = ()
    #: Products and sums of one sample, where these are what takes time.
    operations: int = 0
    accuracy: Accuracy = USUAL
    #: Lengths that it takes behind the output.
    lengths: tuple[str, ...] = ()
    alternatives: "Alternatives[Any, KernelSource] | None" = None
    #: Microseconds for one sample by machine, where a target predicts them.
    predicted: Mapping[str, float] = field(default_factory=dict)

    def compile(self, loops: Loops) -> CompiledKernel:
        """Write the function of the kernel, and of its alternatives when they are asked for."""
        name, function = write(self.family, self.arguments, self.body, loops, self.lengths)
        ways = self.alternatives
        return CompiledKernel(
            self.family,
            name,
            function,
            self.constants,
            self.operations,
            self.accuracy,
            None if ways is None else Alternatives(ways.cuts, lambda cut: ways.write(cut).compile(loops)),
            self.predicted,
            self.lengths,
        )


def write(
    family: str, arguments: Sequence[Argument], body: Callable[..., None], loops: Loops, lengths: Sequence[str] = ()
) -> tuple[str, Any]:
    """Name and PrimFunc of a kernel, see `KernelSource`. The name is made of the content, so equal kernels are one."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name("kernel")
        T.func_attr({"global_symbol": "kernel", "tirx.noalias": True})
        handles = [T.arg(f"a{i}", T.handle()) for i in range(len(arguments))]
        sizes = {name: T.arg(name, T.int64()) for name in lengths}
        batch = T.int64()
        with with_lengths(sizes):
            declared = [_declared(handle, argument, batch) for handle, argument in zip(handles, arguments, strict=True)]
            buffers = (_flat(buffer, argument, batch) for buffer, argument in zip(declared, arguments, strict=True))
            body(KernelGrid(batch, loops), *buffers)
    function = builder.get()
    name = f"{family}_{hashlib.sha256(function.script().encode()).hexdigest()[:16]}"
    return name, function.with_attr("global_symbol", name)


def _declared(handle: Any, argument: Argument, batch: Any) -> Any:
    if isinstance(argument, Constant):
        return T.match_buffer(handle, (argument.size,), argument.dtype)
    return T.match_buffer(handle, (batch, *map(expressed, argument.axes)), argument.stored)


def _flat(buffer: Any, argument: Argument, batch: Any) -> Any:
    """The same memory with one axis for a sample."""
    if isinstance(argument, Constant) or not argument.is_io:
        return buffer
    return T.decl_buffer((batch, expressed(argument.stride)), argument.stored, data=buffer.data)


def expressed(size: Any) -> Any:
    """A size as a kernel's own expression, where it varies."""
    return size.expression if isinstance(size, SymExpr) else size


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


def in_vectors(length: Any, lanes: int, visit: Callable[[Any, int], None]) -> None:
    """Visit elements one after the other: vectors, then what is left one by one.

    length: how many; a number, a size that varies or an expression. visit: gets a place and how many there are.
    """
    blocks, left = length // lanes, length % lanes if lanes > 1 else 0
    if not isinstance(blocks, int) or blocks:
        with T.serial(expressed(blocks)) as block:
            visit(block * lanes, lanes)
    if not isinstance(left, int) or left:
        with T.serial(expressed(left)) as remainder:
            visit(blocks * lanes + remainder, 1)


# Loops for LLVM, on the threads of a processor.

# A loop with less than about 4 µs of work gains nothing from a second thread, whose inputs lie in the other one's
# cache. The unit is an element that is moved; so many products of bytes take as long.
PARALLEL_WORK, PRODUCTS = 50_000, 16
# Of a parallel loop, in order and of equal size: what `threads.cpp` hands out, and cannot cut any finer.
SLICES = 128
# How TVM's runtime is told of the processor, and of a type: a kind and bits, which processors do not look at.
_PROCESSOR_DEVICE, _HINTS = (1, 0), (0, 32)


class ProcessorLoops:
    """The sample and the slowest index in one loop, the others inside of each other."""

    @contextmanager
    def nest(
        self, batch: Any, sizes: Sequence[Any], work: Any, around: Around | None = None
    ) -> Iterator[tuple[Any, list[Any]]]:
        """No index but the first is found by division."""
        first = sizes[0] if sizes else 1
        count = in_int64(first)
        total = batch * count
        with ExitStack() as loops:
            is_shared = hint(work) >= PARALLEL_WORK and (not isinstance(first, int) or first > 1)
            if around is not None and is_shared:  # TVM then hands a thread all from here on, not the loop alone
                loops.enter_context(T.attr(T.int32(0), "pragma_parallel_launch_point", T.int32(1)))
            if around is not None:
                loops.enter_context(around())
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


@contextmanager
def thread_memory(size: int, dtype: str) -> Iterator[Any]:
    """Numbers of four bytes of the thread that comes here, for `around` of a loop.

    A buffer of this size that TVM allocates itself there would be one for all threads.
    """
    kind, room = PointerType(PrimType(dtype)), (*_PROCESSOR_DEVICE, T.uint64(4 * size), *_HINTS)
    address = T.Bind(T.call_intrin(kind, "tirx.TVMBackendAllocWorkspace", *room))
    yield T.decl_buffer((size,), dtype, data=address)
    T.evaluate(T.TVMBackendFreeWorkspace(*_PROCESSOR_DEVICE, address))


PROCESSOR = ProcessorLoops()


# Runs of neighbouring elements, copied and filled by whole vectors.


@dataclass(frozen=True)
class ElementRun:
    """`length` elements of a sample in a buffer, from `start` on."""

    buffer: Any
    sample: Any
    start: Any
    length: Size

    def copy_from(self, source: Any, start: Any, isa: Isa) -> None:
        """Copy the elements of the same sample of another buffer, from `start` on."""
        self._each(isa, lambda offset, lanes: source[self.sample, span(start + offset, lanes)])

    def copy_from_constant(self, source: Any, isa: Isa) -> None:
        """Copy the elements from a buffer that has no axis for samples."""
        self._each(isa, lambda offset, lanes: source[span(offset, lanes)])

    def fill(self, value: Any, isa: Isa) -> None:
        """Make all elements `value`."""
        self._each(isa, lambda _offset, lanes: fill(value, lanes))

    def _each(self, isa: Isa, value: Callable[[Any, int], Any]) -> None:
        """Store value(offset, lanes), vector by vector; the last ones get shorter."""
        widest = isa.widest(str(self.buffer.dtype))
        if varies([self.length]):
            length = expressed(self.length)
            with T.serial(length // widest) as index:
                self._store(index * widest, widest, value)
            with T.serial(length % widest) as remainder:
                self._store(length // widest * widest + remainder, 1, value)
            return
        vectors = self.length // widest
        if vectors:
            with T.serial(vectors) as index:
                self._store(index * widest, widest, value)
        for offset, lanes in pieces(self.length - vectors * widest, widest):
            self._store(vectors * widest + offset, lanes, value)

    def _store(self, offset: Any, lanes: int, value: Callable[[Any, int], Any]) -> None:
        T.buffer_store(self.buffer, value(offset, lanes), [self.sample, span(self.start + offset, lanes)])


# Values of bfloat16, which lie in memory as uint16 and are float32 in registers; and products of pairs of them.

UPPER = 16  # bits of a float32
HALF, LAST = (1 << UPPER - 1) - 1, -(1 << UPPER)
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
# TVM makes float32 of all that has this type, so instructions are called from functions in LLVM's own language.
BFLOAT_PRODUCTS, ROUNDING = "ptqc_bfloat16_products", "ptqc_bfloat16_rounding"
CODE = """
define <{lanes} x float> @ptqc_bfloat16_products(<{lanes} x float> %total, <{lanes} x i32> %taps, <{lanes} x i32> %w) {{
  %a = bitcast <{lanes} x i32> %taps to <{pairs} x bfloat>
  %b = bitcast <{lanes} x i32> %w to <{pairs} x bfloat>
  %sum = call <{lanes} x float> @{products}(<{lanes} x float> %total, <{pairs} x bfloat> %a, <{pairs} x bfloat> %b)
  ret <{lanes} x float> %sum
}}
define <{lanes} x i16> @ptqc_bfloat16_rounding(<{lanes} x float> %x) {{
  %found = {rounding}
  %bits = bitcast <{lanes} x bfloat> %found to <{lanes} x i16>
  ret <{lanes} x i16> %bits
}}
"""


@contextmanager
def bfloat16_instructions(isa: Isa, *, needed: bool) -> Iterator[None]:
    """The instructions, for use inside a kernel, where `add_products` and `as_stored` may be called."""
    if isa.bfloats is None or not needed:
        yield
        return
    code = CODE.format(**vars(isa.bfloats), lanes=isa.lanes, pairs=2 * isa.lanes)
    with T.attr(T.int32(0), "pragma_import_llvm", code):
        yield


def add_products(isa: Isa, total: Any, x: Any, place: tuple[Any, Any], w: Any, offset: Any) -> Any:
    """total (float32, one per lane) plus x[place … + 2] times each lane's two weights from w[offset]."""
    row, column = place
    taps = T.Broadcast(T.reinterpret("int32", x[row, T.ramp(column, 1, 2)]), isa.lanes)
    weights = T.reinterpret(vector("int32", isa.lanes), w[T.ramp(offset, 1, 2 * isa.lanes)])
    return T.call_extern(vector("float32", isa.lanes), BFLOAT_PRODUCTS, total, taps, weights)


def rounded(x: Any, lanes: int) -> Any:
    """The nearest bfloat16 of float32, halves to even; what is no number stays none."""
    bits = T.Bind(T.reinterpret(vector("int32", lanes), T.Bind(x)))
    odd = T.bitwise_and(T.shift_right(bits, fill(T.int32(UPPER), lanes)), fill(T.int32(1), lanes))
    up = T.bitwise_and(bits + fill(T.int32(HALF), lanes) + odd, fill(T.int32(LAST), lanes))
    is_number = T.bitwise_and(bits, fill(T.int32(MAGNITUDE), lanes)) <= fill(T.int32(INFINITY), lanes)
    result = T.Bind(T.Select(is_number, up, fill(T.int32(NAN), lanes)))
    return T.reinterpret(vector("float32", lanes), result)


def as_stored(isa: Isa, y: Layout, x: Any, lanes: int) -> Any:
    """A value as it lies in memory, rounded where that is bfloat16; the instruction makes 0 of what is below 2^-126."""
    if y.dtype != BFLOAT16:
        return x
    if isa.bfloats is not None and lanes == isa.lanes:
        return T.call_extern(vector("uint16", lanes), ROUNDING, x)
    return bfloat16_bits(rounded(x, lanes), lanes)


def load(layout: Layout, buffer: Any, sample: Any, start: Any, lanes: int) -> Any:
    """Neighbours as they are computed with."""
    result = buffer[sample, span(start, lanes)]
    return from_bfloat16_bits(result, lanes) if layout.dtype == BFLOAT16 else result


def store(layout: Layout, buffer: Any, value: Any, sample: Any, start: Any, lanes: int) -> None:
    """Store neighbours; as bfloat16 what is such a number."""
    T.buffer_store(
        buffer, bfloat16_bits(value, lanes) if layout.dtype == BFLOAT16 else value, [sample, span(start, lanes)]
    )


def from_bfloat16_bits(x: Any, lanes: int) -> Any:
    """float32 of values as they lie in memory."""
    whole = T.Cast(vector("int32", lanes), x)
    bits = T.Bind(T.shift_left(whole, fill(T.int32(UPPER), lanes)))
    return T.reinterpret(vector("float32", lanes), bits)


def bfloat16_bits(x: Any, lanes: int) -> Any:
    """What lies in memory of numbers that are bfloat16."""
    bits = T.reinterpret(vector("uint32", lanes), T.Bind(x))
    return T.Cast(vector("uint16", lanes), T.shift_right(bits, fill(T.uint32(UPPER), lanes)))
