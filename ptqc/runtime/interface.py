"""What an artifact's native libraries take and give, which there are, and which of them this machine can run."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.errors import MALFORMED, TargetError, UsageError
from ptqc.execution.feeds import check_mapping, check_names, does_not_fit, not_an_array
from ptqc.runtime.lengths import Limit, SymDim, SymExpr, at, bound, read
from ptqc.utils.machine import machine, processor_features, refused_tiles

INTERFACE, KERNELS, WEIGHTS, TUNING = "interface.json", "kernels.json", "weights.bin", "tuning.json"


@dataclass(frozen=True)
class Value:
    """One input or output; None in the shape is the batch size, the same one everywhere in a call; a size that varies
    follows from the lengths of the call.

    value: what an input has to be, where the library was built for that only.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Any, ...]
    value: Any = None

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('N' if size is None else str(size) for size in self.shape)}]"

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape is one of these, whatever its batch size."""
        return len(shape) == len(self.shape) and all(
            expected is None or isinstance(expected, SymExpr) or expected == size
            for size, expected in zip(shape, self.shape, strict=True)
        )

    def batches(self, shape: Sequence[int]) -> set[int]:
        """The batch sizes that a fitting shape stands for: none or one, unless it contradicts itself."""
        return {size for size, expected in zip(shape, self.shape, strict=True) if expected is None}

    def check(self, array: Any) -> None:
        """Raises UsageError where an input is none of these."""
        if not isinstance(array, np.ndarray):
            raise not_an_array(self.name, array, str(self), self.dtype)
        self.check_kind(array.dtype, array.shape)
        if self.value is not None and not np.array_equal(array, self.value):
            raise UsageError(
                f"input {self.name!r} is {array.tolist()}; the library was built for {self.value}: give that, or run "
                "the ONNX file"
            )

    def check_kind(self, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        """Raises UsageError where nothing of this type and shape is one of these."""
        if dtype != self.dtype or not self.fits(shape):
            raise does_not_fit(self, dtype, shape)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether numbers of a type are what is expected."""
        return dtype == self.dtype

    def sized(self, batch: int, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for a batch and lengths."""
        return tuple(batch if size is None else at(size, lengths) for size in self.shape)


@dataclass(frozen=True)
class Build:
    """One library of an artifact: its instruction set, and what that needs, by the system's names."""

    isa: str
    machine: str
    features: tuple[str, ...]

    def refusal(self) -> str | None:
        """Why its instructions would kill the process on this machine, if they would."""
        system, here = platform.system(), machine()
        if (system, here) != ("Linux", self.machine):
            return f"the native library is for Linux on {self.machine}, this is {system} on {here}"
        missing = sorted(set(self.features) - processor_features())
        if missing:
            return f"the native library is for {self.isa}, this processor has no {', '.join(missing)}"
        return refused_tiles() if "amx_tile" in self.features else None


@dataclass(frozen=True)
class Interface:
    """What goes in and out of a network, and its libraries, the best first.

    tvm: the version they were built with. threads: 0 means all processors. lengths: axes that vary from call to call.
    limits: sizes that follow from lengths and have a largest.
    """

    libraries: tuple[Build, ...]
    tvm: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    threads: int = 0
    lengths: tuple[SymDim, ...] = ()
    limits: tuple[Limit, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read interface.json. Raises TargetError when it is missing or not one."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                libraries=tuple(
                    Build(str(entry["isa"]), str(entry["machine"]), tuple(entry["features"]))
                    for entry in document["libraries"]
                ),
                tvm=str(document["tvm"]),
                inputs=_values(document["inputs"]),
                outputs=_values(document["outputs"]),
                threads=int(document["threads"]),
                lengths=tuple(SymDim(**entry) for entry in document.get("lengths", ())),
                limits=tuple(map(Limit.from_json, document.get("limits", ()))),
            )
        except (OSError, *MALFORMED) as error:
            raise TargetError(f"{path} does not describe a native library: {type(error).__name__}: {error}") from error

    @property
    def runnable(self) -> list[str]:
        """Instruction sets of the libraries that this machine can run."""
        return [build.isa for build in self.libraries if build.refusal() is None]

    def check(self, feeds: Mapping[str, np.ndarray]) -> tuple[int | None, dict[str, int]]:
        """The batch size of inputs that fit, None when there is none, and their lengths.

        Raises UsageError for what does not fit.
        """
        self.check_names(feeds)
        for value in self.inputs:
            value.check(feeds[value.name])
        shapes = {name: array.shape for name, array in feeds.items()}
        lengths = self.lengths_of(shapes)
        return self.batch(shapes), lengths

    def check_names(self, feeds: Mapping[str, Any]) -> None:
        """Raises UsageError where inputs of other names were given, or nothing with names."""
        check_mapping(feeds)
        check_names(feeds, [value.name for value in self.inputs])

    def batch(self, shapes: Mapping[str, Sequence[int]]) -> int | None:
        """The batch size of inputs of fitting shapes; None when there is none. Raises UsageError for several."""
        batches = {size for value in self.inputs for size in value.batches(shapes[value.name])}
        if len(batches) > 1:
            raise UsageError(f"the inputs have batch sizes {sorted(batches)}; expected the same one")
        return next(iter(batches), None)

    def lengths_of(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The lengths of inputs of fitting shapes. Raises UsageError where one is not allowed, or they do not agree."""
        lengths = bound([(value.shape, shapes[value.name]) for value in self.inputs])
        message = ", ".join(f"{name} = {size}" for name, size in lengths.items())
        for length in self.lengths:
            if lengths[length.name] < length.least:
                least = f"the library takes {length.least} or more"
                raise UsageError(f"the inputs have {length.name} = {lengths[length.name]}; {least}")
        for value in self.inputs:
            shape = tuple(shapes[value.name])
            if any(isinstance(e, SymExpr) and e.at(lengths) != s for s, e in zip(shape, value.shape, strict=True)):
                raise UsageError(
                    f"input {value.name!r} is {value.dtype} {list(shape)}; expected {value} with {message}"
                )
        for limit in self.limits:
            if not limit.allows(lengths):
                raise UsageError(f"the inputs have {message}; the network takes {limit.size} up to {limit.most}")
        return lengths

    def no_outputs(self, lengths: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
        """The outputs of no samples. lengths: of the inputs, where they vary."""
        return {value.name: np.empty(value.sized(0, lengths or {}), value.dtype) for value in self.outputs}

    def choose(self, isa: str = "") -> Build:
        """The best library that this machine can run, or the one of an instruction set. Raises TargetError."""
        builds = [build for build in self.libraries if isa in ("", build.isa)]
        if not builds:
            there = ", ".join(build.isa for build in self.libraries)
            raise TargetError(f"there is no native library for {isa!r}; there are: {there or 'none'}")
        refusals = [build.refusal() for build in builds]
        if None not in refusals:
            message = "; ".join(filter(None, refusals))
            raise TargetError(f"{message}; compile for an instruction set that this machine has, or run model.onnx")
        return builds[refusals.index(None)]


def library_file(isa: str) -> str:
    """The name of the library for an instruction set. Raises TargetError for what would lie in another folder."""
    if not re.fullmatch(r"[\w-]+", isa):
        raise TargetError(f"{isa!r} is no instruction set: the description of the library was changed")
    return f"{isa}.so"


def _values(entries: Sequence[Mapping[str, Any]]) -> tuple[Value, ...]:
    return tuple(
        Value(entry["name"], np.dtype(entry["dtype"]), tuple(map(read, entry["shape"])), entry.get("value"))
        for entry in entries
    )
