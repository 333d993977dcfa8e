"""What a candidate is: the numbers that replace a weight, and the bias that goes with them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptqc.formats import Format
from ptqc.ir.layers import Weight


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A weight in one format.

    codes: of the weight's shape, as the format encodes it: int8 codes, uint8 indices, float16 values.
    scale: float32 per index of the channel axis where the format is scaled; a palette's values. axis: the channel axis.
    """

    form: Format
    codes: np.ndarray
    scale: np.ndarray
    axis: int

    def by_channel(self) -> "QuantizedWeight":
        """The same numbers of a matrix with a row for each channel."""
        if self.axis == 0 or self.codes.ndim != 2:
            return self
        return QuantizedWeight(self.form, np.ascontiguousarray(self.codes.T), self.scale, 0)

    def by_tap(self) -> "QuantizedWeight":
        """The same numbers of a convolution's weight with its inputs as the last axis, tap by tap."""
        if math.prod(self.codes.shape[2:]) == 1:
            return self
        return QuantizedWeight(self.form, np.ascontiguousarray(np.moveaxis(self.codes, 1, -1)), self.scale, self.axis)

    @property
    def weight(self) -> np.ndarray:
        """The real values, float32, as they will be used."""
        return self.form.decode(self.codes, self.scale, self.axis)


def with_tables(solutions: Mapping[str, QuantizedWeight], weights: Iterable[Weight]) -> dict[str, QuantizedWeight]:
    """Solutions by weight, and by name those of tables that have a weight's numbers."""
    tied = {w.table: solutions[w.name].by_channel() for w in weights if w.table is not None and w.name in solutions}
    return {**solutions, **tied}


# Weight name -> its solutions, each with its error on held-back columns, relative to the output's power.
Candidates = Mapping[str, Sequence[tuple[QuantizedWeight, float]]]


@dataclass(frozen=True, eq=False)
class QuantizedParameters:
    """The numbers of a whole model: name of weight or table -> solution, layer name -> bias (None: no bias).

    solved_alone: layers with numbers as they were solved alone, as there was no time for more. losses: of the numbers
    that were given and of these, on held-back samples, as the pass that found them measures it. draw: the
    reconstruction that they are of. samples: how many they were fitted to and judged on, and how many there would have
    been with enough time.
    """

    weights: Mapping[str, QuantizedWeight]
    biases: Mapping[str, np.ndarray | None]
    solved_alone: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    draw: int = 0
    samples: tuple[int, int] = (0, 0)
