"""Float functions of one and two operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import pi
from typing import Any, Protocol

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import mathematics, writing
from ptqc.codegen.kernels.families.pointwise import pointwise, with_array
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelSource, fill
from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Layout
from ptqc.codegen.program.program import EXACT, USUAL, Accuracy

# Gelu without its factor of ½, as exporters spell it in four operators.
TWICE_GELU = "twice_gelu"
# Each takes a vector, its length, and the function's own numbers.
Unary = Callable[[Any, int, Sequence[Any]], Any]


def _number(value: float, lanes: int) -> Any:
    return fill(T.float32(value), lanes)


def _clip(x: Any, _lanes: int, numbers: Sequence[Any]) -> Any:
    return T.min(T.max(x, numbers[0]), numbers[1])


def _leaky(x: Any, lanes: int, numbers: Sequence[Any]) -> Any:
    zero = _number(0, lanes)
    return T.max(x, zero) + numbers[0] * T.min(x, zero)


def _hard_sigmoid(x: Any, lanes: int, numbers: Sequence[Any]) -> Any:
    return T.max(_number(0, lanes), T.min(_number(1, lanes), numbers[0] * x + numbers[1]))


def _tanh(x: Any, lanes: int, _numbers: Sequence[Any] = ()) -> Any:
    two = _number(2, lanes)
    return two * mathematics.sigmoid(two * x, lanes) - _number(1, lanes)


def _elu(x: Any, lanes: int, numbers: Sequence[Any]) -> Any:
    below = mathematics.exp(T.min(x, _number(0, lanes)), lanes) - _number(1, lanes)
    return T.max(x, _number(0, lanes)) + numbers[0] * below


def _absolute(x: Any, lanes: int, _numbers: Sequence[Any] = ()) -> Any:
    return T.max(x, _number(0, lanes) - x)


def _softplus(x: Any, lanes: int, _numbers: Sequence[Any] = ()) -> Any:
    remainder = mathematics.exp(_number(0, lanes) - _absolute(x, lanes), lanes)
    return T.max(x, _number(0, lanes)) + T.log(_number(1, lanes) + remainder)


def _twice_gelu(x: Any, lanes: int, _numbers: Sequence[Any]) -> Any:
    return x * (_number(1, lanes) + mathematics.erf(x * _number(0.5**0.5, lanes), lanes))


def _gelu(x: Any, lanes: int, _numbers: Sequence[Any]) -> Any:
    inner = mathematics.erf(x * _number(0.5**0.5, lanes), lanes)
    return _number(0.5, lanes) * x * (_number(1, lanes) + inner)


def _gelu_by_tanh(x: Any, lanes: int, _numbers: Sequence[Any]) -> Any:
    cubic = x + _number(0.044715, lanes) * x * x * x
    return x * mathematics.sigmoid(_number(2 * (2 / pi) ** 0.5, lanes) * cubic, lanes)


UNARY: dict[str, Unary] = {
    "Relu": lambda x, lanes, _: T.max(x, _number(0, lanes)),
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x, lanes, numbers: x * _hard_sigmoid(x, lanes, numbers),
    "Sigmoid": lambda x, lanes, _: mathematics.sigmoid(x, lanes),
    "Tanh": _tanh,
    "Exp": lambda x, lanes, _: mathematics.exp(x, lanes),
    "Log": lambda x, _lanes, _: T.log(x),
    "Neg": lambda x, lanes, _: x * _number(-1, lanes),
    "Abs": _absolute,
    "Sqrt": lambda x, _lanes, _: T.sqrt(x),
    "Reciprocal": lambda x, lanes, _: _number(1, lanes) / x,
    "Erf": lambda x, lanes, _: mathematics.erf(x, lanes),
    "Elu": _elu,
    "Softplus": _softplus,
    "Softsign": lambda x, lanes, _: x / (_number(1, lanes) + _absolute(x, lanes)),
    "Mish": lambda x, lanes, _: x * _tanh(_softplus(x, lanes), lanes),
    "Gelu": _gelu,
    "Floor": lambda x, _lanes, _: T.floor(x),
    "Ceil": lambda x, _lanes, _: T.ceil(x),
    "Round": lambda x, _lanes, _: T.nearbyint(x),
    "Identity": lambda x, _lanes, _: x,
}
# Functions whose slope is about 1 or 2 at most (some by their numbers), and those of them that x may be multiplied
# with: a small change of x, as sums in another order make, stays small.
SLOPED = frozenset(("Elu", "HardSigmoid", "LeakyRelu"))
GATES = frozenset(("Erf", "HardSigmoid", "Sigmoid", "Softsign", "Tanh"))
GENTLE = GATES.union(
    SLOPED,
    ("Abs", "Clip", "Gelu", "HardSwish", "Identity", "Mish", "Neg", "Relu", "Softplus", "tanh_gelu", TWICE_GELU),
)
# These are ½ + something, or the logarithm of 1 + something, so small results carry the rounding of ½ or 1.
ROUNDED_AT_ONE = {"Sigmoid": 5e-7, "Softplus": 2e-7, "Tanh": 1e-6, "Mish": 1e-6, "tanh_gelu": 1e-6}
# Forms of an operator that an attribute or a constant operand chooses.
FORMS: dict[str, Unary] = {
    **UNARY,
    "tanh_gelu": _gelu_by_tanh,
    TWICE_GELU: _twice_gelu,
    "square": lambda x, _lanes, _: x * x,
    "cube": lambda x, _lanes, _: x * x * x,
    ROUNDED: lambda x, lanes, _: writing.rounded(x, lanes),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Max": lambda a, b: T.max(a, b),
    "Min": lambda a, b: T.min(a, b),
    "PRelu": lambda a, b: T.max(a, T.float32(0)) + b * T.min(a, T.float32(0)),
}


class Named(Protocol):
    """Something of a kernel that its name tells."""

    @property
    def family(self) -> str:
        """What kernels that compute it are called."""


def with_number(op_type: str, place: int) -> str:
    """The form of an operation whose operand `place` is one number."""
    return f"{op_type.lower()}_number{place}"


def _with_number(op_type: str, place: int) -> Unary:
    function = BINARY[op_type]
    return lambda x, _lanes, numbers: function(*((numbers[0], x) if place == 0 else (x, numbers[0])))


FORMS |= {with_number(op_type, place): _with_number(op_type, place) for op_type in BINARY for place in (0, 1)}
# Of these, those that keep small changes of x small whatever the number, and those that do with one of at most, or of
# at least, 1.
EVEN = frozenset(with_number(op_type, place) for op_type in ("Add", "Sub", "Max", "Min") for place in (0, 1))
SHRINKING = frozenset(with_number("Mul", place) for place in (0, 1))
SHARING = with_number("Div", 1)


@dataclass(frozen=True)
class Function:
    """f(x) of one real operand, or x · f(x). numbers: bounds, slopes and the like."""

    form: str
    numbers: tuple[float, ...] = ()
    is_gate: bool = False

    @property
    def family(self) -> str:
        """What kernels that compute it are called."""
        return f"gated_{self.form.lower()}" if self.is_gate else self.form.lower()

    @property
    def is_gentle(self) -> bool:
        """Whether small changes of x stay small."""
        is_flat = self.form not in SLOPED | SHRINKING or abs(self.numbers[0]) <= 1
        is_shared = self.form == SHARING and abs(self.numbers[0]) >= 1
        return (is_flat and self.form in (GATES if self.is_gate else GENTLE | EVEN | SHRINKING)) or is_shared

    def gating(self) -> "Function":
        """x · f(x)."""
        return replace(self, is_gate=True)

    def constants(self) -> list[np.ndarray]:
        """What `value` needs beside the operand."""
        return [np.array(self.numbers, np.float32)] if self.numbers else []

    def value(self, x: Any, lanes: int, constants: Sequence[Any]) -> Any:
        """The function of a vector."""
        inputs = [fill(constants[0][i], lanes) for i in range(len(self.numbers))]
        values = FORMS[self.form](x, lanes, inputs)
        return x * values if self.is_gate else values


def accuracy_with(kernel: Accuracy, functions: Sequence[Function]) -> Accuracy:
    """What the real values of a kernel are held to that computes functions of its results."""
    return replace(
        kernel,
        at_one=sum(ROUNDED_AT_ONE.get(function.form, 0.0) for function in functions),
        to_bfloat16=bool(functions) and functions[-1].form == ROUNDED,
    )


def family_with(family: str, stages: Sequence[Named]) -> str:
    """What kernels of a family are called that compute more of their results."""
    return "_".join((family, *(stage.family for stage in stages)))


def constants_of(functions: Sequence[Function]) -> list[np.ndarray]:
    """What `composed` needs beside the operand."""
    return [constant for function in functions for constant in function.constants()]


def composed(functions: Sequence[Function], x: Any, lanes: int, constants: Sequence[Any]) -> Any:
    """Apply functions to a vector, each to the other's result; constants: of all functions in their order."""
    for function in functions:
        count = len(function.constants())
        x = function.value(T.Bind(x), lanes, constants[:count])
        constants = constants[count:]
    return x


