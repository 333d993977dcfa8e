"""Tables of measured times of kernels on a GPU, and the variants that they choose: `tuning.json` of an artifact."""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ptqc.codegen.cuda.isa import TARGET
from ptqc.codegen.cuda.trials import TrialTimes
from ptqc.errors import UsageError
from ptqc.runtime.cuda import CudaDevice
from ptqc.runtime.interface import TUNING

# What another variant has to gain, of the time of the one that is predicted to be fastest.
MARGIN = 0.02


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel in several variants. first: the one that is predicted to be fastest. predicted: microseconds of the
    first one for the same sizes of batch, where the chip is known."""

    first: str
    times: TrialTimes
    predicted: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        result = cls(document["first"], TrialTimes.from_json(document["times"]), tuple(document["predicted"]))
        if not all(each > 0 for each in result.times.of_first.values()) or result.first not in result.times.of_first:
            raise ValueError(f"{document} is not a kernel with the times of its variants")
        return result

    def to_json(self) -> dict[str, Any]:
        """The document for stores and artifacts."""
        return {"first": self.first, "times": self.times.to_json(), "predicted": list(self.predicted)}

    @property
    def chosen(self) -> str:
        """The fastest variant, where it gains enough."""
        shares = self.times.of_first
        best = min(shares, key=shares.__getitem__)
        return best if shares[best] < 1 - MARGIN else self.first

    @property
    def of_first(self) -> float:
        """The time of the chosen variant as a share of the first one's."""
        return 1.0 if self.chosen == self.first else self.times.of_first[self.chosen]

    @property
    def of_measured(self) -> Iterator[float]:
        """Predicted times of the first variant as shares of the measured ones."""
        for predicted, measured in zip(self.predicted, self.times.microseconds[self.first], strict=False):
            yield predicted / measured


@dataclass(frozen=True)
class GpuTimes:
    """What was measured on a GPU. samples: sizes of batches. kernels: by `tuning.kernel_key`. missing: why kernels of
    the library are not among them, where some are not."""

    device: CudaDevice
    samples: tuple[int, ...]
    kernels: Mapping[str, MeasuredKernel]
    missing: str = ""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises ValueError, KeyError, TypeError or AttributeError for anything else."""
        kernels = {key: MeasuredKernel.from_json(one) for key, one in document["kernels"].items()}
        device = CudaDevice.from_json(document["device"])
        return cls(device, tuple(map(int, document["samples"])), kernels, str(document["missing"]))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Of a file, or of the folder of an artifact. Raises UsageError where there is none."""
        file = path / TARGET / TUNING if path.is_dir() else path
        try:
            return cls.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{file} has no times of kernels on a GPU: {type(error).__name__}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The document for jobs and artifacts."""
        return {
            "device": self.device.to_json(),
            "samples": list(self.samples),
            "kernels": {key: one.to_json() for key, one in sorted(self.kernels.items())},
            "missing": self.missing,
        }

    @property
    def report(self) -> dict[str, Any]:
        """For the manifest: how many kernels, what other variants gain, how the predictions were."""
        shares = sorted(one.of_first for one in self.kernels.values() if one.of_first < 1)
        predicted = [share for one in self.kernels.values() for share in one.of_measured]
        document = {
            "gpu": self.device.name,
            "driver": self.device.driver,
            "samples": list(self.samples),
            "kernels": len(self.kernels),
            "of_first": shares,
            "predicted_of_measured": [min(predicted), statistics.median(predicted), max(predicted)]
            if predicted
            else [],
            "dropped": sum(len(one.times.dropped) for one in self.kernels.values()),
            "missing": self.missing,
        }
        return {"tuned": _summary(document), "tuning": document}


def _summary(result: Mapping[str, Any]) -> str:
    """In words."""
    shares, ratios = result["of_first"], result["predicted_of_measured"]
    message = (
        f"{len(shares):,} of {result['kernels']:,} kernels have other tiles than usual, by times on {result['gpu']}"
    )
    if shares:
        message += f", and take {statistics.median(shares):.2f} of the time in the median"
    if ratios:
        message += f"; predicted times are {ratios[1]:.2f} of the measured ones ({ratios[0]:.2f} to {ratios[2]:.2f})"
    return message + (f"; not all were measured: {result['missing']}" if result["missing"] else "")
