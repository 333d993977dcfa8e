"""What the user allows: a size in percent, bytes or mean bits per weight."""

import re
from dataclasses import dataclass

from ptqc.errors import UsageError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
KNOWN = "a percentage of the model's size (13%), a size (4.5MB, 900KiB, 120000B) or mean bits per weight (4.2bit)"


@dataclass(frozen=True)
class Budget:
    """A limit on the written file. value is a percentage, bytes or bits per weight, as unit says ("%", "B", "bit")."""

    value: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read "13%", "4.5MB", "4.2bit". Raises UsageError naming the text and the known forms."""
        match = re.fullmatch(r"\s*([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*(%|[A-Za-z]+)\s*", text)
        if match is None:
            raise UsageError(f"budget {text!r} is not understood; give {KNOWN}")
        number, unit = float(match[1]), match[2]
        if number <= 0:
            raise UsageError(f"budget {text!r} must be positive; give {KNOWN}")
        if unit == "%":
            return cls(number, "%")
        if unit.lower() in ("bit", "bits"):
            return cls(number, "bit")
        if unit.upper() in UNITS:
            return cls(number * UNITS[unit.upper()], "B")
        raise UsageError(f"budget {text!r} has the unknown unit {unit!r}; give {KNOWN}")

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
        return f"{self.value:g}{'%' if self.unit == '%' else ' ' + self.unit}"
