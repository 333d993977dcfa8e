"""Each instruction that computes with registers, against NumPy, at the ends of the ranges and in between."""

import operator
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx.parser
import onnxruntime
import pytest
from emulated import Emulated, aligned, kernel

from ptqc.codegen.cuda.emulator import building
from ptqc.codegen.cuda.emulator.ptx import NotEmulated
from ptqc.codegen.cuda.emulator.translation import translated

pytestmark = pytest.mark.skipif(bool(building.refusal()), reason=str(building.refusal()))

THREADS = 256
NUMPY = {"u": np.uint64, "s": np.int64}
EDGES = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
]
REALS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    -2.5,
    2.5,
    255.5,
    3e38,
    -3e38,
    1e-45,
    np.inf,
    -np.inf,
    np.nan,
    2**31,
    -(2.0**31),
]
REGISTER = {8: "%h", 16: "%h", 32: "%r", 64: "%q"}
Values = np.ndarray


class Case(NamedTuple):
    """Types of the inputs a, b, c and of the output d; an instruction; what it computes."""

    given: str
    made: str
    code: str
    reference: Callable[..., npt.ArrayLike]


def typed(name: str) -> np.dtype:
    return np.dtype({"u": "uint", "s": "int", "f": "float"}[name[0]] + name[1:])


def wide(values: Values) -> Values:
    """Exact integers."""
    return values.astype(object)


def rounded(values: Values) -> Values:
    return np.rint(values)


def saturated(values: Values, dtype: str) -> Values:
    ends = np.iinfo(dtype)
    clean = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
    return np.array([min(max(int(value), ends.min), ends.max) for value in clean.reshape(-1)], object)


def shifted(a: Values, by: Values, width: int) -> Values:
    return np.array([int(x) >> min(int(n), width) for x, n in zip(a, by, strict=True)], object)


def permuted(a: Values, b: Values, how: Values) -> Values:
    result = []
    for low, high, places in zip(a, b, how, strict=True):
        data = int(low).to_bytes(4, "little") + int(high).to_bytes(4, "little")
        taken = [(int(places) >> 4 * i) & 15 for i in range(4)]
        made = [(0xFF if data[n & 7] & 0x80 else 0) if n & 8 else data[n & 7] for n in taken]
        result.append(int.from_bytes(bytes(made), "little"))
    return np.array(result, object)


def dot(a: Values, b: Values, c: Values, left: str, right: str) -> Values:
    x, y = (
        v.astype(np.uint32).view(np.uint8).reshape(-1, 4).view(t).astype(np.int64) for v, t in ((a, left), (b, right))
    )
    return wide((x * y).sum(1)) + wide(c)


def dot_words(a: Values, b: Values, c: Values, left: str, right: str) -> Values:
    x = a.astype(np.uint32).view(np.uint16).reshape(-1, 2).view(left).astype(np.int64)
    y = b.astype(np.uint32).view(np.uint8).reshape(-1, 4)[:, :2].copy().view(right).astype(np.int64)
    return wide((x * y).sum(1)) + wide(c)


def towards_zero(a: Values, b: Values, exactly: Callable[[Fraction, Fraction], Fraction]) -> Values:
    """Of finite results: the nearest number, or its neighbour where that is farther from zero than what is exact."""
    result = np.array(exactly(a, b), np.float32)  # type: ignore[arg-type]
    for i, (x, y, near) in enumerate(zip(a, b, result, strict=True)):
        if np.isinf(near) and np.isfinite(x) and np.isfinite(y):
            result[i] = np.copysign(np.finfo(np.float32).max, near)
        elif np.isfinite(near) and abs(Fraction(float(near))) > abs(exactly(Fraction(float(x)), Fraction(float(y)))):
            result[i] = np.nextafter(near, np.float32(0))
    return result


def e4m3(values: Values) -> Values:
    """Codes of the nearest numbers, 448 beyond it, 127 of what is none."""
    codes = np.clip(values.astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(127), codes)


