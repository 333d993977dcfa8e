"""Float functions of one and two operands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.tvm import mathematics
from ptqc.codegen.tvm.families import Built, Declined
from ptqc.codegen.tvm.families.pointwise import pointwise
from ptqc.codegen.tvm.isa import Isa
from ptqc.codegen.tvm.kernel import fill
from ptqc.codegen.tvm.layout import Layout

# Each takes a vector, its length, and the function's own numbers.
Unary = Callable[[Any, int, Sequence[Any]], Any]


def _clip(x: Any, _lanes: int, numbers: Sequence[Any]) -> Any:
    return T.min(T.max(x, numbers[0]), numbers[1])


def _leaky(x: Any, lanes: int, numbers: Sequence[Any]) -> Any:
    zero = fill(T.float32(0), lanes)
    return T.max(x, zero) + numbers[0] * T.min(x, zero)


def _hard_sigmoid(x: Any, lanes: int, numbers: Sequence[Any]) -> Any:
    zero, one = (fill(T.float32(v), lanes) for v in (0, 1))
    return T.max(zero, T.min(one, numbers[0] * x + numbers[1]))


def _tanh(x: Any, lanes: int, _numbers: Sequence[Any]) -> Any:
    two = fill(T.float32(2), lanes)
    return two * mathematics.sigmoid(two * x, lanes) - fill(T.float32(1), lanes)


UNARY: dict[str, Unary] = {
    "Relu": lambda x, lanes, _: T.max(x, fill(T.float32(0), lanes)),
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x, lanes, numbers: x * _hard_sigmoid(x, lanes, numbers),
    "Sigmoid": lambda x, lanes, _: mathematics.sigmoid(x, lanes),
    "Tanh": _tanh,
    "Exp": lambda x, lanes, _: mathematics.exp(x, lanes),
    "Neg": lambda x, lanes, _: fill(T.float32(0), lanes) - x,
    "Abs": lambda x, lanes, _: T.max(x, fill(T.float32(0), lanes) - x),
    "Sqrt": lambda x, _lanes, _: T.sqrt(x),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Max": lambda a, b: T.max(a, b),
    "Min": lambda a, b: T.min(a, b),
}


def unary(op_type: str, x: Layout, y: Layout, isa: Isa, numbers: Sequence[float]) -> Built:
    """A function of one operand; numbers: bounds, slopes and the like."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        given = [fill(constants[0][i], lanes) for i in range(len(numbers))]
        return UNARY[op_type](element, lanes, given)

    constants = [np.array(numbers, np.float32)] if numbers else []
    return pointwise(op_type.lower(), [x], constants, y, isa, value)


def binary(
    op_type: str, given: Sequence[Layout], y: Layout, isa: Isa, constant: tuple[int, np.ndarray] | None = None
) -> Built:
    """A function of two operands, either of which may repeat along axes of size 1.

    constant: place and array (any shape that broadcasts to a batch of y) of an operand that never changes.
    """
    if constant is None:
        family = f"{op_type.lower()}_float"
        return pointwise(family, given, [], y, isa, lambda _lanes, _constants, a, b: BINARY[op_type](a, b))
    place, array = constant
    if array.size != 1:
        raise Declined("a constant operand of more than one number has no kernel")

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        other = fill(constants[0][0], lanes)
        return BINARY[op_type](*((other, element) if place == 0 else (element, other)))

    return pointwise(f"{op_type.lower()}_number{place}", given, [array.astype(np.float32)], y, isa, value)
