"""What threads do with the sums of a layer: scaled, rounded, taken through the stages behind, stored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.epilogue import PACKED, Epilogue, Place, Requantization
from ptqc.codegen.kernels.families.functions import accuracy_with, family_with
from ptqc.codegen.kernels.families.real_stages import RealStage, composed, constants_of, functions_of, others_of
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Accuracy


def ptx(name: str, *operands: Any) -> None:
    """An instruction by its name in PTX; results come first."""
    T.evaluate(T.ptx[name](*operands))


def held(value: Any) -> Any:
    """An int32 in a register of its own: else TVM would widen what it is made of, divisions too, along with it."""
    register = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(register, value, [0])
    return register[0]


Arrange = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Results(ABC):
    """The output of a layer with so many channels."""

    y: Layout
    isa: Isa
    outputs: int

    @property
    def accuracy(self) -> Accuracy:
        """What they are held to."""
        return SUM_OF_PRODUCTS

    def named(self, family: str) -> str:
        """What kernels of a family are called that give them."""
        return family

    @property
    @abstractmethod
    def others(self) -> list[Layout]:
        """Layouts of what is read beside the layer's input."""

    @abstractmethod
    def constants(self, arrange: Arrange) -> list[np.ndarray]:
        """What `store` needs, in its order. arrange: puts numbers of channels into the order of the kernel."""

    @abstractmethod
    def _stored(self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any]) -> Any:
        """A buffer with what is stored."""

    def store(
        self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any], out: Any
    ) -> None:
        """Settle and store PACKED neighbouring channels of a pixel, of which the first one exists.

        sums: without the bias. place: of the first one.
        """
        output = self._stored(sums, place, constants, others)
        sample, *within = place
        target = self.y.at(*within)
        first = self.y.parent_buffer.at[0] if self.y.parent_buffer is not None else 0
        if all(size % PACKED == 0 for size in (self.outputs, self.y.plane[0], first, self.y.stride)):
            T.buffer_store(out, output[T.ramp(0, 1, PACKED)], [sample, T.ramp(target, 1, PACKED)])
            return
        for i in range(PACKED):
            with T.If(place[3] + i < self.outputs), T.Then():
                T.buffer_store(out, output[i], [sample, target + i])


@dataclass(frozen=True, eq=False)
class CodedResults(Results):
    """Of sums of codes: any 32 bits, which become codes, or real values where y is float32."""

    requantization: Requantization
    epilogue: Epilogue

    @property
    def others(self) -> list[Layout]:
        """What the stages read."""
        return self.epilogue.others

    def constants(self, arrange: Arrange) -> list[np.ndarray]:
        """Bias, factor, zero point, and those of the stages."""
        return [
            arrange(self.requantization.bias.astype(np.int32)),
            arrange(self.requantization.factor.astype(np.float32)),
            np.array([self.requantization.zero_point], np.float32),
            *self.epilogue.constants(self.isa),
        ]

    def _stored(self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any]) -> Any:
        (bias, factor, zero, *numbers), (sample, row, column, channel) = constants, place
        target = T.alloc_buffer((PACKED,), self.y.stored, scope="local")
        values = []
        for i, result in enumerate(sums):
            total = T.reinterpret("int32", result) + bias[channel + i]
            values.append(T.Cast("float32", total) * factor[channel + i])
        if self.y.dtype == "float32":
            for i, value in enumerate(values):
                T.buffer_store(target, value, [i])
            return target
        places = [(sample, row, column, channel + i) for i in range(len(values))]
        self.epilogue.settle(self.isa, values, zero[0], target, places, numbers, others, fitting=False)
        return target


@dataclass(frozen=True, eq=False)
class RealResults(Results):
    """Of sums of real numbers: sum · factor + bias, and what stages make of that.

    factor, bias: float32 (outputs). sums: what the sums are held to.
    """

    factor: np.ndarray
    bias: np.ndarray
    stages: tuple[RealStage, ...]
    sums: Accuracy

    @property
    def accuracy(self) -> Accuracy:
        """That of the sums and of what functions make of them."""
        return accuracy_with(self.sums, functions_of(self.stages))

    def named(self, family: str) -> str:
        """With what is computed behind."""
        return family_with(family, self.stages)

    @property
    def others(self) -> list[Layout]:
        """What the stages read."""
        return others_of(self.stages)

    def constants(self, arrange: Arrange) -> list[np.ndarray]:
        """Bias, factor, and those of the stages."""
        own = [arrange(numbers.astype(np.float32)) for numbers in (self.bias, self.factor)]
        return [*own, *constants_of(self.stages, arrange)]

    def _stored(self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any]) -> Any:
        (bias, factor, *numbers), (sample, row, column, channel) = constants, place
        target = T.alloc_buffer((PACKED,), self.y.stored, scope="local")
        for i, result in enumerate(sums):
            output = T.Bind(channel + i)
            where = output, (sample, row, column, output)
            value = composed(self.stages, result * factor[output] + bias[output], 1, where, numbers, others)
            T.buffer_store(target, value, [i])
        return target
