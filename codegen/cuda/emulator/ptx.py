"""PTX as text, taken apart: kernels with their parameters, variables and statements."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptqc.errors import PtqcError

KERNEL = re.compile(r"\.entry\s+(\w+)\s*\((?P<parameters>[^)]*)\)\s*(?P<limits>[^{]*)\{")
TARGET = re.compile(r"\.target\s+sm_((\d+)a?)")
PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?(\w+)")
VARIABLE = re.compile(r"(?:\.extern\s+)?\.(shared|local)\s+\.align\s+(\d+)\s+\.\w(\d+)\s+(\w+)\[(\d*)\]")
TABLE = re.compile(r"\.(global|const)\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[\d+\]\s*=\s*\{([^}]*)\}")
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
LABEL = re.compile(r"\s*([\w$%]+):")
GUARD = re.compile(r"@(!?)(%\w+)\s+(.*)", re.DOTALL)
# Directives that say nothing about what is computed.
SILENT = re.compile(r"\.(?:pragma|loc|file|section)\s")
OPENING, CLOSING = "{[", "}]"


class NotEmulated(PtqcError):
    """PTX that the emulator does not understand; the message names it."""


@dataclass(frozen=True)
class Variable:
    """Memory that a kernel or its module declares. size: in bytes; 0: as much as the launch says.

    space: shared or local, or global or const, with the bytes of a table that never changes.
    """

    space: str
    alignment: int
    name: str
    size: int
    table: tuple[int, ...] = ()


@dataclass(frozen=True)
class Register:
    """A register, for example of type b32."""

    kind: str
    name: str


@dataclass(frozen=True)
class Label:
    """A place to go to."""

    name: str


@dataclass(frozen=True)
class Scope:
    """Where braces open or close; registers are declared between them."""

    opens: bool


@dataclass(frozen=True)
class Instruction:
    """guard: the predicate under which it is done, with "!" in front where it must be false; empty: always."""

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""


Statement = Instruction | Label | Scope | Register | Variable


@dataclass(frozen=True)
class PtxKernel:
    """parameters: type and name. variables: of the whole module."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]


def modules(text: str) -> dict[str, str]:
    """Modules without comments, by the architecture that they are for, in ascending order; 0 where one names none.

    What is for one chip alone ends in a letter, as 90a does.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    results = {}
    for module in filter(str.strip, re.split(r"(?=^\s*\.version\b)", text, flags=re.MULTILINE)):
        target = TARGET.search(module)
        results[target.groups() if target else ("0", "0")] = module
    return {name: module for (name, _), module in sorted(results.items(), key=lambda entry: int(entry[0][1]))}


def kernels(text: str) -> list[PtxKernel]:
    """The kernels of a module without comments. Raises NotEmulated for what is not understood."""
    results = list(KERNEL.finditer(text))
    head = text[: results[0].start()] if results else ""
    outer = (*map(_variable, VARIABLE.finditer(head)), *map(_table, TABLE.finditer(head)))
    return [
        PtxKernel(
            match[1],
            tuple((kind, name) for kind, name in PARAMETER.findall(match["parameters"])),
            outer,
            tuple(_statements(_body(text, match.end()))),
        )
        for match in results
    ]


def _body(text: str, start: int) -> str:
    """What lies between braces, of which the first is open already."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[start:place]
    raise NotEmulated("PTX that ends within a kernel")


def _statements(body: str) -> Iterator[Statement]:
    place = 0
    while place < len(body):
        if body[place].isspace() or body[place] == ";":
            place += 1
        elif body[place] in "{}":
            yield Scope(opens=body[place] == "{")
            place += 1
        elif label := LABEL.match(body, place):
            yield Label(label[1])
            place = label.end()
        elif SILENT.match(body, place):
            place = min((end for end in (body.find(";", place), body.find("\n", place)) if end >= 0), default=len(body))
        else:
            end = body.find(";", place)
            yield from _statement(body[place:end].strip())
            place = end + 1


def _statement(text: str) -> Iterator[Statement]:
    if registers := REGISTERS.fullmatch(text):
        yield from _registers(registers[1], registers[2])
    elif variable := VARIABLE.fullmatch(text):
        yield _variable(variable)
    elif text.startswith("."):
        raise NotEmulated(f"the emulator of CUDA kernels does not know the directive {text!r}")
    else:
        guard = GUARD.fullmatch(text)
        opcode, _, remainder = (guard[3] if guard else text).partition(" ")
        yield Instruction(opcode.strip(), split(remainder), guard[1] + guard[2] if guard else "")


def _registers(kind: str, names: str) -> Iterator[Register]:
    for name in split(names):
        counted = re.fullmatch(r"(%?\w+)<(\d+)>", name)
        if counted is None:
            yield Register(kind, name)
        else:
            yield from (Register(kind, f"{counted[1]}{number}") for number in range(int(counted[2])))


def _variable(match: re.Match[str]) -> Variable:
    space, alignment, bits, name, count = match.groups()
    return Variable(space, int(alignment), name, int(count or 0) * int(bits) // 8)


def _table(match: re.Match[str]) -> Variable:
    space, alignment, name, values = match.groups()
    table = tuple(int(value) for value in split(values))
    return Variable(space, int(alignment), name, len(table), table)


def split(text: str) -> tuple[str, ...]:
    """Operands: separated by commas, but for those within braces and brackets."""
    parts, depth = [""], 0
    for char in text.strip():
        depth += (char in OPENING) - (char in CLOSING)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(stripped(parts))


def stripped(parts: Sequence[str]) -> list[str]:
    """Parts without spaces around them; none of nothing."""
    return [part.strip() for part in parts if part.strip()]
