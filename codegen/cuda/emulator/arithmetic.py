"""Instructions of PTX that compute with registers, as statements of C++."""

import re
from collections.abc import Callable, Sequence

from ptqc.codegen.cuda.emulator.operands import TYPES, Operands, bits_of, unsigned

Text = Sequence[str]
# Of a match of the whole opcode, the operands, and the names that they use.
Rule = Callable[[re.Match[str], Text, Operands], str]

COMPARISONS = {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"lo": "<", "ls": "<=", "hi": ">", "hs": ">="},
}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
ROUNDINGS = {"n": "std::nearbyint", "z": "std::trunc", "m": "std::floor", "p": "std::ceil"}
DIRECTIONS = {"z": "FE_TOWARDZERO", "m": "FE_DOWNWARD", "p": "FE_UPWARD"}
TWICE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64", "s64": "__int128", "u64": "unsigned __int128"}


def _binary(match: re.Match[str], o: Text, names: Operands) -> str:
    kind = unsigned(match["type"])
    left, right = (names.value(kind, text) for text in o[1:])
    return names.store(o[0], kind, f"{left} {OPERATORS[match['op']]} {right}")


def _directed(match: re.Match[str], o: Text, names: Operands) -> str:
    """Rounded towards zero, down or up."""
    values = [names.value(match["type"], text) for text in o[1:]]
    function = {"add": "std::plus<>()", "sub": "std::minus<>()", "mul": "std::multiplies<>()"}.get(match["op"])
    call = f"{function or 'emulator::Fused()'}, {DIRECTIONS[match['rounding']]}, {', '.join(values)}"
    return names.store(o[0], match["type"], f"emulator::directed({call})")


def _multiply_add(match: re.Match[str], o: Text, names: Operands) -> str:
    kind = unsigned(match["type"])
    a, b, c = (names.value(kind, text) for text in o[1:])
    return names.store(o[0], kind, f"{a} * {b} + {c}")


def _widened(match: re.Match[str], o: Text, names: Operands) -> str:
    """The whole product, or its upper half; then a sum."""
    kind, wide = match["type"], TWICE[match["type"]]
    product = " * ".join(f"{TYPES.get(wide, wide)}({names.value(kind, text)})" for text in o[1:3])
    if match["part"] == "hi":
        return names.store(o[0], kind, f"({product}) >> {bits_of(kind)}")
    total = f" + {names.value(wide, o[3])}" if match["op"] == "mad" else ""
    return names.store(o[0], wide, product + total)


def _fused(match: re.Match[str], o: Text, names: Operands) -> str:
    kind = match["type"]
    a, b, c = (names.value(kind, text) for text in o[1:])
    if kind == "f16":  # a product of such numbers is exact in twice as many digits, but not its sum
        return names.store(o[0], kind, f"std::fma(double({a}), double({b}), double({c}))")
    return names.store(o[0], kind, f"std::fma({a}, {b}, {c})")


def _divide(match: re.Match[str], o: Text, names: Operands) -> str:
    left, right = (names.value(match["type"], text) for text in o[1:])
    return names.store(o[0], match["type"], f"{left} {'%' if match['op'] == 'rem' else '/'} {right}")


def _flushed_quotient(match: re.Match[str], o: Text, names: Operands) -> str:
    left, right = (f"emulator::flushed({names.value(match['type'], text)})" for text in o[1:])
    return names.store(o[0], match["type"], f"emulator::flushed({left} / {right})")


def _extreme(match: re.Match[str], o: Text, names: Operands) -> str:
    left, right = (names.value(match["type"], text) for text in o[1:])
    return names.store(o[0], match["type"], f"emulator::{'least' if match['op'] == 'min' else 'most'}({left}, {right})")


