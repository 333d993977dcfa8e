"""One weight and what its candidates follow from: a problem that can be solved anywhere."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import numpy as np

from ptqc.formats import Format, Scaled
from ptqc.ir.layers import Layer
from ptqc.ir.quantized_weight import Solution
from ptqc.passes.quantize import gptq, moments
from ptqc.passes.quantize.column_order import ColumnOrder
from ptqc.utils.executors.base import Packed, UnitOfWork

ROUNDS = 1  # of coordinate descent; reconstruction does more for the plan that is chosen

Found = list[tuple[Solution, float]]


@dataclass(frozen=True, eq=False)
class WeightProblem(UnitOfWork[Found]):
    """A weight that is to be rounded in several formats.

    values: of the weight's shape. forms: that suit it. axis: of its channels. powers: whether scales are to be powers
    of two. layer: that it is fitted to; None where each number is rounded for itself. second, held: second moments
    (groups, d, d), or their diagonals (groups, d), to fit to and to judge by. alone: whether rounding each number for
    itself competes with GPTQ. together: formats that are solved at a time. numbers: of the weight, that are worked on
    together; None: all.
    """

    values: np.ndarray
    forms: Sequence[Scaled]
    axis: int
    powers: bool = False
    layer: Layer | None = None
    second: np.ndarray | None = None
    held: np.ndarray | None = None
    alone: bool = False
    together: int = 1
    numbers: int | None = None

    def solve(self) -> Found:
        """Each format's solution with its error, relative to the power of the layer's output or of the weight."""
        return list(self._rounded() if self.layer is None else self._fitted(self.layer))

    def _fitted(self, layer: Layer) -> Iterable[tuple[Solution, float]]:
        along = attrgetter("along_inputs")
        for _, forms in groupby(sorted(self.forms, key=along), along):
            some = list(forms)
            yield from self._fitted_in(ColumnOrder.of(some[0], layer), layer, some)

    def _fitted_in(self, order: ColumnOrder, layer: Layer, forms: Sequence[Scaled]) -> Iterable[tuple[Solution, float]]:
        assert self.second is not None
        assert self.held is not None
        second, held, matrix = (
            order.moments(self.second),
            order.moments(self.held),
            order.rows(layer.matrix(self.values)),
        )
        power = moments.total_error(matrix, held) or 1.0
        tried: list[np.ndarray | gptq.Factored] = [second]
        if second.ndim == 3:
            neighbours = max(form.together for form in forms)
            tried = [gptq.Factored.of(second, together=neighbours)]
        if self.alone:
            # Against its own diagonal alone GPTQ is nearest rounding; it wins where the rest of H misleads.
            tried.append(np.diagonal(second, axis1=1, axis2=2))
        starts = range(0, len(forms), self.together)
        for some in (forms[first : first + self.together] for first in starts):
            grids = gptq.grids_for(matrix, second, some, keeps_sign=layer.keeps_sign, powers=self.powers)
            targets = [gptq.RoundingTarget.of(matrix, grids[form], form, ROUNDS) for form in some]
            answers = zip(*(gptq.round_best(targets, one, self.numbers) for one in tried), strict=True)
            for form, several in zip(some, answers, strict=True):
                errors = {rounded: moments.total_error(matrix - rounded.weight, held) / power for rounded in several}
                rounded, error = min(errors.items(), key=lambda item: item[1])
                codes = np.ascontiguousarray(layer.tensor(order.restored(rounded.codes)))
                yield Solution(form, codes, rounded.scale.reshape(-1), self.axis), error

    def _rounded(self) -> Iterable[tuple[Solution, float]]:
        power = _power(self.values) or 1.0
        for form in self.forms:
            solution = Solution(form, *form.rounded(self.values, self.axis, powers=self.powers), self.axis)
            yield solution, _power(self.values, solution.weight) / power

    def pack(self) -> Packed:
        """Options as JSON, and the arrays that there are."""
        document = {
            "forms": [str(form) for form in self.forms],
            "axis": self.axis,
            "powers": self.powers,
            "layer": None if self.layer is None else asdict(self.layer),
            "alone": self.alone,
            "together": self.together,
            "numbers": self.numbers,
        }
        arrays = {"values": self.values, "second": self.second, "held": self.held}
        return document, {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def unpack(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> Self:
        """Inverse of `pack`."""
        layer: dict[str, Any] | None = document["layer"]
        lists = {name: tuple(x) for name, x in (layer or {}).items() if isinstance(x, list)}
        given: dict[str, Any] = {
            **document,
            **arrays,
            "forms": [Format.parse(text) for text in document["forms"]],
            "layer": None if layer is None else Layer(**{**layer, **lists}),
        }
        return cls(**given)

    @classmethod
    def pack_result(cls, result: Found) -> Packed:
        """A list of formats, axes and errors, and the arrays of each by its number."""
        arrays = dict[str, np.ndarray]()
        for number, (solution, _) in enumerate(result):
            arrays |= {f"codes {number}": solution.codes, f"scale {number}": solution.scale}
        return [[str(solution.form), solution.axis, error] for solution, error in result], arrays

    @classmethod
    def unpack_result(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> Found:
        """Inverse of `pack_result`."""
        return [
            (Solution(Format.parse(form), arrays[f"codes {number}"], arrays[f"scale {number}"], axis), error)
            for number, (form, axis, error) in enumerate(document)
        ]


def _power(values: np.ndarray, others: np.ndarray | float = 0.0) -> float:
    """The sum of the squares of what two arrays differ by."""
    difference = values.astype(np.float64)
    difference -= others
    difference *= difference
    return float(difference.sum())
