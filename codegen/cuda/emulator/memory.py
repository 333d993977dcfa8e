"""Instructions of PTX that move memory, wait, branch, or take a whole warp, as statements of C++."""

import re

from ptqc.codegen.cuda.emulator.arithmetic import Rule, Text
from ptqc.codegen.cuda.emulator.operands import TYPES, Operands, bits_of, identifier


def _load(match: re.Match[str], o: Text, names: Operands) -> str:
    kind, targets = match["type"], names.vector(o[0])
    size = bits_of(kind) // 8
    where = names.address(o[1], match["space"] or "generic", size * len(targets))
    parts = (
        names.store(target, kind, f"*reinterpret_cast<const {TYPES[kind]}*>(address_ + {place * size})")
        for place, target in enumerate(targets)
    )
    return f"{{ uint64_t address_ = {where}; {' '.join(parts)} }}"


def _store(match: re.Match[str], o: Text, names: Operands) -> str:
    kind, sources = match["type"], names.vector(o[1])
    size = bits_of(kind) // 8
    where = names.address(o[0], match["space"] or "generic", size * len(sources))
    parts = (
        f"*reinterpret_cast<{TYPES[kind]}*>(address_ + {place * size}) = {names.value(kind, source)};"
        for place, source in enumerate(sources)
    )
    unnoted = ("shared", "local") if not names.grouped else ("local",)
    noted = "" if match["space"] in unnoted else f"emulator::note_store(address_, {size * len(sources)});"
    return f"{{ uint64_t address_ = {where}; {noted} {' '.join(parts)} }}"


def _parameter(match: re.Match[str], o: Text, names: Operands) -> str:
    return names.store(o[0], match["type"], names.parameters[o[1].strip("[] ")])


def _address(match: re.Match[str], o: Text, names: Operands) -> str:
    """Addresses of global and local memory are generic ones as they are."""
    if match["space"] != "shared":
        return f"{names.bits(o[0])} = {names.bits(o[1])};"
    change = "shared_of_generic" if match["to"] else "generic_of_shared"
    return f"{names.bits(o[0])} = emulator::{change}({names.bits(o[1])});"


def _copy(_match: re.Match[str], o: Text, names: Operands) -> str:
    taken = names.value("u32", o[3]) if len(o) > 3 else o[2]
    return f"emulator::copy_async({names.place(o[0])}, {names.place(o[1])}, {o[2]}, {taken});"


def _await(_match: re.Match[str], o: Text, _names: Operands) -> str:
    return f"emulator::await_copies({o[0]});"


def plain(statement: str) -> Rule:
    """An instruction without operands that matter. SITE in it becomes the number of the instruction."""

    def rule(_match: re.Match[str], _o: Text, _names: Operands) -> str:
        return statement

    return rule


def _branch(_match: re.Match[str], o: Text, _names: Operands) -> str:
    return f"goto {identifier(o[0])};"


def _shuffle(match: re.Match[str], o: Text, names: Operands) -> str:
    result, _, is_inside = o[0].partition("|")
    operands = ", ".join(names.value("u32", text) for text in o[1:])
    remaining = f"{names.bits(is_inside.strip())} = " if is_inside else ""
    call = f"emulator::shuffle_{match['how']}(SITE, made_, {operands})"
    return f"{{ uint32_t made_; {remaining}{call}; {names.bits(result.strip())} = made_; }}"


def _matrices(match: re.Match[str], o: Text, names: Operands) -> str:
    targets = names.vector(o[0])
    remaining = " ".join(f"{names.bits(target)} = made_[{place}];" for place, target in enumerate(targets))
    where = f"uint32_t({names.place(o[1])})"
    call = f"emulator::load_matrices<{match['count']}>(SITE, made_, {where});"
    return f"{{ uint32_t made_[{match['count']}]; {call} {remaining} }}"