def _unary(match: re.Match[str], o: Text, names: Operands) -> str:
    kind, op = match["type"], match["op"]
    if kind == "pred":
        return f"{names.bits(o[0])} = !{names.bits(o[1])};"
    if op == "abs":
        value = names.value(kind, o[1])
        return names.store(o[0], kind, f"std::fabs({value})" if kind[0] == "f" else f"std::abs({value})")
    return names.store(o[0], unsigned(kind), f"{'~' if op == 'not' else '-'}{names.value(unsigned(kind), o[1])}")


def _shift(match: re.Match[str], o: Text, names: Operands) -> str:
    """By more than the width: all bits are gone, or all are the sign."""
    kind = match["type"] if match["type"][0] == "s" else unsigned(match["type"])
    value, by, width = names.value(kind, o[1]), f"uint32_t({names.bits(o[2])})", bits_of(kind)
    if match["op"] == "shl":
        kind = unsigned(kind)
        return names.store(o[0], kind, f"{by} >= {width} ? 0 : {names.value(kind, o[1])} << ({by} & {width - 1})")
    beyond = f"({value} < 0 ? -1 : 0)" if kind[0] == "s" else "0"
    return names.store(o[0], kind, f"{by} >= {width} ? {beyond} : {value} >> ({by} & {width - 1})")


def _funnel(match: re.Match[str], o: Text, names: Operands) -> str:
    low, high, by = (names.value("u32", text) for text in o[1:])
    by = f"({by} & 31)" if match["mode"] == "wrap" else f"std::min({by}, 32u)"
    both = f"(uint64_t({high}) << 32 | {low})"
    return names.store(o[0], "u32", f"{both} << {by} >> 32" if match["side"] == "l" else f"{both} >> {by}")


def _field(match: re.Match[str], o: Text, names: Operands) -> str:
    kind = match["type"]
    value, first, length = names.value(kind, o[1]), names.value("u32", o[2]), names.value("u32", o[3])
    return names.store(o[0], kind, f"emulator::field<{TYPES[kind]}>({value}, {first}, {length})")


def _insert(match: re.Match[str], o: Text, names: Operands) -> str:
    kind = match["type"]
    field, whole, first, length = (names.value(k, t) for k, t in zip((kind, kind, "u32", "u32"), o[1:], strict=True))
    return names.store(o[0], kind, f"emulator::with_field<{TYPES[kind]}>({field}, {whole}, {first}, {length})")


def _select(match: re.Match[str], o: Text, names: Operands) -> str:
    yes, no = (names.value(match["type"], text) for text in o[1:3])
    return names.store(o[0], match["type"], f"{names.bits(o[3])} ? {yes} : {no}")


def _compare(match: re.Match[str], o: Text, names: Operands) -> str:
    """Whether two values compare so, and the opposite; of NaN nothing is true but `ne` and what ends in u."""
    how, kind = match["how"], match["type"]
    left, right = (names.value(kind, text) for text in o[1:3])
    if how in ("num", "nan"):
        test = f"{'!' if how == 'num' else ''}(std::isnan({left}) || std::isnan({right}))"
    elif kind[0] == "f" and how not in COMPARISONS:
        test = f"(std::isnan({left}) || std::isnan({right}) || {left} {COMPARISONS[how[:2]]} {right})"
    elif kind[0] == "f" and how == "ne":
        test = f"(!std::isnan({left}) && !std::isnan({right}) && {left} != {right})"
    else:
        test = f"({left} {COMPARISONS[how]} {right})"
    if match["with"]:
        test = f"({test} {OPERATORS[match['with']]} {names.bits(o[3])})"
    first, _, second = o[0].partition("|")
    opposite = f" {names.bits(second.strip())} = !{names.bits(first.strip())};" if second else ""
    return f"{names.bits(first.strip())} = {test};{opposite}"


def _convert(match: re.Match[str], o: Text, names: Operands) -> str:
    to, operand = match["to"], match["type"]
    value = names.value(operand, o[1])
    rounding = match["rounding"] or ""
    if rounding.endswith("i"):
        whole = f"{ROUNDINGS[rounding[1]]}(double({value}))"
        result = whole if to[0] == "f" else f"emulator::saturated<{TYPES[to]}>({whole})"
        return names.store(o[0], to, result)
    if match["sat"]:
        return names.store(o[0], to, f"emulator::saturated<{TYPES[to]}>(double({value}))")
    return names.store(o[0], to, f"{TYPES[to]}({value})")


