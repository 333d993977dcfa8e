"""What becomes of a layer's codes before they are stored: tables, and sums with codes that lie in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import lookup, mathematics, requantize
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.kernel import span, vector
from ptqc.codegen.kernels.requantize import LARGEST, LARGEST_CODE, PACKED
from ptqc.codegen.program.layout import Layout

# Sample, row, column and first channel of a vector of codes.
Place = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, eq=False)
class Lookup:
    """Codes become entries[code]."""

    entries: np.ndarray
    operands = 0

    def constant(self, isa: Isa) -> np.ndarray:
        """What `apply` needs beside the codes."""
        return lookup.arranged(isa, self.entries)

    def apply(self, isa: Isa, made: Any, _places: Sequence[Place], constant: Any, _others: Sequence[Any]) -> None:
        """Replace the codes in a local buffer of PACKED vectors."""
        wide = PACKED * isa.lanes if isa.pick else isa.lanes
        for start in range(0, PACKED * isa.lanes, wide):
            codes = T.Bind(made[span(start, wide)])
            T.buffer_store(made, lookup.look_up(isa, constant, codes, wide), [span(start, wide)])


@dataclass(frozen=True, eq=False)
class Sum:
    """Codes become those of a sum with others; numbers: ratios of both and what they leave, see
    `ptqc.ir.integer_arithmetic.add`.

    own: which of the two operands these codes are. other: the layout of the other one, once that is known.
    """

    numbers: np.ndarray
    own: int
    other: Layout | None = None
    operands = 1

    def constant(self, _isa: Isa) -> np.ndarray:
        """What `apply` needs beside the codes."""
        return self.numbers.astype(np.float32)

    @property
    def fits(self) -> bool:
        """Whether no sum can leave int32."""
        ratios = np.abs(self.numbers.astype(np.float64)) * (LARGEST_CODE, LARGEST_CODE, 1)
        return bool(ratios.sum() < LARGEST)

    def apply(self, isa: Isa, made: Any, places: Sequence[Place], constant: Any, others: Sequence[Any]) -> None:
        """Replace the codes in a local buffer; places: of its vectors."""
        own = [_real(made[span(index * isa.lanes, isa.lanes)], isa.lanes) for index in range(len(places))]
        self.add(isa, own, made, places, constant, others)

    def add(
        self,
        isa: Isa,
        own: Sequence[Any],
        made: Any,
        places: Sequence[Place],
        constant: Any,
        others: Sequence[Any],
    ) -> None:
        """The same from codes as float32 vectors."""
        assert self.other is not None
        sums = []
        for codes, (sample, *place) in zip(own, places, strict=True):
            other = _real(others[0][sample, span(self.other.at(*place), isa.lanes)], isa.lanes)
            operands = (other, codes) if self.own else (codes, other)
            sums.append(T.Bind(mathematics.weighted(constant, *operands, isa.lanes, in_c=isa.kind != "llvm")))
        requantize.narrow(isa, sums, T.float32(0), made, fitting=self.fits)


Stage = Lookup | Sum


def _real(codes: Any, lanes: int) -> Any:
    return T.Cast(vector("float32", lanes), T.Cast(vector("int32", lanes), codes))


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Stages in their order."""

    stages: tuple[Stage, ...] = ()

    @property
    def others(self) -> list[Layout]:
        """Layouts of what the stages read."""
        return [stage.other for stage in self.stages if isinstance(stage, Sum) and stage.other is not None]

    def reading(self, others: Sequence[Layout]) -> "Epilogue":
        """The epilogue with the layouts of what its sums read, in their order."""
        left = iter(others)
        stages = (replace(stage, other=next(left)) if isinstance(stage, Sum) else stage for stage in self.stages)
        return Epilogue(tuple(stages))

    def then(self, stage: Stage) -> "Epilogue":
        """The epilogue with one more stage."""
        return Epilogue((*self.stages, stage))

    def constants(self, isa: Isa) -> list[np.ndarray]:
        """The constants of each stage."""
        return [stage.constant(isa) for stage in self.stages]

    def settle(
        self,
        isa: Isa,
        values: Sequence[Any],
        zero_point: Any,
        made: Any,
        places: Sequence[Place],
        constants: Sequence[Any],
        others: Sequence[Any],
        *,
        fitting: bool,
    ) -> None:
        """Fill a local buffer with what becomes of the codes of up to PACKED vectors; see `narrowing.narrow`.

        A sum that comes first takes the codes as they are rounded, before they would be packed.
        """
        first = self.stages[0] if self.stages else None
        if not isinstance(first, Sum):
            requantize.narrow(isa, values, zero_point, made, fitting=fitting)
            self.apply(isa, made, places, constants, others)
            return
        own = [requantize.rounded(isa, value, zero_point) for value in values]
        first.add(isa, own, made, places, constants[0], others[:1])
        Epilogue(self.stages[1:]).apply(isa, made, places, constants[1:], others[1:])

    def apply(
        self, isa: Isa, made: Any, places: Sequence[Place], constants: Sequence[Any], others: Sequence[Any]
    ) -> None:
        """Replace the codes in a local buffer of PACKED vectors; places: of its vectors."""
        for stage, constant in zip(self.stages, constants, strict=True):
            stage.apply(isa, made, places, constant, others[: stage.operands])
            others = others[stage.operands :]


NOTHING = Epilogue()
