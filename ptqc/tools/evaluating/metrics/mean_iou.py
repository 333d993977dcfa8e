"""Mean intersection over union of masks, as segmentation is scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptqc.errors import CalibrationError
from ptqc.evaluation.masks import joined, mean_iou, overlaps
from ptqc.tools.evaluating.metric import Case, Metric


@dataclass(frozen=True)
class MeanIoU(Metric):
    """The judged output has scores of classes for each pixel, or the classes themselves; the label is the mask.

    Pixels of the mask below 0 do not count, nor those of 255 where the model has fewer classes. The pixels of all
    pictures are added up before classes are averaged.
    """

    name: ClassVar[str] = "mean-iou"
    title = "mean IoU, %"

    @classmethod
    def of(cls, parameter: str) -> "MeanIoU | None":
        """See `Metric`."""
        return None if parameter else cls()

    def measure(self, case: Case) -> tuple[np.ndarray]:
        """The overlaps of one picture."""
        try:
            return (overlaps(case.answers[0], case.whole("classes"), f"output {case.output!r}"),)
        except CalibrationError as error:
            raise case.refused(str(error)) from error

    def gathered(self, measured: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """See `Metric`."""
        return joined([counts for (counts,) in measured])

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        return mean_iou(measured)