def _to_float8(_match: re.Match[str], o: Text, names: Operands) -> str:
    """Two numbers of 8 bits, the first one's in the upper byte."""
    upper, lower = (f"emulator::to_e4m3({names.value('f32', text)})" for text in o[1:])
    return names.store(o[0], "u16", f"{upper} << 8 | {lower}")


def _move(match: re.Match[str], o: Text, names: Operands) -> str:
    """A register, its parts, or one put together of parts."""
    if o[0].startswith("{"):
        parts = names.vector(o[0])
        width, whole = bits_of(match["type"]) // len(parts), names.bits(o[1])
        remaining = [(place, part) for place, part in enumerate(parts) if part != "_"]
        return " ".join(f"{names.bits(part)} = uint64_t({whole}) >> {place * width};" for place, part in remaining)
    if o[1].startswith("{"):
        parts = names.vector(o[1])
        width = bits_of(match["type"]) // len(parts)
        whole = " | ".join(f"uint64_t({names.value(f'u{width}', part)}) << {i * width}" for i, part in enumerate(parts))
        return names.store(o[0], f"u{bits_of(match['type'])}", whole)
    return f"{names.bits(o[0])} = {names.bits(o[1])};"


def _called(function: str) -> Rule:
    """An instruction on 32 bits that is a function of its operands."""

    def rule(_match: re.Match[str], o: Text, names: Operands) -> str:
        return names.store(o[0], "u32", f"{function}({', '.join(names.value('u32', text) for text in o[1:])})")

    return rule


def _real(function: str) -> Rule:
    """A function of real numbers of one type."""

    def rule(match: re.Match[str], o: Text, names: Operands) -> str:
        return names.store(o[0], match["type"], function.format(names.value(match["type"], o[1])))

    return rule


def _dot(match: re.Match[str], o: Text, names: Operands) -> str:
    a, b, total = (names.value("u32", text) for text in o[1:])
    types = (TYPES[f"{match[kind][0]}8"] for kind in ("a", "b"))
    return names.store(o[0], "u32", f"emulator::dot_bytes<{', '.join(types)}>({a}, {b}, {total})")


def _dot_words(match: re.Match[str], o: Text, names: Operands) -> str:
    """Two words of one with the lower or the upper two bytes of the other."""
    a, b, total = (names.value("u32", text) for text in o[1:])
    types = TYPES[f"{match['a']}16"], TYPES[f"{match['b']}8"]
    moved = f"{b} >> {16 if match['part'] == 'hi' else 0}"
    return names.store(o[0], "u32", f"emulator::dot_words<{', '.join(types)}>({a}, {moved}, {total})")


def _copy_sign(match: re.Match[str], o: Text, names: Operands) -> str:
    sign, size = (names.value(match["type"], text) for text in o[1:])
    return names.store(o[0], match["type"], f"std::copysign({size}, {sign})")


def _predicates(match: re.Match[str], o: Text, names: Operands) -> str:
    return f"{names.bits(o[0])} = {names.bits(o[1])} {OPERATORS[match['op']]} {names.bits(o[2])};"


