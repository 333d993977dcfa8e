"""A budget of bytes of the file: it needs no step of its own, as plans are searched within it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Self

from ptqc.errors import Infeasible
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.smallest import estimated_size, lower_bound
from ptqc.passes.allocate.state import Constraint, Quantity
from ptqc.passes.quantize.prepare import CanonicalModel, Origin


@dataclass(frozen=True)
class SizeBudget(Constraint):
    """A limit on the bytes of the file: percent of the model's, bytes, or mean bits per weight ("%", "B", "bit").

    others: limits that hold as well; which one is the smallest depends on the model.
    """

    value: float
    unit: str
    others: tuple["SizeBudget", ...] = ()
    kind: ClassVar[str] = "size"
    examples: ClassVar[Mapping[str, str]] = {
        "13%": "of the size of the model's file",
        "4.5MB": "bytes: B, KB, MB, GB, or KiB, MiB, GiB",
        "4.2bit": "bits per weight, on average",
    }

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "13%", "4.5MB", "4.2bit"."""
        unit = quantity.unit
        if unit == "%":
            return cls(quantity.number, "%")
        if unit.lower() in ("bit", "bits"):
            return cls(quantity.number, "bit")
        size = quantity.bytes()
        return None if size is None else cls(size, "B")

    def both(self, other: Self) -> Self:
        return replace(self, others=(*self.others, other))

    def smallest(self, origin: Origin) -> "SizeBudget":
        """The one of several limits that decides for a model."""
        limits = (replace(self, others=()), *self.others)
        return min(limits, key=lambda one: one.limit(origin.size, origin.weights))

    def notes(self, origin: Origin) -> list[Note]:
        """Which one of several limits decides."""
        if not self.others:
            return []
        return [Note("size", "", f"of the budgets {self}, {self.smallest(origin)} is the smallest for this model")]

    def limit(self, file_bytes: int, weights: int) -> int:
        """Bytes the file may have, for a model of `file_bytes` bytes with `weights` weights."""
        match self.unit:
            case "%":
                return int(file_bytes * self.value / 100)
            case "bit":
                return int(weights * self.value / 8)
            case _:
                return int(self.value)

    def max_bytes(self, origin: Origin) -> int:
        smallest = self.smallest(origin)
        return smallest.limit(origin.size, origin.weights)

    def check(self, prepared: CanonicalModel, options: CompileOptions) -> None:
        """Raises Infeasible for a size that no file of the model has."""
        limit, bound = self.max_bytes(prepared.origin), lower_bound(prepared.model, options.bits, options.formats)
        if limit >= bound.bytes:
            return
        smallest = max(estimated_size(prepared.model, options.bits, options.formats), bound.bytes)
        percent = ceil(100 * smallest / prepared.origin.size)
        works = f"{percent}%" if percent < 100 else f"{smallest}B"
        raise Infeasible(
            f"the budget of {limit:,} bytes cannot be met: at the lowest bit widths, the weights alone take "
            f"{bound.bytes:,} bytes. Try --budget {works}: the smallest file has between {bound.bytes:,} and about "
            f"{smallest:,} bytes; the exact size is known once a compile has measured",
            smallest,
            bound.parts,
        )

    def __str__(self) -> str:
        if self.others:
            return " and ".join(map(str, (replace(self, others=()), *self.others)))
        if self.unit == "B":
            return f"{int(self.value):,} B"
        return f"{self.value:g}{'%' if self.unit == '%' else ' ' + self.unit}"
