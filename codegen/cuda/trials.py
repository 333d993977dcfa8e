"""Trials of kernels on a GPU: libraries of variants of kernels, and the process that times them (`trial_worker.py`)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ptqc.codegen.kernels.process import JOB

Axes = tuple[int, ...]
# The file in which tuning tells what is done.
DONE = "done.txt"


@dataclass(frozen=True)
class TimingEffort:
    """How well is measured. samples: sizes of batches. rounds: in which all variants of a kernel take a turn. seconds:
    after which fewer rounds have to do, and after which no further kernels are measured."""

    samples: tuple[int, ...]
    rounds: int = 15
    seconds: float = 600.0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`."""
        return cls(tuple(document["samples"]), int(document["rounds"]), float(document["seconds"]))


@dataclass(frozen=True)
class TimedVariant:
    """A variant of a kernel. label: by which it is told. kernel: the function. constants: that it takes."""

    label: str
    kernel: str
    constants: int


@dataclass(frozen=True)
class KernelTrial:
    """Variants of a kernel, the first of which is what others are compared with.

    key: of the kernel. arguments, output: types and axes of one sample.
    """

    key: str
    arguments: tuple[tuple[str, Axes], ...]
    output: tuple[str, Axes]
    variants: tuple[TimedVariant, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`."""
        arguments = tuple((dtype, tuple(axes)) for dtype, axes in document["arguments"])
        dtype, axes = document["output"]
        variants = tuple(TimedVariant(**entry) for entry in document["variants"])
        return cls(document["key"], arguments, (dtype, tuple(axes)), variants)


@dataclass(frozen=True)
class TrialJob:
    """What the process is asked for. is_emulator: whether the emulator stands in for a GPU."""

    trials: tuple[KernelTrial, ...]
    effort: TimingEffort
    is_emulator: bool

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote."""
        document = json.loads((folder / JOB).read_text())
        trials = tuple(map(KernelTrial.from_json, document["trials"]))
        return cls(trials, TimingEffort.from_json(document["effort"]), bool(document["is_emulator"]))

    def write(self, folder: Path) -> None:
        """For the process, beside the library."""
        (folder / JOB).write_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class TrialTimes:
    """Times of a trial. microseconds: by label, for each size of batch. of_first: the geometric mean over these of a
    variant's time as a share of the first one's. dropped: reasons by label."""

    key: str
    microseconds: Mapping[str, tuple[float, ...]]
    of_first: Mapping[str, float]
    dropped: Mapping[str, str]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises KeyError or TypeError for anything else."""
        times = {label: tuple(each) for label, each in document["microseconds"].items()}
        return cls(document["key"], times, document["of_first"], document["dropped"])

    def to_json(self) -> dict[str, Any]:
        """The document for the report and the store."""
        return asdict(self)
