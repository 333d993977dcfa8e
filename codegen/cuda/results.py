"""What threads do with the sums of a layer: scaled, rounded, taken through the stages behind, stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.epilogue import Epilogue, Place
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.narrowing import PACKED
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.layout import Layout


def ptx(name: str, *operands: Any) -> None:
    """An instruction by its name in PTX; results come first."""
    T.evaluate(T.ptx[name](*operands))


def held(value: Any) -> Any:
    """An int32 in a register of its own: else TVM would widen what it is made of, divisions too, along with it."""
    register = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(register, value, [0])
    return register[0]


def constants_of(requantization: Requantization, arrange: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """What `Results.store` needs, in its order."""
    return [
        arrange(requantization.bias.astype(np.int32)),
        arrange(requantization.factor.astype(np.float32)),
        np.array([requantization.zero_point], np.float32),
    ]


@dataclass(frozen=True)
class Results:
    """The output of a layer with so many channels."""

    y: Layout
    isa: Isa
    outputs: int
    epilogue: Epilogue

    def store(
        self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any], out: Any
    ) -> None:
        """Settle and store PACKED neighbouring channels of a pixel, of which the first one exists.

        sums: without the bias, any 32 bits. place: of the first one. constants: bias, factor, zero point, and those of
        the stages.
        """
        made = self._settled(sums, place, constants, others)
        sample, *within = place
        target = self.y.at(*within)
        first = self.y.frame.at[0] if self.y.frame is not None else 0
        if all(size % PACKED == 0 for size in (self.outputs, self.y.plane[0], first, self.y.stride)):
            T.buffer_store(out, made[T.ramp(0, 1, PACKED)], [sample, T.ramp(target, 1, PACKED)])
            return
        for i in range(PACKED):
            with T.If(place[3] + i < self.outputs), T.Then():
                T.buffer_store(out, made[i], [sample, target + i])

    def _settled(self, sums: Sequence[Any], place: Place, constants: Sequence[Any], others: Sequence[Any]) -> Any:
        """A buffer with what is stored."""
        (bias, factor, zero, *numbers), (sample, row, column, channel) = constants, place
        made = T.alloc_buffer((PACKED,), self.y.stored, scope="local")
        values = []
        for i, found in enumerate(sums):
            total = T.reinterpret("int32", found) + bias[channel + i]
            values.append(T.Cast("float32", total) * factor[channel + i])
        if self.y.dtype == "float32":
            for i, value in enumerate(values):
                T.buffer_store(made, value, [i])
            return made
        places = [(sample, row, column, channel + i) for i in range(len(values))]
        self.epilogue.settle(self.isa, values, zero[0], made, places, numbers, others, fitting=False)
        return made