def _product(function: str, o: Text, names: Operands, further: str = "") -> str:
    """A product of matrices: a function of all registers of its operands, and of what is not one."""
    outputs, *inputs = (names.vector(text) for text in o)
    operands = ", ".join(names.value("u32", text) for part in inputs for text in part)
    remaining = " ".join(f"{names.bits(target)} = made_[{place}];" for place, target in enumerate(outputs))
    return f"{{ uint32_t made_[4]; emulator::{function}(SITE, made_, {{{operands}}}{further}); {remaining} }}"


def _types(match: re.Match[str]) -> str:
    return ", ".join(TYPES[match[side]] for side in ("a", "b"))


def _multiply(match: re.Match[str], o: Text, names: Operands) -> str:
    """A product of 16 × 8 sums of 32 products of bytes, or of fewer, where the others are of zeros."""
    rows, halves = int(match["m"]) // 8, int(match["k"]) // 16
    outputs, left, right, sums = (names.vector(text) for text in o)
    inputs = iter(names.value("u32", text) for text in left)
    operands = [next(inputs) if k < halves and row < rows else "0u" for k in range(2) for row in range(2)]
    operands += [*(names.value("u32", text) for text in right), *["0u"] * (2 - halves)]
    operands += [*(names.value("u32", text) for text in sums), *["0u"] * (2 * (2 - rows))]
    remaining = " ".join(f"{names.bits(target)} = made_[{place}];" for place, target in enumerate(outputs))
    call = f"emulator::multiply_bytes<{_types(match)}>(SITE, made_, {{{', '.join(operands)}}});"
    return f"{{ uint32_t made_[4]; {call} {remaining} }}"


def _multiply_sparse(match: re.Match[str], o: Text, names: Operands) -> str:
    """Behind the matrices: where the kept numbers are, and which lanes say so."""
    *registers, selector = o
    function = f"multiply_sparse_bytes<{_types(match)}>"
    return _product(function, registers, names, f", {names.value('u32', selector)}")


def _multiply_float8(_match: re.Match[str], o: Text, names: Operands) -> str:
    return _product("multiply_e4m3", o, names)


def _multiply_halves(_match: re.Match[str], o: Text, names: Operands) -> str:
    return _product("multiply_halves", o, names)


ELEMENT = r"(?:\.v[24])?\.(?P<type>[subf](?:8|16|32|64))"
RULES: dict[str, Rule] = {
    rf"ld(?:\.volatile)?\.param{ELEMENT}": _parameter,
    rf"ld(?:\.(?P<space>global|shared|local))?(?:\.nc)?{ELEMENT}": _load,
    rf"st(?:\.(?P<space>global|shared|local))?{ELEMENT}": _store,
    r"cvta(?P<to>\.to)?\.(?P<space>global|shared|local)\.u64": _address,
    r"cp\.async\.c[ag]\.shared\.global(?:\.L2::128B)?": _copy,
    r"cp\.async\.commit_group": plain("emulator::commit_copies();"),
    r"cp\.async\.wait_group": _await,
    r"cp\.async\.wait_all": plain("emulator::await_all_copies();"),
    r"bar\.sync|barrier\.sync": plain("emulator::barrier(SITE);"),
    r"bar\.warp\.sync": plain("emulator::together(SITE, [](emulator::Warp&) {});"),
    r"bra(?:\.uni)?": _branch,
    r"ret": plain("return;"),
    r"trap": plain('emulator::fail("a trap");'),
    r"shfl\.sync\.(?P<how>idx|up|down|bfly)\.b32": _shuffle,
    r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])\.shared(?:::cta)?\.b16": _matrices,
    r"mma\.sync\.aligned\.m(?P<m>8|16)n8k(?P<k>16|32)\.row\.col\.s32\.(?P<a>[su]8)\.(?P<b>[su]8)\.s32": _multiply,
    r"mma\.sp::ordered_metadata\.sync\.aligned\.m16n8k64\.row\.col\.s32\.(?P<a>[su]8)\.(?P<b>[su]8)\.s32": (
        _multiply_sparse
    ),
    r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.e4m3\.e4m3\.f32": _multiply_float8,
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32": _multiply_halves,
}
