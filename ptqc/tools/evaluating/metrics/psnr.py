"""Peak signal to noise ratio of pictures, in dB: 20 log10(peak) − 10 log10(mean squared error)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.tools.evaluating.metric import Case, Metric

BEST = 100.0  # dB, what equal pictures have
BYTES = 255.0


@dataclass(frozen=True)
class Psnr(Metric):
    """The label is the picture; without labels, answers are compared with those of the first model.

    peak: the largest value of a pixel; 0: 255 where the answer is of integers, else 1.
    """

    name: ClassVar[str] = "psnr"
    title = "PSNR, dB"
    needs_labels: ClassVar[bool] = False
    peak: float = 0.0

    @classmethod
    def of(cls, parameter: str) -> "Psnr | None":
        """See `Metric`."""
        return cls(float(parameter or 0)) if parameter.isdecimal() or not parameter else None

    def measure(self, case: Case) -> tuple[float, ...]:
        """The ratio of one picture."""
        answer, wanted = case.answers[0], case.wanted
        if answer.size != wanted.size or answer.squeeze().shape != wanted.squeeze().shape:
            raise case.refused(f"output {case.output!r} has shape {answer.shape}, and the label {wanted.shape}")
        peak = self.peak or (BYTES if answer.dtype.kind in "iu" else 1.0)
        error = np.square(answer.squeeze().astype(np.float64) - wanted.squeeze()).mean()
        return (float(np.minimum(BEST, 20 * np.log10(peak) - 10 * np.log10(error))) if error else BEST,)

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        return float(measured.mean())
