"""What kernels are written for: vector length, registers, and the inner product of bytes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.runtime.interface import Build

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
    owner: the target whose libraries have it.
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
    owner: str = "cpu"
    machine: str = "x86_64"

    @property
    def target(self) -> dict[str, Any]:
        """The target as TVM takes it."""
        if not self.cpu:
            return {"kind": self.kind}
        found = {"kind": self.kind, "mcpu": self.cpu, "mtriple": f"{self.machine}-linux-gnu", "cl-opt": [UNROLLED]}
        return {**found, "mattr": list(self.attributes)} if self.attributes else found

    @property
    def by_element(self) -> bool:
        """Whether every element has a thread of its own, so that runs of neighbours are nothing to be moved at once."""
        return self.kind == "cuda"

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
