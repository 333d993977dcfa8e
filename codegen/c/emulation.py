"""Networks in C on emulated microcontrollers: what they compute, the instructions of a run, and the memory it takes.

QEMU emulates the cores with a clock that goes on by 2^SHIFT ns with every instruction (`-icount`), and a counter of the
board that ticks 20 or 25 million times a second is read before and after a run. That counts instructions exactly, and
not cycles: a core takes more than one for some of them and waits for its memory, and a Cortex-M55 takes two for most of
those on vectors, and none for the end of a hardware loop.

What it takes: `arm-none-eabi-gcc` with newlib and `qemu-system-arm` (Debian: gcc-arm-none-eabi,
libnewlib-arm-none-eabi, qemu-system-arm).
"""

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Self

from ptqc.errors import TargetError
from ptqc.utils.scratch import scratch

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
INSTALL = "Debian: apt install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
PROGRAM = Path(__file__).with_name("board.c")
# An instruction lasts 256 ns, which is at least five ticks: no rounding of ticks makes one more or less.
SHIFT = 8
COUNTER_RANGE = 2**32
# Of the program that runs networks, and so that unused functions of a network are left out as in a firmware.
PROGRAM_FLAGS = ("-O2", "-std=gnu99", "-ffreestanding")
NETWORK_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-ffunction-sections", "-fdata-sections")
FIRST_ERROR = re.compile(r"\b(?:fatal )?error: .*|undefined reference to .*|region .* overflowed.*")

LINKER_SCRIPT = """\
MEMORY
{{
  vectors (rx) : ORIGIN = {vectors:#x}, LENGTH = 1K
  code (rx) : ORIGIN = {code:#x}, LENGTH = {code_bytes}
  data (rwx) : ORIGIN = {data:#x}, LENGTH = {data_bytes}
}}
ENTRY(board_start)
SECTIONS
{{
  .vectors : {{ KEEP(*(.vectors)) }} > vectors
  .text : {{ *(.text .text.*) . = ALIGN(16); }} > code
  .rodata : {{ *(.rodata .rodata.*) . = ALIGN(16); }} > code
  .ARM.exidx : {{ *(.ARM.exidx*) . = ALIGN(16); }} > code
  .stack (NOLOAD) : {{ board_stack_limit = .; . += {stack_bytes}; . = ALIGN(16); board_stack_top = .; }} > data
  .data : {{ board_data_start = .; *(.data .data.*) . = ALIGN(16); board_data_end = .; }} > data AT > code
  board_data_load = LOADADDR(.data);
  .bss (NOLOAD) : {{ board_bss_start = .; *(.bss .bss.* COMMON) . = ALIGN(16); board_bss_end = .; }} > data
}}
"""

MAIN = """\
#include "{name}.h"

#define BOARD_COUNTERS {counters:#x}u
#define BOARD_SAMPLES {samples}u

// Every value starts at a multiple of 16 bytes.
static unsigned char board_inputs[{input_bytes}] __attribute__((aligned(16)));
static unsigned char board_outputs[{output_bytes}] __attribute__((aligned(16)));

#include "board.c"

static __attribute__((noinline)) int call_network(void) {{
    return {call};
}}
"""


@dataclass(frozen=True)
class Board:
    """A microcontroller that QEMU emulates. Addresses are those that its core starts with.

    flags: of the compiler. counters: address of the registers that count. frequency: of their ticks, in Hz.
    """

    name: str
    machine: str
    flags: tuple[str, ...]
    counters: int
    frequency: int
    vectors: int
    code: int
    code_bytes: int
    data: int
    data_bytes: int

    def linker_script(self, stack_bytes: int) -> str:
        """A script for the memory of this board."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return LINKER_SCRIPT.format(**values, stack_bytes=stack_bytes)

    def instructions(self, seconds: int, ticks: int) -> int:
        """The instructions between two reads of the counters. seconds: tell how often the ticks began again."""
        turns = round((seconds * self.frequency - ticks) / COUNTER_RANGE)
        return round((ticks + turns * COUNTER_RANGE) * 10**9 / (self.frequency << SHIFT))


def _mps2(name: str, machine: str, *flags: str) -> Board:
    """Arm's MPS2: code in its first memory, and data in its PSRAM, below which no memory is."""
    memory = {"vectors": 0, "code": 0x400, "code_bytes": 2**22 - 0x400, "data": 0x21000000, "data_bytes": 2**24}
    return Board(name, machine, ("-mthumb", *flags), 0x40028000, 25 * 10**6, **memory)


