"""Functions of elements of any types: arithmetic, comparisons, logic, bits, choices, conversions."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families.pointwise import Operand, by_element
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout

# Of elements and their types to one element.
Function = Callable[[Sequence[Any], Sequence[str]], Any]

# Functions of the C library, by the operator.
NAMED = {
    name: name.lower()
    for name in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Log", "Exp")
}
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
ENDINGS = {"float32": "f", "float64": ""}


def is_real(dtype: str) -> bool:
    """Whether these are real numbers."""
    return dtype.startswith("float")


def number(value: float, dtype: str) -> Any:
    """A number of a type."""
    if dtype == "bool":
        return T.bool(bool(value))
    return getattr(T, dtype)(value if is_real(dtype) else int(value))


def named(function: str) -> Function:
    """A function of the C library, of one or more elements of one type."""
    return lambda x, types: T.call_pure_extern(types[0], function + ENDINGS[types[0]], *x)


def folded(combine: Callable[[Any, Any], Any]) -> Function:
    """Any number of elements, two by two."""
    return lambda x, _types: reduce(combine, x)


def quotient(x: Sequence[Any], types: Sequence[str]) -> Any:
    """Quotient of integers without its fraction."""
    return x[0] / x[1] if is_real(types[0]) else T.truncdiv(x[0], x[1])


def remainder(x: Sequence[Any], types: Sequence[str], *, of_dividend: bool) -> Any:
    """of_dividend: with the dividend's sign, else the divisor's."""
    if is_real(types[0]):
        return T.call_pure_extern(types[0], "fmod" + ENDINGS[types[0]], *x)
    return T.truncmod(*x) if of_dividend else T.floormod(*x)


def sign(x: Sequence[Any], types: Sequence[str]) -> Any:
    """-1, 0 or 1."""
    zero, one = number(0, types[0]), number(1, types[0])
    return T.Select(x[0] > zero, one, T.Select(x[0] < zero, zero - one, zero))


def absolute(x: Sequence[Any], types: Sequence[str]) -> Any:
    """Absolute value."""
    return x[0] if types[0].startswith("uint") else T.max(x[0], number(0, types[0]) - x[0])


def differs(x: Sequence[Any], types: Sequence[str]) -> Any:
    """Whether two elements do; LLVM compares no truth values."""
    a, b = x
    return T.Or(T.And(a, T.Not(b)), T.And(T.Not(a), b)) if types[0] == "bool" else a != b


def equals(x: Sequence[Any], types: Sequence[str]) -> Any:
    """Whether two elements are the same."""
    return T.Not(differs(x, types)) if types[0] == "bool" else x[0] == x[1]


def converted(x: Any, source: str, wanted: str) -> Any:
    """An element as another type, by way of 32 bits where real numbers become small integers."""
    if source == wanted:
        return x
    if wanted == "bool":
        return x != number(0, source)
    if is_real(source) and wanted in ("int8", "int16", "uint8", "uint16"):
        x = T.Cast("int32", x)
    if source == "bool":
        x = T.Select(x, T.int32(1), T.int32(0))
    return T.Cast(wanted, x)


def is_nan(x: Sequence[Any], _types: Sequence[str]) -> Any:
    """Of one, by its bits: TVM takes x ≠ x for false."""
    bits = T.reinterpret("int32", T.Cast("float32", x[0]))
    return T.bitwise_and(bits, T.int32(0x7FFFFFFF)) > T.int32(0x7F800000)


def is_infinite(x: Sequence[Any], types: Sequence[str], *, below: bool, above: bool) -> Any:
    """Whether values are infinite, of one sign or both."""
    values = []
    if above:
        values.append(x[0] == number(float("inf"), types[0]))
    if below:
        values.append(x[0] == number(float("-inf"), types[0]))
    return reduce(lambda a, b: T.Or(a, b), values, T.bool(False))


def apply(op_type: str, function: Function, operands: Sequence[Operand], y: Layout) -> KernelSource:
    """y = function(elements of the operands), which repeat along axes of size 1."""
    types = [x.dtype if isinstance(x, Layout) else str(x.dtype) for x in operands]
    return by_element(op_type.lower(), operands, y, lambda *elements: function(elements, types))
