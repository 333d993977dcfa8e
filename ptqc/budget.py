"""What the user allows: a size in percent, bytes or bits per weight, a latency, memory, caches, a loss of outputs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar

from ptqc.errors import UsageError
from ptqc.utils.arguments import shown

One = str | float  # a float is a fraction of the model's size, an int (which is a float to type checkers) bytes
Given = One | Sequence[One] | None

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
KNOWN = (
    "a percentage of the model's size (13%), a size (4.5MB, 900KiB, 120000B), mean bits per weight (4.2bit), "
    "a latency (2ms, 800us), one of the library that a target builds (2ms@cpu, 50us@cuda), memory when loaded and run "
    "(60MBram), a decoder's caches (25%cache of their bytes in float32, 4MBcache), or what the outputs may lose "
    "(0.02nat, 99%same, 1%drop)"
)
# Behind a unit of bytes: of memory, not of the file.
RAM = "ram"
# Behind a percentage or a unit of bytes: of the caches of a decoder.
CACHE = "cache"
SAME, DROP = "%same", "%drop"
# How a budget writes the units that losses are measured in, by the name that `ptqc.losses` gives them.
LOSS_UNITS = {
    "nat": "nat",
    "nat per detection": "nat/detection",
    "relative squared error": "relative",
    "cosine distance": "cosine",
}


@dataclass(frozen=True)
class Budget:
    """A limit on the written file. value is a percentage, bytes or bits per weight, as unit says ("%", "B", "bit")."""

    value: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read "13%", "4.5MB", "4.2bit". Raises UsageError naming the text and the known forms."""
        found = parse(text)
        if not isinstance(found, Budget):
            raise UsageError(f"budget {text!r} is a {found.kind}; a size is needed here")
        return found

    def limit(self, file_bytes: int, weights: int) -> int:
        """Bytes the written file may have, for a model of `file_bytes` bytes with `weights` weights."""
        match self.unit:
            case "%":
                return int(file_bytes * self.value / 100)
            case "bit":
                return int(weights * self.value / 8)
            case _:
                return int(self.value)

    def __str__(self) -> str:
        if self.unit == "B":
            return f"{int(self.value):,} B"
        return f"{self.value:g}{'%' if self.unit == '%' else ' ' + self.unit}"


@dataclass(frozen=True)
class Latency:
    """A limit on the time for one run of one sample, in nanoseconds: on one thread of this machine's processor, or as
    it is predicted for a GPU.

    target: whose library has to keep it; "": the file in ONNX Runtime has to.
    """

    nanoseconds: float
    target: str = ""
    kind: ClassVar[str] = "latency"

    def __str__(self) -> str:
        return f"{self.nanoseconds / 1e6:g} ms{f'@{self.target}' if self.target else ''}"


@dataclass(frozen=True)
class MemoryBudget:
    """A limit on the bytes that the file needs when it is loaded and run on one sample."""

    bytes: int
    kind: ClassVar[str] = "memory"

    def __str__(self) -> str:
        return f"{self.bytes:,} B of memory"


@dataclass(frozen=True)
class CacheBudget:
    """A limit on the bytes of a decoder's caches of keys and values, at the longest text that samples or model show.

    unit: "%" of their bytes in float32, or "B".
    """

    value: float
    unit: str
    kind: ClassVar[str] = "cache"

    def limit(self, float_bytes: int) -> int:
        """Bytes that caches may take which have so many in float32."""
        return int(float_bytes * self.value / 100) if self.unit == "%" else int(self.value)

    def __str__(self) -> str:
        return f"{self.value:g}%cache" if self.unit == "%" else f"{int(self.value):,} B of caches"


@dataclass(frozen=True)
class LossBudget:
    """A limit on what the outputs lose against the float model's.

    unit: SAME (value: percent of predictions that keep their top class), DROP (points of the user's score that may be
    lost) or one of LOSS_UNITS (mean loss).
    """

    value: float
    unit: str
    kind: ClassVar[str] = "loss"

    @property
    def limit(self) -> float:
        """What may be lost at most: of predictions a share, of a score points, else a mean loss."""
        return 1 - self.value / 100 if self.unit == SAME else self.value

    def __str__(self) -> str:
        return f"{self.value:g}{self.unit}"


