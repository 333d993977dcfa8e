"""What a network in C holds in flash: arrays, which equal ones share, and how they are written."""

from dataclasses import dataclass, field
from textwrap import fill

import numpy as np

from ptqc.codegen.c.packing import PackedWeights

C_TYPES = {
    "uint8": "uint8_t",
    "int8": "int8_t",
    "uint16": "uint16_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float32": "float",
    "bool": "uint8_t",
}
LINE = 112


@dataclass
class Constants:
    """Arrays by what they hold. arrays: by name, in the order in which they were asked for."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _names: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def add(self, array: np.ndarray, kind: str) -> str:
        """The name of an array. kind: what it is called, with a number behind."""
        array = np.ascontiguousarray(array)
        key = str(array.dtype), array.tobytes()
        if key not in self._names:
            self._names[key] = f"{kind}_{len(self.arrays)}"
            self.arrays[self._names[key]] = array
        return self._names[key]

    def weights(self, packed: PackedWeights) -> str:
        """The initializer of a `struct weights`."""
        table = "0" if packed.table is None else self.add(packed.table.astype(np.int8), "codes")
        widths = "0" if packed.widths is None else self.add(packed.widths.astype(np.uint8), "widths")
        data = self.add(packed.data, "weights")
        numbers = f"{packed.row}, {packed.taps}, {packed.kind.upper()}, {packed.bits}, {packed.low}, {packed.step}"
        return f"{{{data}, {table}, {widths}, {numbers}}}"

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def __str__(self) -> str:
        return "\n".join(map(self._written, self.arrays))

    def _written(self, name: str) -> str:
        array = self.arrays[name].reshape(-1)
        head = f"static const {C_TYPES[str(array.dtype)]} {name}[{array.size}] = {{"
        body = fill(", ".join(map(_literal, array)), LINE, break_on_hyphens=False)
        return f"{head}\n{body}}};\n"


def _literal(number: np.generic) -> str:
    if isinstance(number, np.floating):
        return real(float(number))
    return str(int(number))


def real(number: float) -> str:
    """A float32 as C99 writes it, to the bit."""
    value = np.float32(number)
    if np.isnan(value):
        return "(0.0f / 0.0f)"
    if np.isinf(value):
        return "(1.0f / 0.0f)" if value > 0 else "(-1.0f / 0.0f)"
    return f"{float(value):.9g}f" if any(c in f"{float(value):.9g}" for c in ".e") else f"{float(value):.9g}.0f"
