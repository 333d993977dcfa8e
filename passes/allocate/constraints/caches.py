"""A budget of a decoder's caches of keys and values: it chooses their formats before anything else is done.

`ptqc.passes.kv_cache` chooses them; everything that is measured depends on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from ptqc.errors import UsageError
from ptqc.passes.allocate.state import Constraint, Quantity

SUFFIX = "cache"


@dataclass(frozen=True)
class CacheBudget(Constraint):
    """A limit on the bytes of caches at the longest text that samples or model show.

    unit: "%" of their bytes in float32, or "B".
    """

    value: float
    unit: str
    kind: ClassVar[str] = "cache"
    examples: ClassVar[Mapping[str, str]] = {
        "25%cache": "KV caches of a decoder, of their bytes in float32 (compile only)",
        "4MBcache": "KV caches of a decoder at the longest text of samples or model",
    }
    is_measured: ClassVar[bool] = True

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "25%cache", "4MBcache"."""
        if not quantity.unit.lower().endswith(SUFFIX):
            return None
        if quantity.unit[: -len(SUFFIX)] == "%" and quantity.number <= 100:
            return cls(quantity.number, "%")
        if (size := quantity.bytes(SUFFIX)) is not None:
            return cls(size, "B")
        raise UsageError(f"budget {quantity.text!r} is neither a share of caches up to 100 % nor their size")

    def both(self, other: Self) -> Self | None:
        return min(self, other, key=lambda one: one.value) if other.unit == self.unit else None

    def limit(self, float_bytes: int) -> int:
        """Bytes that caches may take which have so many in float32."""
        return int(float_bytes * self.value / 100) if self.unit == "%" else int(self.value)

    def __str__(self) -> str:
        return f"{self.value:g}%cache" if self.unit == "%" else f"{int(self.value):,} B of caches"
