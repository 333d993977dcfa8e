"""What a user can choose about native libraries for processors."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ptqc.errors import UsageError
from ptqc.utils.arguments import one_of, shown

Tuning = Literal["quick", "full"]
InstructionSet = Literal[
    "host",
    "portable",
    "avx2",
    "avx-vnni",
    "avx512-vnni",
    "avx512-vbmi",
    "avx512-bf16",
    "arm-neon",
    "arm-dotprod",
    "arm-i8mm",
    "arm-bf16",
]
DEFAULT_CPU, NOT_TUNED = "host", "off"


@dataclass(frozen=True)
class CpuOptions:
    """Options of the target cpu.

    cpu: the instruction set of the library, or several separated by commas, each of which gets a library; "host": the
    best that this machine has, "portable": one that every machine of its kind of the last ten years has. tune: "quick"
    or "full" times a few or all of the ways to cut each kernel's loops on this machine and takes the fastest; "off"
    none; a folder: takes what an earlier compile recorded there.
    """

    cpu: str = field(
        default=DEFAULT_CPU,
        metadata={
            "metavar": "ISA",
            "help": "instruction set: host (default: the best of this machine), portable, avx2, avx-vnni, avx512-vnni, "
            "avx512-vbmi, avx512-bf16, arm-neon, arm-dotprod, arm-i8mm or arm-bf16; several, separated by commas, give "
            "one library each, of which the best is loaded",
        },
    )
    tune: str | Path = field(
        default=NOT_TUNED,
        metadata={
            "metavar": "HOW",
            "help": "quick or full: time some or all tilings of each kernel's loops on this machine, take the best; "
            "DIR: reuse the tilings that an earlier compile recorded there; with --target cuda, on this machine's GPU: "
            "auto (default: where --gpu names its architecture alone), quick, off, DIR or FILE",
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.cpu, str):
            raise UsageError(f"cpu is {shown(self.cpu)}; give names of instruction sets, separated by commas")
        for name in self.cpu.split(","):
            one_of("cpu", name, get_args(InstructionSet))
        if not isinstance(self.tune, str | Path) or not str(self.tune):
            raise UsageError(f"tune is {self.tune!r}; give off, quick, full, or a folder that a tuned compile wrote")


OPTIONS = CpuOptions