def logic(a: Values, b: Values, c: Values, table: int) -> Values:
    """Bit by bit: which bit of the table the three bits choose."""
    made = np.zeros_like(a)
    for bit in range(32):
        place = ((a >> bit) & 1) * 4 + ((b >> bit) & 1) * 2 + ((c >> bit) & 1)
        made |= ((np.uint32(table) >> place) & np.uint32(1)) << np.uint32(bit)
    return made


CASES = {
    "add.u32": Case("u32 u32", "u32", "add.s32 D, A, B;", lambda a, b: wide(a) + wide(b)),
    "sub.u64": Case("u64 u64", "u64", "sub.s64 D, A, B;", lambda a, b: wide(a) - wide(b)),
    "add.u16": Case("u16 u16", "u16", "add.s16 D, A, B;", lambda a, b: wide(a) + wide(b)),
    "mul.lo": Case("s32 s32", "s32", "mul.lo.s32 D, A, B;", lambda a, b: wide(a) * wide(b)),
    "mad.lo": Case("s32 s32 s32", "s32", "mad.lo.s32 D, A, B, C;", lambda a, b, c: wide(a) * wide(b) + wide(c)),
    "mul.wide.s": Case("s32 s32", "s64", "mul.wide.s32 D, A, B;", lambda a, b: wide(a) * wide(b)),
    "mul.wide.u16": Case("u16 u16", "u32", "mul.wide.u16 D, A, B;", lambda a, b: wide(a) * wide(b)),
    "mad.wide.u": Case("u32 u32 u64", "u64", "mad.wide.u32 D, A, B, C;", lambda a, b, c: wide(a) * wide(b) + wide(c)),
    "mul.hi.u": Case("u32 u32", "u32", "mul.hi.u32 D, A, B;", lambda a, b: (wide(a) * wide(b)) >> 32),
    "mul.hi.s64": Case("s64 s64", "s64", "mul.hi.s64 D, A, B;", lambda a, b: (wide(a) * wide(b)) >> 64),
    "min.s": Case("s32 s32", "s32", "min.s32 D, A, B;", np.minimum),
    "max.u": Case("u32 u32", "u32", "max.u32 D, A, B;", np.maximum),
    "min.f": Case("f32 f32", "f32", "min.f32 D, A, B;", np.fmin),
    "max.f": Case("f32 f32", "f32", "max.f32 D, A, B;", np.fmax),
    "and": Case("u32 u32", "u32", "and.b32 D, A, B;", lambda a, b: a & b),
    "xor": Case("u64 u64", "u64", "xor.b64 D, A, B;", lambda a, b: a ^ b),
    "not": Case("u32", "u32", "not.b32 D, A;", lambda a: ~a),
    "neg": Case("s32", "s32", "neg.s32 D, A;", lambda a: -wide(a)),
    "abs.f": Case("f32", "f32", "abs.f32 D, A;", np.abs),
    "shl": Case("u32 u32", "u32", "shl.b32 D, A, B;", lambda a, b: wide(a) << wide(np.minimum(b, 64))),
    "shr.u": Case("u32 u32", "u32", "shr.u32 D, A, B;", lambda a, b: shifted(a, b, 32)),
    "shr.s": Case("s32 u32", "s32", "shr.s32 D, A, B;", lambda a, b: shifted(a, b, 32)),
    "shr.s64": Case("s64 u32", "s64", "shr.s64 D, A, B;", lambda a, b: shifted(a, b, 64)),
    "shf.l.wrap": Case(
        "u32 u32 u32", "u32", "shf.l.wrap.b32 D, A, B, C;",
        lambda a, b, c: ((wide(b) << 32 | wide(a)) << wide(c % 32)) >> 32,
    ),
    "bfe.u": Case("u32", "u32", "bfe.u32 D, A, 5, 9;", lambda a: (a >> 5) & 511),
    "bfe.s": Case("s32", "s32", "bfe.s32 D, A, 8, 8;", lambda a: (a >> 8).astype(np.int8)),
    "bfe.s beyond": Case("s32", "s32", "bfe.s32 D, A, 28, 8;", lambda a: a >> 28),
    "bfi": Case("u32 u32", "u32", "bfi.b32 D, A, B, 3, 6;", lambda a, b: (b & ~np.uint32(63 << 3)) | (a & 63) << 3),
    "prmt": Case("u32 u32 u32", "u32", "prmt.b32 D, A, B, C;", permuted),
    "lop3": Case("u32 u32 u32", "u32", "lop3.b32 D, A, B, C, 0xEA;", lambda a, b, c: (a & b) | c),
    "lop3 uneven": Case("u32 u32 u32", "u32", "lop3.b32 D, A, B, C, 0x2D;", lambda a, b, c: logic(a, b, c, 0x2D)),
    "dp4a.u.s": Case("u32 u32 s32", "s32", "dp4a.u32.s32 D, A, B, C;", lambda a, b, c: dot(a, b, c, "u1", "i1")),
    "dp4a.s.u": Case("u32 u32 s32", "s32", "dp4a.s32.u32 D, A, B, C;", lambda a, b, c: dot(a, b, c, "i1", "u1")),
    "dp4a.s.s": Case("u32 u32 s32", "s32", "dp4a.s32.s32 D, A, B, C;", lambda a, b, c: dot(a, b, c, "i1", "i1")),
    "dp2a.lo": Case(
        "u32 u32 s32", "s32", "dp2a.lo.u32.s32 D, A, B, C;", lambda a, b, c: dot_words(a, b, c, "u2", "i1")
    ),
    "dp2a.hi": Case(
        "u32 u32 s32", "s32", "dp2a.hi.s32.u32 D, A, B, C;", lambda a, b, c: dot_words(a, b >> 16, c, "i2", "u1")
    ),
    "copysign": Case("f32 f32", "f32", "copysign.f32 D, A, B;", lambda a, b: np.copysign(b, a)),
    "add.f": Case("f32 f32", "f32", "add.rn.f32 D, A, B;", lambda a, b: a + b),
    "mul.f": Case("f32 f32", "f32", "mul.rn.f32 D, A, B;", lambda a, b: a * b),
    "fma.f": Case(
        "f32 f32 f32", "f32", "fma.rn.f32 D, A, B, C;",
        lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(np.float32),
    ),
    "add.rz": Case("f32 f32", "f32", "add.rz.f32 D, A, B;", lambda a, b: towards_zero(a, b, operator.add)),
    "mul.rz": Case("f32 f32", "f32", "mul.rz.f32 D, A, B;", lambda a, b: towards_zero(a, b, operator.mul)),
    "div.f": Case("f32 f32", "f32", "div.rn.f32 D, A, B;", lambda a, b: a / b),
    "sqrt": Case("f32", "f32", "sqrt.rn.f32 D, A;", np.sqrt),
    "rint": Case("f32", "f32", "cvt.rni.f32.f32 D, A;", np.rint),
    "floor": Case("f32", "f32", "cvt.rmi.f32.f32 D, A;", np.floor),
    "to s32": Case("f32", "s32", "cvt.rzi.s32.f32 D, A;", lambda a: saturated(np.trunc(a), "int32")),
    "to u32 even": Case("f32", "u32", "cvt.rni.u32.f32 D, A;", lambda a: saturated(np.rint(a), "uint32")),
    "of s32": Case("s32", "f32", "cvt.rn.f32.s32 D, A;", lambda a: a.astype(np.float32)),
    "of u32": Case("u32", "f32", "cvt.rn.f32.u32 D, A;", lambda a: a.astype(np.float32)),
    "of f16": Case("f16", "f32", "cvt.f32.f16 D, A;", lambda a: a.astype(np.float32)),
    "to f16": Case("f32", "f16", "cvt.rn.f16.f32 D, A;", lambda a: a.astype(np.float16)),
    "to f64": Case("f32", "f64", "cvt.f64.f32 D, A;", lambda a: a.astype(np.float64)),
    "to e4m3": Case(
        "f32 f32", "u16", "cvt.rn.satfinite.e4m3x2.f32 D, A, B;", lambda a, b: wide(e4m3(a)) << 8 | wide(e4m3(b))
    ),
    "narrow": Case("s32", "s32", "cvt.s32.s8 D, A;", lambda a: a.astype(np.int8)),
    "u8 of s32": Case("s32", "u32", "cvt.sat.u8.s32 D, A;", lambda a: np.clip(a, 0, 255)),
    "div.s": Case("s32 s32", "s32", "div.s32 D, A, B;", lambda a, b: np.trunc(a / b).astype(np.int64)),
    "rem.u": Case("u32 u32", "u32", "rem.u32 D, A, B;", lambda a, b: a % b),
    "selp": Case("s32 s32", "s32", "setp.lt.s32 %p1, A, B; selp.b32 D, A, B, %p1;", np.minimum),
    "setp with": Case(
        "s32 s32", "u32", "setp.gt.s32 %p1, A, 0; setp.lt.and.s32 %p2, A, B, %p1; selp.u32 D, 1, 0, %p2;",
        lambda a, b: (a > 0) & (a < b),
    ),
    "setp.ltu": Case("f32 f32", "u32", "setp.ltu.f32 %p1, A, B; selp.u32 D, 1, 0, %p1;", lambda a, b: ~(a >= b)),
    "setp.neu": Case("f32 f32", "u32", "setp.neu.f32 %p1, A, B; selp.u32 D, 1, 0, %p1;", lambda a, b: a != b),
    "setp.ne": Case("f32 f32", "u32", "setp.ne.f32 %p1, A, B; selp.u32 D, 1, 0, %p1;", lambda a, b: (a < b) | (a > b)),
    "setp.hs": Case("u32 u32", "u32", "setp.hs.u32 %p1, A, B; selp.u32 D, 1, 0, %p1;", lambda a, b: a >= b),
    "a predicate, and not": Case(
        "u32 u32", "u32", "setp.ge.u32 %p1|%p2, A, B; not.pred %p3, %p2; and.pred %p4, %p1, %p3; "
        "selp.u32 D, 1, 0, %p4;",
        lambda a, b: a >= b,
    ),
    "a guard": Case("u32 u32", "u32", "mov.b32 D, A; setp.lt.u32 %p1, A, B; @!%p1 mov.b32 D, B;", np.minimum),
    "parts": Case(
        "u64", "u32", "mov.b64 {%r20, %r21}, A; xor.b32 D, %r20, %r21;",
        lambda a: (a >> 32) ^ (a & 0xFFFFFFFF),
    ),
    "whole": Case("u32 u32", "u64", "mov.b64 D, {A, B};", lambda a, b: wide(b) << 32 | wide(a)),
    "halves": Case("u16 u16", "u32", "mov.b32 D, {A, B};", lambda a, b: wide(b) << 16 | wide(a)),
    "popc": Case("u32", "u32", "popc.b32 D, A;", lambda a: [bin(int(x)).count("1") for x in a]),
    "a number": Case("f32", "f32", "add.rn.f32 D, A, 0fBFC00000;", lambda a: a - np.float32(1.5)),
    "a scope": Case("u32", "u32", "{ .reg .b32 twice; add.u32 twice, A, A; mov.b32 D, twice; }", lambda a: wide(a) * 2),
}  # fmt: skip


