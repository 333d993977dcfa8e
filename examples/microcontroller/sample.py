"""Writes a golden sample of an artifact as arrays of C: `python sample.py ARTIFACT NAME sample.h`."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

# How the header describes an input or an output.
TERMINAL = re.compile(
    r"/\* (?P<model>.*): [\d x]+(?P<is_last>, channels last)?, (?P<kind>codes of 8 bits|\w+) \*/\n"
    r"#define PTQC_(?P<macro>\w+)_ELEMENTS \d+\n"
    r"(?:#define \w+_SCALE (?P<scale>\S+)f\n#define \w+_ZERO_POINT (?P<zero>\d+)\n)?"
)
C_TYPES = {"uint8": "uint8_t", "int32": "int32_t", "int64": "int64_t", "float32": "float", "bool": "uint8_t"}
TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class SampleArray:
    """An input or output. name: in C."""

    name: str
    values: np.ndarray

    @property
    def declared(self) -> str:
        """Its type and name."""
        return f"{C_TYPES[str(self.values.dtype)]} {self.name}[{self.values.size}]"

    def written(self, prefix: str = "") -> str:
        """As a constant."""
        kind = self.values.dtype.kind
        numbers = (f"{x:.9e}f" if kind == "f" else str(int(x)) for x in self.values.reshape(-1).tolist())
        return f"static const {self.declared.replace(' ', ' ' + prefix)} = {{{', '.join(numbers)}}};"

    @property
    def allowed(self) -> float:
        """How far real numbers may be from the expected ones; codes have to be equal."""
        return TOLERANCE * float(np.abs(self.values).max()) if self.values.dtype.kind == "f" else 0.0


def terminals(header: str, name: str, arrays: dict[str, np.ndarray]) -> Iterator[SampleArray]:
    """Inputs and outputs of the first sample, as they are in memory."""
    for match in TERMINAL.finditer(header):
        macro = match["macro"].removeprefix(f"{name.upper()}_").lower()
        array = arrays[f"0.{'input' if macro.startswith('in') else 'output'}.{match['model']}"]
        if match["scale"]:
            codes = np.rint(array / np.float32(match["scale"])) + int(match["zero"])
            array = np.clip(codes, 0, 255).astype(np.uint8)
        else:
            array = array.astype(match["kind"])
        yield SampleArray(macro, np.moveaxis(array, 1, -1) if match["is_last"] else array)


def sample(header: str, name: str, arrays: dict[str, np.ndarray]) -> str:
    """The text of sample.h. Ends the program for a network that takes frames."""
    if f"ptqc_{name}_push" in header:
        sys.exit(f"sample.py: {name} takes frames, and main.c runs whole windows: compile it without --c-stream")
    ends = list(terminals(header, name, arrays))
    outputs = [each for each in ends if each.name.startswith("out")]
    constants = [each.written("expected_" if each in outputs else "") for each in ends]
    compared = [f"DIFFERENT({each.name}, {each.values.size}, {each.allowed:.9e}f)" for each in outputs]
    return "\n".join(
        [
            f'#include "{name}.h"\n',
            *constants,
            *(f"static {each.declared};" for each in outputs),
            f"\n#define RUN_NETWORK ptqc_{name}_run({', '.join(each.name for each in ends)})",
            f"#define SCORES {outputs[0].name}",
            f"#define SCORES_ELEMENTS {outputs[0].values.size}",
            f"#define COMPARE_OUTPUTS {' '.join(compared)}\n",
        ]
    )


if __name__ == "__main__":
    folder, network, target = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    golden = load_file(folder / "golden.safetensors")
    target.write_text(sample((folder / "c" / f"{network}.h").read_text(), network, golden))
