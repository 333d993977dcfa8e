"""What becomes of a layer's real values before they are stored: functions, and operations with other numbers.

These are one number for each channel, as a bias; other values that lie in memory, as the other half of a split layer;
or one of these for each row, as the scale of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.epilogue import Place
from ptqc.codegen.kernels.families.functions import BINARY, Function
from ptqc.codegen.kernels.writing import fill, load, span
from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Layout

# Operations that keep a small change of either operand as it is.
SUMS = frozenset(("Add", "Sub"))


@dataclass(frozen=True, eq=False)
class Beside:
    """An operation with another real value. own: which operand the kernel makes. other: the layout of the other one.

    is_by_row: whether the other one has a single number for all channels of a pixel.
    """

    op_type: str
    own: int
    is_by_row: bool = False
    other: Layout | None = None

    @property
    def is_gentle(self) -> bool:
        """Whether small changes of what the kernel makes stay small."""
        return self.op_type in SUMS

    @property
    def family(self) -> str:
        """What kernels that compute it are called."""
        return f"{self.op_type.lower()}_{'row' if self.is_by_row else 'value'}"

    def value(self, x: Any, lanes: int, place: Place, buffer: Any) -> Any:
        """The result for a vector of channels."""
        assert self.other is not None
        sample, row, column, channel = place
        if self.is_by_row:
            other = fill(load(self.other, buffer, sample, row * self.other.plane[2] + column, 1), lanes)
        else:
            other = load(self.other, buffer, sample, self.other.at(row, column, channel), lanes)
        return BINARY[self.op_type](*((other, x) if self.own else (x, other)))


@dataclass(frozen=True, eq=False)
class WithVector:
    """An operation with one number for each channel. own: which operand the kernel makes."""

    op_type: str
    own: int
    array: np.ndarray

    @property
    def is_gentle(self) -> bool:
        """Whether small changes of what the kernel makes stay small."""
        sizes = np.abs(self.array)
        shrinks = (self.op_type == "Mul" and sizes.max() <= 1) or (
            self.op_type == "Div" and sizes.min() >= 1 > self.own
        )
        return self.op_type in SUMS or bool(shrinks)

    @property
    def family(self) -> str:
        """What kernels that compute it are called."""
        return f"{self.op_type.lower()}_array{1 - self.own}"

    def value(self, x: Any, lanes: int, packed: Any, constant: Any) -> Any:
        """The result for a vector of channels."""
        other = constant[span(packed, lanes)]
        return BINARY[self.op_type](*((other, x) if self.own else (x, other)))


RealStage = Function | Beside | WithVector


def functions_of(stages: Sequence[RealStage]) -> list[Function]:
    """Those of the stages that are functions."""
    return [stage for stage in stages if isinstance(stage, Function)]


def others_of(stages: Sequence[RealStage]) -> list[Layout]:
    """Layouts of the values that stages read."""
    return [stage.other for stage in stages if isinstance(stage, Beside) and stage.other is not None]


def reading(stages: Sequence[RealStage], operands: Sequence[Layout]) -> tuple[RealStage, ...]:
    """The stages with the layouts of what they read, in their order."""
    left = iter(operands)
    return tuple(replace(stage, other=next(left)) if isinstance(stage, Beside) else stage for stage in stages)


def constants_of(stages: Sequence[RealStage], pack: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """What `composed` needs beside the sums. pack: puts numbers of channels into the order of the loops."""
    values: list[np.ndarray] = []
    for stage in stages:
        if isinstance(stage, Function):
            values += stage.constants()
        elif isinstance(stage, WithVector):
            values.append(pack(stage.array.astype(np.float32)))
    return values


def unrounded(stages: Sequence[RealStage], y: Layout) -> list[RealStage]:
    """The stages that are left to compute where storing a value rounds it."""
    is_rounded = y.dtype == BFLOAT16
    return [stage for stage in stages if not (is_rounded and isinstance(stage, Function) and stage.form == ROUNDED)]


def composed(
    stages: Sequence[RealStage],
    x: Any,
    lanes: int,
    where: tuple[Any, Place],
    constants: Sequence[Any],
    operands: Sequence[Any],
) -> Any:
    """Apply stages to a vector, each to the other's result.

    where: its channels among the packed ones, and its place. constants, operands: of all stages in their order.
    """
    packed, place = where
    for stage in stages:
        match stage:
            case Function():
                count = len(stage.constants())
                x, constants = stage.value(T.Bind(x), lanes, constants[:count]), constants[count:]
            case WithVector():
                x, constants = stage.value(x, lanes, packed, constants[0]), constants[1:]
            case Beside():
                x, operands = stage.value(x, lanes, place, operands[0]), operands[1:]
    return x
