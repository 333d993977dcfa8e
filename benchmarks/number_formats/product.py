"""What ptqc itself can choose, by its own code: floats, even grids, codebooks; and its 8-bit activations."""

from dataclasses import dataclass

import numpy as np

from number_formats.base import SCALE_BITS, NumberFormat, Rows, Stored
from ptqc.calibration.ranges import RangeObserver
from ptqc.formats import BFLOAT16, Scaled, to_bfloat16
from ptqc.passes.quantize.calibrate import observed_params

CODE_BITS = BYTE_BITS = 8
PARAMETER_BITS = 32 + CODE_BITS  # scale and zero point


@dataclass(frozen=True)
class ProductFormat(NumberFormat):
    """A format of ptqc that has a scale for every channel."""

    name: str
    form: Scaled

    def fits(self, rows: Rows) -> bool:
        return self.form.fits(rows.width, rows.count)

    def store(self, rows: Rows) -> Stored:
        grid = self.form.grid(rows.values, rows.importance)
        codes = grid.rounded(rows.values, rows.importance)
        *stored, _ = self.form.pack(codes.astype(np.int8), grid.scale)
        shared = [array.tobytes() for array in self.form.shared.values()]
        count = len(self.form.planes())
        tables = sum(array.nbytes for array in stored[count:] if array.tobytes() not in shared)
        codes_of_one = sum(array.nbytes for array in stored[:count]) / rows.values.size
        bits = BYTE_BITS * (codes_of_one * rows.size + tables) + rows.count * SCALE_BITS
        return Stored(np.asarray(codes * grid.scale[:, None], np.float32), bits)


@dataclass(frozen=True)
class HalfFormat(NumberFormat):
    """Floats of 16 bits: float16 or bfloat16."""

    name: str

    def store(self, rows: Rows) -> Stored:
        half = to_bfloat16(rows.values) if self.name == str(BFLOAT16) else rows.values.astype(self.name)
        return Stored(half.astype(np.float32), rows.size * 16)


@dataclass(frozen=True)
class AffineFormat(NumberFormat):
    """uint8 with one scale and zero point for all rows, by the range of least squared error."""

    name: str = "uint8"

    def store(self, rows: Rows) -> Stored:
        observer = RangeObserver()
        observer.update(rows.values)
        return Stored(observed_params(observer).rounded(rows.values), rows.size * CODE_BITS + PARAMETER_BITS)
