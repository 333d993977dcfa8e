"""Instructions of PTX for four warps that multiply together, as statements of C++. See `warpgroups.h`."""

import re
from collections.abc import Sequence

from ptqc.codegen.cuda.emulator.arithmetic import Rule, Text
from ptqc.codegen.cuda.emulator.memory import plain
from ptqc.codegen.cuda.emulator.operands import TYPES, Operands, identifier
from ptqc.codegen.cuda.emulator.ptx import Instruction, NotEmulated, Statement, split

# Columns of a product with sums of 32 bits.
COLUMNS = (8, 16, 24, 32, *range(48, 257, 16))
MULTIPLY = "wgmma.mma_async"
# The registers of a kernel that its products have, as a variable of C++.
TABLE = "uint32_t* const grouped_[] = {{{}}};"


def registers_of(statements: Sequence[Statement]) -> tuple[str, ...]:
    """Registers of sums and left matrices, each once."""
    products = (each for each in statements if isinstance(each, Instruction) and each.opcode.startswith(MULTIPLY))
    return tuple(dict.fromkeys(name for each in products for text in each.operands[:2] for name in _vector(text)))


def table(grouped: Sequence[str]) -> str:
    """A statement that declares TABLE."""
    return TABLE.format(", ".join(f"&{identifier(name)}" for name in grouped))


def _vector(text: str) -> tuple[str, ...]:
    if not text.startswith("{"):
        raise NotEmulated("the emulator of CUDA kernels does not know wgmma with a left matrix in shared memory")
    return split(text[1:-1])


def _multiply(match: re.Match[str], o: Text, names: Operands) -> str:
    columns = int(match["columns"])
    if columns not in COLUMNS:
        raise NotEmulated(f"no matmul of a warpgroup has {columns} columns; expected one of {COLUMNS}")
    numbers = {name: number for number, name in enumerate(names.grouped)}
    sums, left = (", ".join(str(numbers[name]) for name in _vector(text)) for text in o[:2])
    types = ", ".join(TYPES[match[side]] for side in ("a", "b"))
    call = f"emulator::multiply_group<{columns}, {types}>(SITE, grouped_, sums_, left_"
    return (
        f"{{ static constexpr int sums_[] = {{{sums}}}, left_[] = {{{left}}}; "
        f"{call}, {names.value('u64', o[2])}, {names.bits(o[3])}); }}"
    )


def _fence(_match: re.Match[str], _o: Text, names: Operands) -> str:
    return f"emulator::fence_registers(SITE, grouped_, {len(names.grouped)});" if names.grouped else ""


def _await(_match: re.Match[str], o: Text, names: Operands) -> str:
    return f"emulator::await_products(SITE, grouped_, {o[0]});" if names.grouped else ""


RULES: dict[str, Rule] = {
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k32\.s32\.(?P<a>[su]8)\.(?P<b>[su]8)": _multiply,
    r"wgmma\.fence\.sync\.aligned": _fence,
    r"wgmma\.commit_group\.sync\.aligned": plain("emulator::commit_products(SITE);"),
    r"wgmma\.wait_group\.sync\.aligned": _await,
    r"fence\.proxy\.async(?:\.shared::cta)?": plain("emulator::fence_proxies();"),
}
