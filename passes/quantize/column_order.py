"""The order of a layer's columns in which the neighbours of a format are neighbours.

A layer's matrix has its columns as the file has them: of a convolution all taps of an input, then those of the next.
Formats whose neighbours are inputs, of one tap each, are solved with the columns tap by tap.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.formats import Format
from ptqc.ir.layers import Layer


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """places (d,): of the columns, in their new order; None: as they are."""

    places: np.ndarray | None = None

    @classmethod
    def of(cls, form: Format | type[Format], layer: Layer) -> "ColumnOrder":
        """What a format needs of a layer."""
        if not form.along_inputs or layer.taps == 1:
            return cls()
        return cls(np.arange(layer.width).reshape(-1, layer.taps).T.reshape(-1))

    def rows(self, matrix: np.ndarray) -> np.ndarray:
        """Rows (…, d) in the new order."""
        return matrix if self.places is None else np.take(matrix, self.places, -1)

    def restored(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of `rows`."""
        return rows if self.places is None else np.take(rows, np.argsort(self.places), -1)

    def moments(self, second: np.ndarray) -> np.ndarray:
        """Second moments (groups, d, d), or their diagonals (groups, d), in the new order."""
        if self.places is None or second.ndim == 2:
            return self.rows(second)
        return np.take(self.rows(second), self.places, 1)
