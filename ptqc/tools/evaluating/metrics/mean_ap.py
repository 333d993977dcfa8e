"""Mean average precision of detectors, in %, as COCO defines it (`ptqc.evaluation.detection.precision`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.detection.precision import MeanPrecision, Truth, matched
from ptqc.tools.evaluating.metric import Case, Metric

LOWEST = "50"


@dataclass(frozen=True)
class MeanAP(Metric):
    """The label is what is in the picture. detector: how the model writes what it finds."""

    name: ClassVar[str] = "map"
    shown: ClassVar[str] = "map, map-50"
    only_lowest: bool = False
    detector: Detector = field(default_factory=Detector)

    @property
    def called(self) -> str:
        """See `Metric`."""
        return f"{self.name}-{LOWEST}" if self.only_lowest else self.name

    @property
    def title(self) -> str:  # type: ignore[override]
        """See `Metric`."""
        return "mean average precision at an overlap of 50, %" if self.only_lowest else "mAP 50-95, %"

    @classmethod
    def of(cls, parameter: str) -> "MeanAP | None":
        """See `Metric`."""
        return cls(parameter == LOWEST) if parameter in ("", LOWEST) else None

    def measure(self, case: Case) -> tuple[Any, ...]:
        """What was found in the picture, and whether it is there."""
        assert isinstance(case.label, Truth)
        try:
            result = self.detector.decode(case.outputs[0], case.label.size)
        except UsageError as error:
            raise case.refused(str(error)) from error
        return (matched(result, case.label),)

    def gathered(self, measured: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """See `Metric`."""
        result = np.empty((len(measured), 1), object)
        result[:, 0] = [one for (one,) in measured]
        return result

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        result = MeanPrecision.of(measured[:, 0])
        return 100 * (result.at_50 if self.only_lowest else result.mean)

    def details(self, measured: np.ndarray) -> dict[str, float]:
        """At single thresholds."""
        result = MeanPrecision.of(measured[:, 0])
        return {"AP50": 100 * result.at_50, "AP75": 100 * result.at_75}