def text_of(name: str, case: Case) -> str:
    """A kernel that does the instruction on the values of its thread."""
    kinds = [*case.given.split(), case.made]
    code, lines = case.code, []
    for place, (kind, letter) in enumerate(zip(kinds, [*"ABC"[: len(kinds) - 1], "D"], strict=True)):
        size = int(kind[1:]) // 8
        register = f"{REGISTER[size * 8]}{9 + place}"
        code = code.replace(f" {letter}", f" {register}").replace(f"{{{letter}", f"{{{register}")
        lines.append(f"mad.wide.u32 %q{5 + place}, %r0, {size}, %q{place};")
        if letter != "D":
            lines.append(f"ld.global.b{size * 8} {register}, [%q{5 + place}];")
        else:
            lines += [code, f"st.global.b{size * 8} [%q{5 + place}], {register};"]
    return kernel(name, "\n".join(lines), len(kinds))


def inputs(case: Case) -> list[Values]:
    random = np.random.default_rng(0)
    result = []
    for place, kind in enumerate(case.given.split()):
        dtype = typed(kind)
        if kind[0] == "f":
            with np.errstate(over="ignore"):
                edges = np.resize(np.roll(REALS, place), THREADS // 2).astype(dtype)
            values = np.concatenate([edges, random.normal(0, 100, THREADS - len(edges)).astype(dtype)])
        else:
            edges = np.resize(np.roll(np.array(EDGES, np.uint64), 3 * place), THREADS // 2)
            many = random.integers(0, 2**64, THREADS - len(edges), dtype=np.uint64)
            values = np.concatenate([edges, many]).astype(f"u{dtype.itemsize}").view(dtype)
        result.append(values)
    if case.code.startswith(("div.s", "rem")):
        result[1] = np.where(np.isin(result[1], (0, -1)), 7, result[1]).astype(result[1].dtype)
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    texts = [text_of(f"k{number}", case) for number, case in enumerate(CASES.values())]
    return Emulated(texts, tmp_path_factory.mktemp("emulated"))


@pytest.mark.parametrize("name", CASES)
def test_an_instruction_gives_what_numpy_gives(name: str, built: Emulated) -> None:
    case, given = CASES[name], [aligned(values) for values in inputs(CASES[name])]
    dtype = typed(case.made)
    result = aligned(np.zeros(THREADS, dtype))
    assert built(f"k{list(CASES).index(name)}", *given, result, threads=THREADS) == ""
    with np.errstate(all="ignore"):
        wanted = np.asarray(case.reference(*given))
    if wanted.dtype == object or dtype.kind in "ui":
        wanted = np.array([int(value) % 2 ** (8 * dtype.itemsize) for value in wanted], np.uint64)
        wanted = wanted.astype(f"u{dtype.itemsize}").view(dtype)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.long
def test_every_number_of_fp8_and_every_middle_is_rounded_as_onnx_runtime_does(tmp_path: Path) -> None:
    """QuantizeLinear saturates, and takes halves to even."""
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.sort(numbers[np.isfinite(numbers)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    beyond = np.array([449, 464, 480, 1e30, -449, -464, np.inf, -np.inf, 1e-45, -1e-45], np.float32)
    x = np.concatenate([finite, middles, *near, beyond]).astype(np.float32)
    value = aligned(np.resize(x, (len(x) + 31) // 32 * 32))
    result = aligned(np.zeros(len(value), np.uint16))
    case = Case("f32", "u16", "cvt.rn.satfinite.e4m3x2.f32 D, 0f3F800000, A;", e4m3)
    assert Emulated([text_of("k", case)], tmp_path)("k", value, result, threads=len(value)) == ""
    graph = """<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float8e4m3fn[N] y) {
        s = Constant <value_float = 1.0> ()
        y = QuantizeLinear <output_dtype = 17> (x, s)
    }"""
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(graph).SerializeToString())
    (wanted,) = session.run(["y"], {"x": value})
    np.testing.assert_array_equal(result & 255, wanted)
    np.testing.assert_array_equal(result >> 8, 0x38)


@pytest.mark.parametrize(
    "opcode", ["add.cc.u32", "mul.f32", "add.ftz.f32", "tex.2d.v4.f32.s32", "cvt.rn.satfinite.e5m2x2.f32"]
)
def test_an_unknown_instruction_is_named(opcode: str) -> None:
    with pytest.raises(NotEmulated, match=f"does not know the instruction {opcode}"):
        translated(kernel("k", f"{opcode} %r1, %r2, %r3;"))


@pytest.mark.parametrize("operand", ["<3>", "somewhere"])
def test_an_unknown_operand_is_named(operand: str) -> None:
    with pytest.raises(NotEmulated, match=f"does not know the operand '{operand}'"):
        translated(kernel("k", f"add.u32 %r1, %r2, {operand};"))


def test_an_unknown_directive_is_named() -> None:
    with pytest.raises(NotEmulated, match=r"does not know the directive '\.branchtargets"):
        translated(kernel("k", ".branchtargets a, b;"))