INTEGER, REAL = r"(?P<type>[sub](?:16|32|64))", r"(?P<type>f(?:16|32|64))"
RULES: dict[str, Rule] = {
    rf"(?P<op>add|sub)\.{INTEGER}": _binary,
    # What says nothing of its rounding may become part of a fused product where it is translated.
    rf"(?P<op>add|sub|mul)\.rn\.{REAL}": _binary,
    r"(?P<op>add|sub|mul|fma)\.r(?P<rounding>[zmp])\.(?P<type>f32|f64)": _directed,
    rf"(?P<op>mul)\.lo\.{INTEGER}": _binary,
    rf"mad\.lo\.{INTEGER}": _multiply_add,
    r"(?P<op>mul|mad)\.(?P<part>wide)\.(?P<type>[su](?:16|32))": _widened,
    rf"(?P<op>mul)\.(?P<part>hi)\.{INTEGER}": _widened,
    rf"fma\.rn\.{REAL}": _fused,
    rf"(?P<op>div|rem)\.{INTEGER}": _divide,
    rf"(?P<op>div)\.rn\.{REAL}": _divide,
    rf"(?P<op>min|max)\.{INTEGER}": _extreme,
    rf"(?P<op>min|max)\.{REAL}": _extreme,
    r"(?P<op>and|or|xor)\.(?P<type>b(?:16|32|64))": _binary,
    r"(?P<op>and|or|xor)\.pred": _predicates,
    r"(?P<op>not)\.(?P<type>pred|b16|b32|b64)": _unary,
    rf"(?P<op>neg|abs)\.{INTEGER}": _unary,
    rf"(?P<op>neg|abs)\.{REAL}": _unary,
    r"(?P<op>shl|shr)\.(?P<type>[sub](?:16|32|64))": _shift,
    r"shf\.(?P<side>[lr])\.(?P<mode>wrap|clamp)\.b32": _funnel,
    r"bfe\.(?P<type>[su](?:32|64))": _field,
    r"bfi\.(?P<type>b(?:32|64))": _insert,
    r"selp\.(?P<type>[subf](?:16|32|64))": _select,
    r"setp\.(?P<how>[a-z]+)(?:\.(?P<with>and|or|xor))?\.(?P<type>[subf](?:16|32|64))": _compare,
    r"cvt(?:\.(?P<rounding>r[nzmp]i?))?(?P<sat>\.sat)?\.(?P<to>[suf](?:8|16|32|64))\.(?P<type>[suf](?:8|16|32|64))": (
        _convert
    ),
    r"cvt\.rn\.satfinite\.e4m3x2\.f32": _to_float8,
    r"mov\.(?P<type>pred|[subf](?:16|32|64))": _move,
    r"prmt\.b32": _called("emulator::permuted"),
    r"lop3\.b32": _called("emulator::logic"),
    r"dp4a\.(?P<a>[su])32\.(?P<b>[su])32": _dot,
    r"dp2a\.(?P<part>lo|hi)\.(?P<a>[su])32\.(?P<b>[su])32": _dot_words,
    r"copysign\.(?P<type>f32|f64)": _copy_sign,
    r"popc\.b32": _called("std::popcount"),
    r"clz\.b32": _called("std::countl_zero"),
    r"sqrt\.rn\.(?P<type>f32|f64)": _real("std::sqrt({})"),
    r"rcp\.rn\.(?P<type>f32|f64)": _real("1 / {}"),
    # What a GPU approximates to one or two units is as exact here as the library of C.
    r"ex2\.approx\.ftz\.(?P<type>f32)": _real("emulator::flushed(std::exp2(emulator::flushed({})))"),
    # Where more digits are needed, what uses these goes on with Newton's method.
    r"rcp\.approx\.ftz\.(?P<type>f64)": _real("1 / {}"),
    r"rsqrt\.approx\.ftz\.(?P<type>f64)": _real("1 / std::sqrt({})"),
    r"rsqrt\.approx\.ftz\.(?P<type>f32)": _real("emulator::flushed(1 / std::sqrt(emulator::flushed({})))"),
    r"sqrt\.approx\.ftz\.(?P<type>f32)": _real("emulator::flushed(std::sqrt(emulator::flushed({})))"),
    r"(?P<op>div)\.approx\.ftz\.(?P<type>f32)": _flushed_quotient,
    r"lg2\.approx\.ftz\.(?P<type>f32)": _real("std::log2(emulator::flushed({}))"),
    r"rcp\.approx\.ftz\.(?P<type>f32)": _real("emulator::flushed(1 / emulator::flushed({}))"),
}
