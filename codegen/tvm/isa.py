"""Instruction sets that kernels are written for: vector length, registers, and the inner product of bytes."""

from dataclasses import dataclass
from typing import Any

from ptqc.errors import UsageError

# An inner product takes this many neighbouring bytes of the input and of the weight at once.
DOT = 4


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    cpu: what LLVM calls the oldest processor that has it. features: as the system lists them. lanes: 32-bit numbers in
    a vector. accumulators: vectors that a kernel keeps in registers. halves: whether 8-bit weights are split in two
    7-bit parts, because products of bytes are summed in 16 bits. machine: as the system names it.
    """

    name: str
    cpu: str
    features: tuple[str, ...]
    lanes: int
    accumulators: int
    halves: bool = False
    kind: str = "llvm"
    machine: str = "x86_64"

    @property
    def target(self) -> dict[str, str]:
        """The target as TVM takes it."""
        if not self.cpu:
            return {"kind": self.kind}
        return {"kind": self.kind, "mcpu": self.cpu, "mtriple": f"{self.machine}-linux-gnu"}

    def dot(self, total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
        """total (int32, one per lane) plus x[place … + 4] times each lane's four weights from w[offset]."""
        return _DOTS[self.name](total, x, place, w, offset)


def _taps(x: Any, place: Any, lanes: int) -> Any:
    """Four neighbouring bytes of the input, the same in every lane."""
    from tvm.tirx.script import builder as T  # noqa: N812

    row, column = place
    taps = T.reinterpret("int32", x[row, T.ramp(column, 1, DOT)])
    return T.reinterpret(f"uint8x{DOT * lanes}", T.Broadcast(taps, lanes))


def _vnni(total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
    from tvm.tirx.script import builder as T  # noqa: N812

    weights = w[T.ramp(offset, 1, 64)]
    return T.call_llvm_pure_intrin("int32x16", "llvm.x86.avx512.vpdpbusd.512", total, _taps(x, place, 16), weights)


def _avx2(total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
    from tvm.tirx.script import builder as T  # noqa: N812

    taps, weights = _taps(x, place, 8), w[T.ramp(offset, 1, 32)]
    pairs = T.call_llvm_pure_intrin("int16x16", "llvm.x86.avx2.pmadd.ub.sw", taps, weights)
    ones = T.Broadcast(T.int16(1), 16)
    return total + T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", pairs, ones)


def _neon(total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
    """Without the dot product extension: one product of bytes fits in 16 bits, neighbours are summed in 32."""
    from tvm.tirx.script import builder as T  # noqa: N812

    taps = T.Cast("int16x8", _taps(x, place, 2))
    products = [taps * T.Cast("int16x8", w[T.ramp(offset + start, 1, 8)]) for start in (0, 8)]
    pairs = [T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.saddlp", product) for product in products]
    return total + T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.addp", *pairs)


def _scalar(total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
    from tvm.tirx.script import builder as T  # noqa: N812

    row, column = place
    taps = (T.Cast("int32", x[row, column + i]) * T.Cast("int32", w[offset + i]) for i in range(DOT))
    return sum(taps, start=total)


_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")
AVX2 = Isa("avx2", "haswell", _AVX2, lanes=8, accumulators=8, halves=True)
AVX512_VNNI = Isa("avx512-vnni", "cascadelake", (*_AVX2, *_AVX512), lanes=16, accumulators=28)
AARCH64 = Isa("aarch64", "generic", ("asimd",), lanes=4, accumulators=16, machine="aarch64")
# Plain C: for other processors, and for what address and undefined-behaviour sanitizers can look into.
C = Isa("c", "", (), lanes=1, accumulators=16, kind="c")
_DOTS = {AVX2.name: _avx2, AVX512_VNNI.name: _vnni, AARCH64.name: _neon, C.name: _scalar}
KNOWN = {isa.name: isa for isa in (AVX512_VNNI, AVX2, AARCH64, C)}


def named(name: str) -> Isa:
    """The instruction set of a name. Raises UsageError naming the known ones."""
    if name not in KNOWN:
        raise UsageError(f"instruction set {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]
