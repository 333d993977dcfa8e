"""What tuning found for the kernels of a library: read from an artifact, and written to one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast, get_args

from ptqc.codegen.cpu.options import NOT_TUNED, Tuning
from ptqc.codegen.kernels.tiling import Cut
from ptqc.errors import UsageError
from ptqc.runtime.interface import TUNING

DELIVERED = "cpu"  # the folder of an artifact that has the target's files is named as the target


@dataclass(frozen=True)
class TunedKernel:
    """The cut of a kernel, and its time as a share of that of the kernel's first cut; 1 where that one stayed."""

    cut: Cut
    of_first: float

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        cut, of_first = Cut(**document["cut"]), float(document["of_first"])
        if not all(type(number) is int and number > 0 for number in cut) or not 0 < of_first <= 1:
            raise ValueError(f"{document} is not a tiling of a kernel with its share of the time")
        return cls(cut, of_first)

    def to_json(self) -> dict[str, Any]:
        """The document for stores and artifacts."""
        return {"cut": self.cut._asdict(), "of_first": self.of_first}


# By the name of a kernel with its first cut.
Table = Mapping[str, TunedKernel]


@dataclass(frozen=True)
class Request:
    """How kernels get their cuts. level: measured, as many of them; tables: of these, by instruction set."""

    level: Tuning | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)

    @classmethod
    def of(cls, tune: str | Path) -> Self:
        """What `ptqc.codegen.cpu.options.CpuOptions.tune` asks for. Raises UsageError where it is none of those."""
        if tune == NOT_TUNED:
            return cls()
        if tune in get_args(Tuning):
            return cls(level=cast("Tuning", tune))
        return cls(tables=_read(Path(tune)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(document["level"], tables_from_json(document["tables"]))

    def to_json(self) -> dict[str, Any]:
        """The document for a job."""
        return {"level": self.level, "tables": tables_to_json(self.tables)}


def tables_from_json(document: Mapping[str, Any]) -> dict[str, Table]:
    """Inverse of `tables_to_json`."""
    return {isa: {name: TunedKernel.from_json(one) for name, one in table.items()} for isa, table in document.items()}


def tables_to_json(tables: Mapping[str, Table]) -> dict[str, Any]:
    """The document for jobs and artifacts."""
    return {isa: {name: one.to_json() for name, one in table.items()} for isa, table in tables.items()}


def _read(folder: Path) -> dict[str, Table]:
    path = folder / DELIVERED / TUNING
    if not path.is_file():
        known = ", ".join((NOT_TUNED, *get_args(Tuning)))
        raise UsageError(f"tune is {str(folder)!r}; known: {known}, or a folder that a compile with one of these wrote")
    try:
        return tables_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a tuning of kernels: {type(error).__name__}: {error}") from error
