"""Instruction sets that kernels are written for: vector length, registers, and the inner product of bytes."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptqc.errors import UsageError
from ptqc.native.interface import Build
from ptqc.native.machine import machine, processor_features

# Of a loop over products that is unrolled whole, LLVM loads all inputs first: more than there are registers.
UNROLLED = "-unroll-full-max-count:uint=3"
# An inner product takes this many neighbouring bytes of the input and of the weight at once.
DOT = 4


@dataclass(frozen=True)
class Packs:
    """LLVM's names of conversions: float32 to int32 (to even), int32 to int16 and int16 to uint8 (saturating)."""

    round: str
    words: str
    codes: str


@dataclass(frozen=True)
class BfloatInstructions:
    """LLVM's names for bfloat16: inner products of pairs in float32, and float32 rounded to it."""

    products: str
    rounding: str


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    cpu: what LLVM calls the oldest processor that has it. features: as the system lists them. lanes: 32-bit numbers in
    a vector. registers: vectors that it holds. working: those an inner product needs beside sums and weights. packs:
    where it has them, within parts of 128 bits. products: LLVM's name of inner products of four bytes in 32 bits.
    in_words: whether products of bytes are summed in 16 bits instead. half: the same with vectors of half the length.
    pick: LLVM's name of picking bytes from each part of 128 bits; permute: from two whole vectors. bfloats: where
    it has them. attributes: what LLVM may use beyond its cpu. machine: as the system names it.
    """

    name: str
    cpu: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    working: int
    packs: Packs | None = None
    products: str = ""
    in_words: bool = False
    half: "Isa | None" = None
    pick: str = ""
    permute: str = ""
    bfloats: BfloatInstructions | None = None
    attributes: tuple[str, ...] = ()
    kind: str = "llvm"
    machine: str = "x86_64"

    @property
    def target(self) -> dict[str, Any]:
        """The target as TVM takes it."""
        if not self.cpu:
            return {"kind": self.kind}
        found = {"kind": self.kind, "mcpu": self.cpu, "mtriple": f"{self.machine}-linux-gnu", "cl-opt": [UNROLLED]}
        return {**found, "mattr": list(self.attributes)} if self.attributes else found

    def refusal(self) -> str | None:
        """Why its instructions would kill the process on this machine, if they would."""
        return Build(self.name, self.machine, self.features).refusal()

    def widest(self, dtype: str) -> int:
        """Numbers of a type that one store takes."""
        return 1 if self.lanes == 1 else self.lanes * np.dtype("int32").itemsize // np.dtype(dtype).itemsize

    def dot(self, total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
        """total (int32, one per lane) plus x[place … + 4] times each lane's four weights from w[offset]."""
        if self.packs is None:
            return (_neon if self.machine == "aarch64" else _scalar)(total, x, place, w, offset)
        return self.add_products(total, self.taps(x, place), self.weights(w, offset))

    def taps(self, x: Any, place: Any) -> Any:
        """Four neighbouring bytes of the input, the same in every lane."""
        return _taps(x, place, self.lanes)

    def weights(self, w: Any, offset: Any) -> Any:
        """Four neighbouring weights for every lane."""
        from tvm.tirx.script import builder as T  # noqa: N812

        return w[T.ramp(offset, 1, DOT * self.lanes)]

    def add_products(self, total: Any, taps: Any, weights: Any) -> Any:
        """total (int32) plus the inner products of four bytes each."""
        if self.in_words:
            return total + self.widen(self.words(taps, weights))
        return self._call("int32", 1, self.products, total, taps, weights)

    def words(self, taps: Any, weights: Any) -> Any:
        """int16 sums of two products of bytes each."""
        return self._call("int16", 2, "llvm.x86.avx2.pmadd.ub.sw", taps, weights)

    def widen(self, words: Any) -> Any:
        """int32 sums of each lane's two words."""
        from tvm.tirx.script import builder as T  # noqa: N812

        ones = T.Broadcast(T.int16(1), 2 * self.lanes)
        return self._call("int32", 1, "llvm.x86.avx2.pmadd.wd", words, ones)

    def round(self, x: Any) -> Any:
        """int32 of a float32 vector, halves to even."""
        from tvm.tirx.script import builder as T  # noqa: N812

        assert self.packs is not None
        # What the 512-bit form also takes: where masked lanes come from, the mask, and the rounding of the processor.
        rest = (T.Broadcast(T.int32(0), 16), T.int16(-1), T.int32(4)) if self.lanes == 16 else ()
        return self._call("int32", 1, self.packs.round, x, *rest)

    def saturate_words(self, a: Any, b: Any) -> Any:
        """int16 of two int32 vectors, part by part."""
        assert self.packs is not None
        return self._call("int16", 2, self.packs.words, a, b)

    def saturate_codes(self, a: Any, b: Any) -> Any:
        """uint8 of two int16 vectors, part by part."""
        assert self.packs is not None
        return self._call("uint8", 4, self.packs.codes, a, b)

    def pick_bytes(self, table: Any, places: Any) -> Any:
        """Bytes of each part of `table` at the places in the same part; 0 where a place is 128 or more."""
        return self._call("uint8", DOT, self.pick, table, places)

    def permute_bytes(self, low: Any, places: Any, high: Any) -> Any:
        """Bytes of two vectors, one behind the other, at the places modulo their length."""
        return self._call("uint8", DOT, self.permute, low, places, high)

    def _call(self, dtype: str, per_lane: int, name: str, *operands: Any) -> Any:
        from tvm.tirx.script import builder as T  # noqa: N812

        return T.call_llvm_pure_intrin(f"{dtype}x{per_lane * self.lanes}", name, *operands)


