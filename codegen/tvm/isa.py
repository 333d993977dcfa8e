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
    7-bit parts, because products of bytes are summed in 16 bits.
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
        return {"kind": self.kind, "mcpu": self.cpu} if self.cpu else {"kind": self.kind}

    def dot(self, total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
        """total (int32, one per lane) plus x[place … + 4] times each lane's four weights from w[offset]."""
        from tvm.tirx.script import builder as T  # noqa: N812

        if self.lanes == 1:
            row, column = place
            return sum(
                (T.Cast("int32", x[row, column + i]) * T.Cast("int32", w[offset + i]) for i in range(DOT)), start=total
            )
        row, column = place
        taps = T.reinterpret("int32", x[row, T.ramp(column, 1, DOT)])
        taps = T.reinterpret(f"uint8x{DOT * self.lanes}", T.Broadcast(taps, self.lanes))
        weights = w[T.ramp(offset, 1, DOT * self.lanes)]
        if self.name == AVX512_VNNI.name:
            return T.call_llvm_pure_intrin("int32x16", "llvm.x86.avx512.vpdpbusd.512", total, taps, weights)
        pairs = T.call_llvm_pure_intrin("int16x16", "llvm.x86.avx2.pmadd.ub.sw", taps, weights)
        ones = T.Broadcast(T.int16(1), 16)
        return total + T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", pairs, ones)


_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")
AVX2 = Isa("avx2", "haswell", _AVX2, lanes=8, accumulators=8, halves=True)
AVX512_VNNI = Isa("avx512-vnni", "cascadelake", (*_AVX2, *_AVX512), lanes=16, accumulators=28)
# Plain C: for other processors, and for what address and undefined-behaviour sanitizers can look into.
C = Isa("c", "", (), lanes=1, accumulators=16, kind="c")
KNOWN = {isa.name: isa for isa in (AVX512_VNNI, AVX2, C)}


def named(name: str) -> Isa:
    """The instruction set of a name. Raises UsageError naming the known ones."""
    if name not in KNOWN:
        raise UsageError(f"instruction set {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]