Limit = Budget | CacheBudget | Latency | LossBudget | MemoryBudget
KINDS = {"size": Budget, "latency": Latency, "loss": LossBudget, "memory": MemoryBudget, "cache": CacheBudget}


@dataclass(frozen=True)
class Budgets:
    """At most one limit of each kind. strict: a file that keeps all but its size poorly is not delivered."""

    size: Budget | None = None
    latency: Latency | None = None
    loss: LossBudget | None = None
    memory: MemoryBudget | None = None
    cache: CacheBudget | None = None
    strict: bool = False

    @classmethod
    def parse(cls, given: object, *, strict: bool = False) -> "Budgets":
        """Read what `Given` is. Raises UsageError where a kind is given twice, or as `parse` does."""
        several = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
        found = [parse(one) for one in several if one is not None]
        of_kind = {name: [limit for limit in found if isinstance(limit, kind)] for name, kind in KINDS.items()}
        if any(len(limits) > 1 for limits in of_kind.values()):
            told = ", ".join(map(str, several))
            raise UsageError(f"the budgets {told} include several of one kind; give at most one of {', '.join(KINDS)}")
        return cls(**{name: limits[0] for name, limits in of_kind.items() if limits}, strict=strict)  # type: ignore[arg-type]


def parse(given: object) -> Limit:
    """Read "13%", "4.5MB", "4.2bit", "2ms", "60MBram", "25%cache", "0.02nat", "99%same", "1%drop", a fraction
    or bytes.

    Raises UsageError naming it and the known forms.
    """
    if isinstance(given, str):
        return _of_text(given)
    if isinstance(given, Real) and not isinstance(given, bool):
        number = float(given)
        if isinstance(given, Integral) and 1 < number <= 100:
            raise UsageError(f"budget {given} would be {given} bytes; did you mean '{given}%'?")
        if isinstance(given, Integral) and number > 0:
            return Budget(number, "B")
        if 0 < number <= 1:
            return Budget(float(f"{100 * number:.12g}"), "%")
    raise UsageError(
        f"budget {shown(given)} is neither a fraction of the model's size (0.13) nor a number of bytes (200_000); "
        f"as text, give {KNOWN}"
    )


def _of_text(text: str) -> Limit:
    pattern = r"\s*([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*(%\s*[a-z]*|[A-Za-zµ/]+)\s*(?:@\s*([\w-]+)\s*)?"
    match = re.fullmatch(pattern, text)
    if match is None:
        percent = f"; did you mean {text.strip()}%?" if text.strip().isdecimal() and 0 < int(text) <= 100 else ""
        raise UsageError(f"budget {text!r} is not understood{percent}; give {KNOWN}")
    number, unit, target = float(match[1]), "".join(match[2].split()), match[3] or ""
    if target and unit not in NANOSECONDS:
        raise UsageError(
            f"budget {text!r} is not a latency, and only a latency can name a library with @; give {KNOWN}"
        )
    if number <= 0:
        raise UsageError(f"budget {text!r} must be positive; give {KNOWN}")
    if unit == "%":
        return Budget(number, "%")
    if unit.lower() in ("bit", "bits"):
        return Budget(number, "bit")
    if unit.upper() in UNITS:
        return Budget(number * UNITS[unit.upper()], "B")
    if unit.lower().endswith(RAM) and (found := UNITS.get(unit[: -len(RAM)].upper())) is not None:
        return MemoryBudget(int(number * found))
    if unit.lower().endswith(CACHE):
        return _of_caches(text, number, unit[: -len(CACHE)])
    if unit in NANOSECONDS:
        return Latency(number * NANOSECONDS[unit], target)
    if unit in (SAME, DROP) and number >= 100:
        raise UsageError(f"budget {text!r} must be below 100 %; give {KNOWN}")
    if unit in (SAME, DROP, *LOSS_UNITS.values()):
        return LossBudget(number, unit)
    raise UsageError(f"budget {text!r} has the unknown unit {unit!r}; give {KNOWN}")


def _of_caches(text: str, number: float, unit: str) -> CacheBudget:
    """unit: what is in front of "cache"."""
    if unit == "%" and number <= 100:
        return CacheBudget(number, "%")
    if (bytes_ := UNITS.get(unit.upper())) is not None:
        return CacheBudget(number * bytes_, "B")
    raise UsageError(f"budget {text!r} is neither a share of caches up to 100 % nor their size; give {KNOWN}")