def _taps(x: Any, place: Any, lanes: int) -> Any:
    from tvm.tirx.script import builder as T  # noqa: N812

    row, column = place
    taps = T.reinterpret("int32", x[row, T.ramp(column, 1, DOT)])
    return T.reinterpret(f"uint8x{DOT * lanes}", T.Broadcast(taps, lanes))


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
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")
_PACKS_256 = Packs("llvm.x86.avx.cvt.ps2dq.256", "llvm.x86.avx2.packssdw", "llvm.x86.avx2.packuswb")
_PACKS_512 = Packs("llvm.x86.avx512.mask.cvtps2dq.512", "llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packuswb.512")
_VNNI = "llvm.x86.avx512.vpdpbusd"
_PICK_256, _PICK_512 = "llvm.x86.avx2.pshuf.b", "llvm.x86.avx512.pshuf.b.512"
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi"
AVX2 = Isa("avx2", "haswell", _AVX2, lanes=8, registers=16, working=6, packs=_PACKS_256, in_words=True, pick=_PICK_256)
# The products of bytes of AVX-512 VNNI on vectors of AVX2, which processors without AVX-512 have.
AVX_VNNI = replace(
    AVX2,
    name="avx-vnni",
    features=(*_AVX2, "avx_vnni"),
    working=1,
    in_words=False,
    products=f"{_VNNI}.256",
    attributes=("+avxvnni",),
)
_VNNI_HALF = Isa(
    "avx512-vnni",
    "cascadelake",
    _AVX512,
    lanes=8,
    registers=32,
    working=1,
    packs=_PACKS_256,
    products=f"{_VNNI}.256",
    pick=_PICK_256,
)
AVX512_VNNI = replace(_VNNI_HALF, lanes=16, packs=_PACKS_512, products=f"{_VNNI}.512", half=_VNNI_HALF, pick=_PICK_512)
_VBMI = {"name": "avx512-vbmi", "features": (*_AVX512, "avx512vbmi"), "attributes": ("+avx512vbmi",)}
_VBMI_HALF = replace(_VNNI_HALF, permute=f"{_PERMUTE}.256", **_VBMI)  # type: ignore[arg-type]
AVX512_VBMI = replace(AVX512_VNNI, permute=f"{_PERMUTE}.512", half=_VBMI_HALF, **_VBMI)  # type: ignore[arg-type]
AVX512_BF16 = replace(
    AVX512_VBMI,
    name="avx512-bf16",
    features=(*AVX512_VBMI.features, "avx512_bf16"),
    attributes=(*AVX512_VBMI.attributes, "+avx512bf16"),
    bfloats=BfloatInstructions("llvm.x86.avx512bf16.dpbf16ps.512", "llvm.x86.avx512bf16.cvtneps2bf16.512"),
)
AARCH64 = Isa("aarch64", "generic", ("asimd",), lanes=4, registers=32, working=8, machine="aarch64")
# Plain C: for other processors, and for what address and undefined-behaviour sanitizers can look into.
C = Isa("c", "", (), lanes=1, registers=16, working=2, kind="c")
KNOWN = {isa.name: isa for isa in (AVX512_BF16, AVX512_VBMI, AVX512_VNNI, AVX_VNNI, AVX2, AARCH64, C)}


def named(name: str) -> Isa:
    """The instruction set of a name; `host`: the best of this machine, `portable`: the first of its kind.

    Raises UsageError naming the known ones.
    """
    if name in ("host", "portable"):
        return _of_machine(processor_features() if name == "host" else None)
    if name not in KNOWN:
        raise UsageError(f"instruction set {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def several(names: str) -> list[Isa]:
    """Instruction sets of comma-separated names, the best first, each once. Raises UsageError naming the known ones."""
    wanted = [named(name) for name in names.split(",")]
    return [isa for isa in KNOWN.values() if isa in wanted]


def _of_machine(features: Set[str] | None) -> Isa:
    """The best for these features on a machine of this kind; without features, the one that asks for the least."""
    own = [isa for isa in KNOWN.values() if isa.machine == machine() and isa.cpu]
    found = own[-1:] if features is None else [isa for isa in own if features >= set(isa.features)]
    if not found:
        raise UsageError(f"this processor has none of the instruction sets {', '.join(isa.name for isa in own)}")
    return found[0]