def unrounded(functions: Sequence[Function], y: Layout) -> list[Function]:
    """The functions that are left to compute where storing a value rounds it."""
    return [function for function in functions if function.form != ROUNDED or y.dtype != BFLOAT16]


def unary(functions: Sequence[Function], x: Layout, y: Layout, isa: Isa) -> KernelSource:
    """Functions of one operand, one of the other's result."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        return composed(functions, element, lanes, constants)

    family = family_with(functions[0].family, functions[1:])
    accuracy = accuracy_with(EXACT if functions[0].form == ROUNDED else USUAL, functions)
    return replace(pointwise(family, [x], constants_of(functions), y, isa, value), accuracy=accuracy)


def binary(
    op_type: str,
    source: Sequence[Layout],
    y: Layout,
    isa: Isa,
    constant: tuple[int, np.ndarray] | None = None,
    stages: Sequence[Function] = (),
) -> KernelSource:
    """A function of two operands, either of which may repeat along axes of size 1.

    constant: place and array (one number, or of y's rank) of an operand that never changes. stages: functions of the
    result, where no array is an operand.
    """
    if constant is None:
        return _combined(op_type, source, y, isa, stages)
    place, array = constant
    function = BINARY[op_type]
    if array.size > 1:
        family = f"{op_type.lower()}_array{place}"
        return with_array(family, source[0], y, array, (lambda x, c: function(c, x)) if place == 0 else function)
    number = Function(with_number(op_type, place), (float(array.item()),))
    return unary([number, *stages], source[0], y, isa)


def _combined(op_type: str, source: Sequence[Layout], y: Layout, isa: Isa, stages: Sequence[Function]) -> KernelSource:
    def value(lanes: int, constants: Sequence[Any], a: Any, b: Any) -> Any:
        return composed(stages, BINARY[op_type](a, b), lanes, constants)

    built = pointwise(family_with(f"{op_type.lower()}_float", stages), source, constants_of(stages), y, isa, value)
    return replace(built, accuracy=accuracy_with(USUAL, stages))
