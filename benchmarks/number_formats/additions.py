"""Weights that are numbers of additions (PANN: Spingarn Eliezer et al. 2022, arXiv 2202.02783)."""

from dataclasses import dataclass

import numpy as np

from number_formats.base import SCALE_BITS, NumberFormat, Rows, Stored


@dataclass(frozen=True)
class AdditionsFormat(NumberFormat):
    """round(w / γ) with γ = ‖w‖₁ / (additions · d) for each channel: a product is so many additions on average.

    Codes are stored in as many bits as the largest one of the weight needs.
    """

    name: str
    additions: float

    def store(self, rows: Rows) -> Stored:
        step = np.maximum(np.abs(rows.values).mean(-1, keepdims=True) / self.additions, np.float32(2.0**-24))
        step = step.astype(np.float16).astype(np.float32)
        codes = np.rint(rows.values / step)
        bits = np.ceil(np.log2(2 * np.abs(codes).max() + 1))
        return Stored(np.asarray(codes * step, np.float32), float(rows.size * bits + rows.count * SCALE_BITS))
