"""What a user can choose about native libraries for processors."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ptqc.codegen.c_names import check_c_name
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
    "amx-int8",
    "arm-neon",
    "arm-dotprod",
    "arm-i8mm",
    "arm-bf16",
]
LibraryKind = Literal["shared", "static"]
DEFAULT_CPU, NOT_TUNED, SHARED, DEFAULT_NAME = "host", "off", "shared", "model"
# Functions of libc that end as those of a static library do.
FUNCTIONS = (
    *("argz_create", "epoll_create", "memfd_create", "obstack_free", "pkey_free", "pthread_key_create", "thrd_create"),
    *("timer_create", "timerfd_create", "tss_create"),
)


@dataclass(frozen=True)
class CpuOptions:
    """Options of the target "cpu".

    Args:
        cpu: The instruction set of the library, or several separated by
            commas, one library each; "host": the best of this machine,
            "portable": any machine of the last ten years.
        tune: "quick" or "full" times some or all tilings of each kernel's
            loops on this machine and takes the fastest; "off": none; a
            folder: the tilings that an earlier compile recorded.
        cpu_library: "shared", or "static" for an archive with a C header,
            which needs no runtime, besides the shared libraries.
        c_name: What the archive's file and functions begin with.
    """

    cpu: str = field(
        default=DEFAULT_CPU,
        metadata={
            "metavar": "ISA,…",
            "help": "instruction sets: host is the best of this machine, portable what every machine of its kind of "
            "the last ten years has; several give one library each, of which the best is loaded",
            "default_text": DEFAULT_CPU,
            "values": lambda: get_args(InstructionSet),
        },
    )
    tune: str | Path = field(
        default=NOT_TUNED,
        metadata={
            "metavar": "HOW",
            "help": "off; quick or full: time some or all tilings of each kernel's loops on this machine, and take the "
            "best; DIR: reuse the tilings that an earlier compile recorded there; with --target cuda, on this "
            "machine's GPU: auto (where --gpu names its architecture alone), quick, off, DIR or FILE",
            "default_text": "off; with --target cuda, auto",
        },
    )
    cpu_library: str = field(
        default=SHARED,
        metadata={
            "metavar": "KIND",
            "help": "shared, or static: also a static library with a C header, which needs no runtime",
            "default_text": SHARED,
            "values": lambda: get_args(LibraryKind),
        },
    )
    c_name: str = field(
        default=DEFAULT_NAME,
        metadata={
            "metavar": "NAME",
            "help": "what the files and the functions of C source, or of a static library, begin with",
            "default_text": DEFAULT_NAME,
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.cpu, str):
            raise UsageError(f"cpu is {shown(self.cpu)}; give names of instruction sets, separated by commas")
        for name in self.cpu.split(","):
            one_of("cpu", name, get_args(InstructionSet))
        if not isinstance(self.tune, str | Path) or not str(self.tune):
            raise UsageError(f"tune is {self.tune!r}; give off, quick, full, or a folder that a tuned compile wrote")
        one_of("cpu_library", self.cpu_library, get_args(LibraryKind))
        check_c_name(self.c_name, FUNCTIONS)
        if self.cpu_library == SHARED and self.c_name != DEFAULT_NAME:
            raise UsageError("c_name is of a static library; give cpu_library static too")

    @property
    def static_name(self) -> str:
        """What the static library is called; empty where none is asked for."""
        return self.c_name if self.cpu_library == "static" else ""


OPTIONS = CpuOptions
