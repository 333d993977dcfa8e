"""What the assembler made of each kernel: what it reports, and the instructions of tensor cores in its machine code.

A file of machine code is an ELF file with a section `.text.NAME` for each kernel, of instructions of 128 bits, whose
lowest 12 bits say what they do. NVIDIA publishes no table of these; the ones below are what its disassembler calls IMMA
and HMMA for chips from 8.0 to 9.0, QMMA for 8.9, and IGMMA for 9.0.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IMMA, HMMA, QMMA, IGMMA = 0x237, 0x23C, 0x27A, 0xDF1
KIND, INSTRUCTION = 0xFFF, 16
CODE = b".text."
# Of an ELF file of 64 bits and of its sections, what is read here.
HEADER = np.dtype(
    {
        "names": ["sections", "size", "count", "names"],
        "formats": ["<u8", "<u2", "<u2", "<u2"],
        "offsets": [40, 58, 60, 62],
        "itemsize": 64,
    }
)
SECTION = np.dtype(
    {"names": ["name", "offset", "size"], "formats": ["<u4", "<u8", "<u8"], "offsets": [0, 24, 32], "itemsize": 64}
)
REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
SHARED = re.compile(r"(\d+) bytes smem")
SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized due to [^\n]* in the function '(\w+)'")


@dataclass(frozen=True)
class KernelCode:
    """One kernel for one chip. registers: of a thread. shared_bytes: of a block. spilled_bytes: that the code stores
    and loads because registers are too few. tensor_core_instructions: in its code. is_serialized: whether products of
    warpgroups wait for each other, as the assembler lets them where it cannot tell that they need not."""

    registers: int
    shared_bytes: int
    spilled_bytes: int
    tensor_core_instructions: int
    is_serialized: bool = False


def kernel_codes(message: str, path: Path) -> dict[str, KernelCode]:
    """All kernels by name. message: by the assembler. path: of the machine code."""
    counted = {name: int(np.isin(kinds, (IMMA, HMMA, QMMA, IGMMA)).sum()) for name, kinds in _kinds(path.read_bytes())}
    result, serialized = dict[str, KernelCode](), set(SERIALIZED.findall(message))
    for match in REPORT.finditer(message):
        shared = SHARED.search(match["rest"])
        spilled = int(match["stores"]) + int(match["loads"])
        registers, name = int(match["registers"]), match["name"]
        shared_bytes = int(shared[1]) if shared else 0
        result[name] = KernelCode(registers, shared_bytes, spilled, counted[name], name in serialized)
    return result


def _kinds(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    (header,) = np.frombuffer(data, HEADER, 1)
    sections = np.frombuffer(data, SECTION, int(header["count"]), int(header["sections"]))
    names = data[int(sections[header["names"]]["offset"]) :]
    for section in sections:
        name = names[int(section["name"]) : names.index(b"\0", int(section["name"]))]
        if name.startswith(CODE):
            code = np.frombuffer(data, "<u2", int(section["size"]) // 2, int(section["offset"]))
            yield name.removeprefix(CODE).decode(), code[:: INSTRUCTION // 2] & KIND