CORTEX_M3 = _mps2("cortex-m3", "mps2-an385", "-mcpu=cortex-m3", "-mfloat-abi=soft")
CORTEX_M4 = _mps2("cortex-m4", "mps2-an386", "-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
# Starts in the secure state: its vectors are in the tightly coupled memory, all else in the secure alias of DDR.
CORTEX_M55 = Board(
    "cortex-m55",
    "mps3-an547",
    ("-mthumb", "-mcpu=cortex-m55", "-mfloat-abi=hard"),
    counters=0x59302000,
    frequency=20 * 10**6,
    vectors=0x10000000,
    code=0x70000000,
    code_bytes=2**24,
    data=0x71000000,
    data_bytes=2**24,
)
BOARDS = {board.name: board for board in (CORTEX_M3, CORTEX_M4, CORTEX_M55)}


def missing() -> str | None:
    """What is not installed of what emulation takes, in words; None where all is."""
    absent = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed" if absent else None


def versions() -> dict[str, str]:
    """The first lines of what compiler and emulator say about themselves."""
    return {tool: _call([tool, "--version"], Path.cwd(), 10).stdout.partition("\n")[0] for tool in (COMPILER, EMULATOR)}


@dataclass(frozen=True)
class CNetwork:
    """A network in C. folder: of NAME.c, and of NAME.h that declares `int ptqc_NAME_run(inputs..., outputs...)`.

    inputs, outputs: bytes of each, in the order of the arguments. archives: libraries that belong to the network.
    includes: folders of their headers. verb: what the function is called after the name of the network.
    """

    folder: Path
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    archives: tuple[Path, ...] = ()
    includes: tuple[Path, ...] = ()
    verb: str = "run"


@dataclass(frozen=True)
class BuildOptions:
    """How a network is built and run. seconds: after which a compilation or all runs together are stopped."""

    optimization: str = "-O2"
    flags: tuple[str, ...] = ()
    stack_bytes: int = 2**16
    seconds: float = 300


@dataclass(frozen=True)
class SectionSizes:
    """Bytes of what is linked, by section."""

    text: int = 0
    rodata: int = 0
    data: int = 0
    bss: int = 0

    @property
    def flash(self) -> int:
        """Bytes of code and constants, and of the values that variables start with."""
        return self.text + self.rodata + self.data

    @property
    def ram(self) -> int:
        """Bytes of variables; the stack comes in addition."""
        return self.data + self.bss

    def __add__(self, other: "SectionSizes") -> "SectionSizes":
        sums = (getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        return SectionSizes(*sums)


@dataclass(frozen=True)
class BoardRun:
    """What a network did on a board.

    outputs: bytes of each output, for each sample. instructions: of each run. stack_bytes: the most that a run used.
    network: sizes of NAME.c without what calls it, and without inputs and outputs, which the caller owns. archives,
    libraries: sizes of what it takes of its archives, and of the libraries of C and of the compiler.
    """

    outputs: list[list[bytes]]
    instructions: list[int]
    stack_bytes: int
    network: SectionSizes
    archives: SectionSizes
    libraries: SectionSizes


def run_on_board(
    board: Board, network: CNetwork, samples: Sequence[Sequence[bytes]], options: BuildOptions | None = None
) -> BoardRun:
    """Build a network for a board, and run it there in QEMU. samples: bytes of each input, for each sample.

    Raises TargetError where a tool is missing, the build fails, or a run does not end well.
    """
    if absent := missing():
        raise TargetError(f"{absent}; networks in C run on emulated microcontrollers by them ({INSTALL})")
    for sample in samples:
        if (sizes := tuple(map(len, sample))) != network.inputs:
            raise TargetError(f"a sample has inputs of {sizes} bytes, and {network.name} takes {network.inputs}")
    options = options or BuildOptions()
    with scratch() as temporary:
        build = _Build(board, network, options, Path(temporary))
        build.link(len(samples))
        measured = build.run(samples)
        return BoardRun(*measured, *build.sizes())


def compile_c(board: Board, source: Path, output: Path, flags: Sequence[str], seconds: float = 300) -> None:
    """Compile a file to an object for a board; raises TargetError with the first error."""
    _compile([*board.flags, *flags, "-c", str(source.resolve()), "-o", str(output.resolve())], output.parent, seconds)


@dataclass(frozen=True)
class _Measured:
    """What the program writes in front of the outputs of a run."""

    status: int
    seconds: int
    ticks: int
    stack: int

    @classmethod
    def read(cls, data: bytes) -> Self:
        return cls(*struct.unpack("<4I", data))


RECORD_BYTES = struct.calcsize("<4I")


@dataclass(frozen=True)
class _Build:
    """One program for a board, in a folder that nobody else sees."""

    board: Board
    network: CNetwork
    options: BuildOptions
    folder: Path

    def link(self, samples: int) -> None:
        """Compile the network and the program that runs it."""
        network = self.network
        includes = [f"-I{folder.resolve()}" for folder in (network.folder, *network.includes)]
        (self.folder / "main.c").write_text(self._main(samples), encoding="utf-8")
        (self.folder / "board.ld").write_text(self.board.linker_script(self.options.stack_bytes), encoding="utf-8")
        shutil.copyfile(PROGRAM, self.folder / PROGRAM.name)
        flags = [self.options.optimization, *NETWORK_FLAGS, *self.options.flags, *includes]
        source = network.folder / f"{network.name}.c"
        compile_c(self.board, source, self.folder / "network.o", flags, self.options.seconds)
        compile_c(
            self.board,
            self.folder / "main.c",
            self.folder / "main.o",
            [*PROGRAM_FLAGS, *includes],
            self.options.seconds,
        )
        script = ["-nostartfiles", "-T", "board.ld", "-Wl,--gc-sections", "-Wl,-Map=board.map", "-Wl,-z,noexecstack"]
        linked = ["main.o", "network.o", *self._archives(), "-lm", "-o", "board.elf"]
        _compile([*self.board.flags, *script, *linked], self.folder, self.options.seconds)

    def _archives(self) -> list[str]:
        return [str(path.resolve()) for path in self.network.archives]

    def _main(self, samples: int) -> str:
        starts_in, starts_out = _starts(self.network.inputs), _starts(self.network.outputs)
        # A void pointer goes for a pointer of any type in C.
        arguments = [f"(void *)(board_inputs + {start})" for start in starts_in[:-1]]
        arguments += [f"(void *)(board_outputs + {start})" for start in starts_out[:-1]]
        called = f"ptqc_{self.network.name}_{self.network.verb}({', '.join(arguments)})"
        return MAIN.format(
            name=self.network.name,
            counters=self.board.counters,
            samples=samples,
            input_bytes=starts_in[-1] or 1,
            output_bytes=starts_out[-1] or 1,
            call=f"{called} & ~2" if self.network.verb == "push" else called,  # 2: outputs are not due
        )

    def run(self, samples: Sequence[Sequence[bytes]]) -> tuple[list[list[bytes]], list[int], int]:
        """Outputs and instructions of each sample, and bytes of stack."""
        (self.folder / "samples.bin").write_bytes(b"".join(map(_padded, samples)))
        command = [EMULATOR, "-M", self.board.machine, "-display", "none", "-monitor", "none", "-serial", "none"]
        command += ["-semihosting-config", "enable=on,target=native", "-icount", f"shift={SHIFT}"]
        done = _call([*command, "-kernel", "board.elf"], self.folder, self.options.seconds)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            reason = said[0] if said else f"{EMULATOR} ended with {done.returncode}"
            raise TargetError(f"{self.network.name} does not run on {self.board.name}: {reason}")
        return self._read((self.folder / "results.bin").read_bytes())

    def _read(self, data: bytes) -> tuple[list[list[bytes]], list[int], int]:
        nothing, data = _Measured.read(data[:RECORD_BYTES]), data[RECORD_BYTES:]
        starts = _starts(self.network.outputs)
        outputs, runs = [], []
        for start in range(0, len(data), RECORD_BYTES + (starts[-1] or 1)):
            run, values = _Measured.read(data[start : start + RECORD_BYTES]), data[start + RECORD_BYTES :]
            if run.status:
                raise TargetError(
                    f"ptqc_{self.network.name}_{self.network.verb} gives {run.status} on {self.board.name}"
                )
            runs.append(run)
            outputs.append(
                [values[first : first + size] for first, size in zip(starts, self.network.outputs, strict=False)]
            )
        overhead = self.board.instructions(nothing.seconds, nothing.ticks)
        instructions = [self.board.instructions(run.seconds, run.ticks) - overhead for run in runs]
        return outputs, instructions, max((run.stack for run in runs), default=0)

    def sizes(self) -> tuple[SectionSizes, SectionSizes, SectionSizes]:
        """What is linked of the network, of its archives, and of libraries."""
        network, archives, libraries = SectionSizes(), SectionSizes(), SectionSizes()
        members = tuple(f"{path}(" for path in self._archives())
        for section, size, origin in _linked((self.folder / "board.map").read_text(encoding="utf-8")):
            contribution = SectionSizes(**{section: size})
            if origin == "network.o":
                network += contribution
            elif origin.startswith(members):
                archives += contribution
            elif origin != "main.o":
                libraries += contribution
        return network, archives, libraries


# A section of an input file, whose name may stand in a line of its own.
LINKED = re.compile(r"^ (?:\.(text|rodata|data|bss)\S*|COMMON)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(\S.*)$", re.MULTILINE)


def _linked(text: str) -> Iterator[tuple[str, int, str]]:
    """Section, bytes and origin of all that stands in a map of the linker and was not discarded."""
    _, _, mapped = text.partition("Linker script and memory map")
    for match in LINKED.finditer(mapped):
        yield match[1] or "bss", int(match[2], 16), match[3]


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where values begin that stand one after the other, and the bytes of all."""
    result = [0]
    for size in sizes:
        result.append(result[-1] + -(-size // 16) * 16)
    return result


def _padded(sample: Sequence[bytes]) -> bytes:
    starts = pairwise(_starts([len(value) for value in sample]))
    data = b"".join(value.ljust(end - start, b"\0") for value, (start, end) in zip(sample, starts, strict=True))
    return data or b"\0"


def _compile(arguments: Sequence[str], folder: Path, seconds: float) -> None:
    done = _call([COMPILER, *arguments], folder, seconds)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if FIRST_ERROR.search(line)] or done.stderr.splitlines()
        raise TargetError(f"{COMPILER} does not build the network: {lines[0] if lines else done.returncode}")


def _call(command: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"{command[0]} did not end within {seconds:g} s") from error
    except OSError as error:
        raise TargetError(f"{command[0]} does not run: {error}") from error
