"""Operands of PTX as C++: registers are variables that hold bits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ptqc.codegen.cuda.emulator.ptx import NotEmulated, split

SPECIAL = {
    f"%{name}.{axis}": f"{place}.{axis}"
    for name, place in {
        "tid": "emulator::self().thread",
        "ctaid": "emulator::block->place",
        "ntid": "emulator::block->size",
        "nctaid": "emulator::block->grid",
    }.items()
    for axis in "xyz"
} | {"%laneid": "uint32_t(emulator::self().lane)"}
TYPES = {f"{sign}{bits}": f"{'' if sign == 's' else 'u'}int{bits}_t" for sign in "usb" for bits in (8, 16, 32, 64)}
TYPES |= {"f16": "emulator::f16", "f32": "float", "f64": "double", "pred": "bool"}
# How the bits of a register are kept, by its type.
REGISTERS = {"pred": "bool"} | {f"{sign}{bits}": f"uint{bits}_t" for sign in "busf" for bits in (16, 32, 64)}


def bits_of(kind: str) -> int:
    """The width of a type such as u32."""
    return int(kind.lstrip("busf"))


def unsigned(kind: str) -> str:
    """The same type without a sign: arithmetic wraps, as it may not in C++ with one."""
    return kind if kind.startswith("f") else f"u{kind[1:]}"


def identifier(name: str) -> str:
    """A register or label as a name of C++."""
    return name.lstrip("%").replace("$", "_")


@dataclass(frozen=True)
class Operands:
    """Names of a kernel. shared: places of its variables in shared memory. memory: its other variables and tables.
    grouped: registers of its products of warpgroups."""

    shared: Mapping[str, int]
    memory: frozenset[str]
    parameters: Mapping[str, str]
    registers: frozenset[str]
    grouped: tuple[str, ...] = ()

    def bits(self, text: str) -> str:
        """An operand as an expression of its bits."""
        if text in SPECIAL:
            return SPECIAL[text]
        if text.startswith("!"):
            return f"!{self.bits(text[1:])}"
        if text.startswith("%"):
            return identifier(text)
        if number := re.fullmatch(r"0([fd])([0-9A-Fa-f]+)", text):
            return f"0x{number[2]}{'u' if number[1] == 'f' else 'ull'}"
        if re.fullmatch(r"-?(\d+|0x[0-9a-fA-F]+)U?", text):
            return text.rstrip("U") + "ll"
        if text in self.shared:
            return f"{self.shared[text]}ll"
        if text in self.memory:
            return f"reinterpret_cast<uint64_t>({text})"
        if text in self.registers:  # of inline assembly, whose names begin with a letter
            return text
        raise NotEmulated(f"the emulator of CUDA kernels does not know the operand {text!r}")

    def value(self, kind: str, text: str) -> str:
        """An operand as a value of a type."""
        return f"emulator::as<{TYPES[kind]}>({self.bits(text)})"

    def store(self, text: str, kind: str, value: str) -> str:
        """A statement that makes a register hold a value of a type."""
        return "" if text == "_" else f"emulator::put({self.bits(text)}, {TYPES[kind]}({value}));"

    def vector(self, text: str) -> list[str]:
        """The parts of an operand in braces, or itself alone."""
        return list(split(text[1:-1])) if text.startswith("{") else [text]

    def place(self, text: str) -> str:
        """An address, without the brackets around it."""
        base, _, offset = text.strip("[] ").partition("+")
        return f"(uint64_t({self.bits(base.strip())}) + ({offset.strip() or '0'}))"

    def address(self, text: str, space: str, size: int) -> str:
        """Where in the memory of this process an aligned access of so many bytes goes."""
        place = self.place(text)
        if space == "shared":
            return f"emulator::aligned(emulator::shared(uint32_t({place}), {size}), {size})"
        return f"emulator::aligned({place}, {size})"
