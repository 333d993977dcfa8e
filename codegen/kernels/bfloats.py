"""Values of bfloat16, which lie in memory as uint16 and are float32 in registers; and products of pairs of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.kernel import fill, span, vector
from ptqc.codegen.program.layout import BFLOAT16, Layout

UPPER = 16  # bits of a float32
HALF, LAST = (1 << UPPER - 1) - 1, -(1 << UPPER)
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
# TVM makes float32 of all that has this type, so instructions are called from functions in LLVM's own language.
PRODUCTS, ROUNDING = "ptqc_bfloat16_products", "ptqc_bfloat16_rounding"
CODE = """
declare <{lanes} x float> @{products}(<{lanes} x float>, <{pairs} x bfloat>, <{pairs} x bfloat>)
declare <{lanes} x bfloat> @{rounding}(<{lanes} x float>)
define <{lanes} x float> @ptqc_bfloat16_products(<{lanes} x float> %total, <{lanes} x i32> %taps, <{lanes} x i32> %w) {{
  %a = bitcast <{lanes} x i32> %taps to <{pairs} x bfloat>
  %b = bitcast <{lanes} x i32> %w to <{pairs} x bfloat>
  %sum = call <{lanes} x float> @{products}(<{lanes} x float> %total, <{pairs} x bfloat> %a, <{pairs} x bfloat> %b)
  ret <{lanes} x float> %sum
}}
define <{lanes} x i16> @ptqc_bfloat16_rounding(<{lanes} x float> %x) {{
  %found = call <{lanes} x bfloat> @{rounding}(<{lanes} x float> %x)
  %bits = bitcast <{lanes} x bfloat> %found to <{lanes} x i16>
  ret <{lanes} x i16> %bits
}}
"""


@contextmanager
def instructions(isa: Isa, *, needed: bool) -> Iterator[None]:
    """The instructions, for use inside a kernel, where `add_products` and `kept` may be called."""
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
    return T.call_extern(vector("float32", isa.lanes), PRODUCTS, total, taps, weights)


def rounded(x: Any, lanes: int) -> Any:
    """The nearest bfloat16 of float32, halves to even; what is no number stays none."""
    bits = T.Bind(T.reinterpret(vector("int32", lanes), T.Bind(x)))
    odd = T.bitwise_and(T.shift_right(bits, fill(T.int32(UPPER), lanes)), fill(T.int32(1), lanes))
    up = T.bitwise_and(bits + fill(T.int32(HALF), lanes) + odd, fill(T.int32(LAST), lanes))
    is_number = T.bitwise_and(bits, fill(T.int32(MAGNITUDE), lanes)) <= fill(T.int32(INFINITY), lanes)
    found = T.Bind(T.Select(is_number, up, fill(T.int32(NAN), lanes)))
    return T.reinterpret(vector("float32", lanes), found)


def kept(isa: Isa, y: Layout, x: Any, lanes: int) -> Any:
    """A value as it lies in memory, rounded where that is bfloat16; the instruction makes 0 of what is below 2^-126."""
    if y.dtype != BFLOAT16:
        return x
    if isa.bfloats is not None and lanes == isa.lanes:
        return T.call_extern(vector("uint16", lanes), ROUNDING, x)
    return narrowed(rounded(x, lanes), lanes)


def load(layout: Layout, buffer: Any, sample: Any, start: Any, lanes: int) -> Any:
    """Neighbours as they are computed with."""
    found = buffer[sample, span(start, lanes)]
    return widened(found, lanes) if layout.dtype == BFLOAT16 else found


def store(layout: Layout, buffer: Any, value: Any, sample: Any, start: Any, lanes: int) -> None:
    """Store neighbours; as bfloat16 what is such a number."""
    T.buffer_store(buffer, narrowed(value, lanes) if layout.dtype == BFLOAT16 else value, [sample, span(start, lanes)])


def widened(x: Any, lanes: int) -> Any:
    """float32 of values as they lie in memory."""
    whole = T.Cast(vector("int32", lanes), x)
    bits = T.Bind(T.shift_left(whole, fill(T.int32(UPPER), lanes)))
    return T.reinterpret(vector("float32", lanes), bits)


def narrowed(x: Any, lanes: int) -> Any:
    """What lies in memory of numbers that are bfloat16."""
    bits = T.reinterpret(vector("uint32", lanes), T.Bind(x))
    return T.Cast(vector("uint16", lanes), T.shift_right(bits, fill(T.uint32(UPPER), lanes)))
