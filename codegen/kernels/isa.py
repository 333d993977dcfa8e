"""What kernels are written for: vector length, registers, and the inner product of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.runtime.interface import Build

# Of a loop over products that is unrolled whole, LLVM loads all inputs first: more than there are registers.
UNROLLED = "-unroll-full-max-count:uint=3"
# An inner product takes this many neighbouring bytes of the input and of the weight at once.
DOT = 4
# What inputs of products are called, by their bytes.
INPUTS = {1: ("u8", "s8"), 2: ("bf16",)}
# Of the codes of activations: less this, they are signed bytes.
MIDDLE = 128
NEON_BYTES = 16


@dataclass(frozen=True)
class TileShape:
    """A matrix instruction: m × n sums of products, of inputs (m, k) and weights (k, n). Rows of tables are these."""

    m: int
    n: int
    k: int
    #: Of an input, of a weight and of a sum, as PTX names types.
    inputs: str = "u8"
    weights: str = "s8"
    sums: str = "s32"
    #: What LLVM calls it.
    name: str = ""


@dataclass(frozen=True)
class TileInstructions:
    """What LLVM calls the instructions for registers of whole tiles; a name without "llvm." is a function of C.

    A thread configures the registers before it uses them and releases them behind that.
    """

    configure: str
    release: str
    load: str
    store: str
    #: How many registers there are.
    registers: int


@dataclass(frozen=True)
class Packs:
    """LLVM's names of conversions: float32 to int32 (to even), int32 to int16 and int16 to uint8 (saturating)."""

    round: str
    words: str
    codes: str
    #: Whether each narrows one vector; else two, within parts of 128 bits.
    of_one: bool = False


@dataclass(frozen=True)
class BfloatInstructions:
    """bfloat16 for LLVM: the name of inner products of pairs in float32, and how the float32 numbers %x are rounded."""

    products: str
    rounding: str


@dataclass(frozen=True)
class Isa:
    """One instruction set."""

    name: str
    #: What LLVM calls the oldest processor that has it.
    cpu: str
    #: As the system lists them.
    features: tuple[str, ...]
    #: 32-bit numbers in a vector.
    lanes: int
    #: Vectors that the registers hold.
    registers: int
    #: Vectors that an inner product needs beside sums and weights.
    working: int
    #: Packs within parts of 128 bits, where it has them.
    packs: Packs | None = None
    #: Products, the best first; one of m rows needs m pixels. Without any of bytes, simpler instructions multiply.
    tiles: tuple[TileShape, ...] = ()
    #: Of registers that hold a whole tile, which takes m pixels or fewer.
    tile_registers: TileInstructions | None = None
    #: Whether products of single rows take inputs as signed bytes, codes less MIDDLE; see `signed_bias`.
    signed_inputs: bool = False
    #: Whether products of single rows take four bytes of the input out of a vector of them.
    by_lane: bool = False
    #: Whether products of bytes are summed in 16 bits.
    in_words: bool = False
    #: The same with vectors of half the length.
    half: "Isa | None" = None
    #: The same with inputs as signed bytes, for weights of 8 bits.
    signed: "Isa | None" = None
    #: LLVM's name of giving bytes the signs of others: how signed inputs get into products with unsigned ones.
    sign: str = ""
    #: LLVM's name of picking bytes from each part of 128 bits.
    pick: str = ""
    #: LLVM's name of picking bytes from two whole vectors.
    permute: str = ""
    #: LLVM's name of picking bytes from four vectors, one behind the other; 0 for places beyond.
    look_up: str = ""
    bfloats: BfloatInstructions | None = None
    #: What LLVM may use beyond its cpu.
    attributes: tuple[str, ...] = ()
    kind: str = "llvm"
    #: The target whose libraries have it.
    owner: str = "cpu"
    #: As the system names it.
    machine: str = "x86_64"

    @property
    def target(self) -> dict[str, Any]:
        """The target as TVM takes it."""
        if not self.cpu:
            return {"kind": self.kind}
        options = {"kind": self.kind, "mcpu": self.cpu, "mtriple": f"{self.machine}-linux-gnu", "cl-opt": [UNROLLED]}
        return {**options, "mattr": list(self.attributes)} if self.attributes else options

    @property
    def by_element(self) -> bool:
        """Whether every element has a thread of its own, so that runs of neighbours are nothing to be moved at once."""
        return self.kind == "cuda"

    def shapes(self, width: int) -> tuple[TileShape, ...]:
        """Products of numbers of so many bytes, the best first; the last one is of one row, by other instructions."""
        own = (tile for tile in self.tiles if tile.inputs in INPUTS.get(width, ()))
        return (*own, TileShape(1, self.lanes, DOT // width))

    @property
    def _products(self) -> str:
        """LLVM's name of inner products of four bytes, if there is such an instruction."""
        return next((tile.name for tile in self.tiles if (tile.m, tile.k) == (1, DOT)), "")

    @property
    def multiplies_bytes(self) -> bool:
        """Whether it has inner products of vectors of bytes, in 32 bits or in 16."""
        return bool(self._products) or self.in_words

    @property
    def largest_input(self) -> int:
        """The largest magnitude of an input in a product of bytes."""
        return MIDDLE if self.signed_inputs else 255

    def signed_bias(self, bias: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """int32 biases by output that make up for inputs of products of single rows, see `signed_inputs`."""
        if not self.signed_inputs:
            return bias
        return np.asarray(bias + MIDDLE * weights.reshape(len(weights), -1).sum(1, dtype=np.int32))

    def refusal(self) -> str | None:
        """Why its instructions would kill the process on this machine, if they would."""
        return Build(self.name, self.machine, self.features).refusal()

    def widest(self, dtype: str) -> int:
        """Numbers of a type that one store takes."""
        return 1 if self.lanes == 1 else self.lanes * np.dtype("int32").itemsize // np.dtype(dtype).itemsize

    def dot(self, total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
        """total (int32, one per lane) plus x[place … + 4] times each lane's four weights from w[offset]."""
        if not self.multiplies_bytes:
            return _scalar(total, x, place, w, offset)
        return self.add_products(total, self.taps(x, place), self.weights(w, offset))

    def taps(self, x: Any, place: Any) -> Any:
        """Four neighbouring bytes of the input, the same in every lane."""
        from tvm.tirx.script import builder as T  # noqa: N812

        row, column = place
        # Of integers, LLVM would change the signs before they are in every lane, in registers that are no vectors.
        dtype = "float32" if self.signed_inputs else "int32"
        four = T.reinterpret(dtype, x[row, T.ramp(column, 1, DOT)])
        return self.as_inputs(T.reinterpret(f"uint8x{DOT * self.lanes}", T.Broadcast(four, self.lanes)))

    def vector_of_taps(self, x: Any, place: Any) -> Any:
        """As many neighbouring fours of bytes of the input as there are lanes, for `taps_in`."""
        from tvm.tirx.script import builder as T  # noqa: N812

        row, column = place
        return T.reinterpret(f"int32x{self.lanes}", self.as_inputs(x[row, T.ramp(column, 1, DOT * self.lanes)]))

    def as_inputs(self, codes: Any) -> Any:
        """A vector of uint8 codes as products of bytes take them."""
        from tvm.tirx.script import builder as T  # noqa: N812

        return T.bitwise_xor(codes, T.Broadcast(T.uint8(MIDDLE), DOT * self.lanes)) if self.signed_inputs else codes

    def taps_in(self, fours: Any, index: int) -> Any:
        """One of these fours, the same in every lane."""
        from tvm.tirx.script import builder as T  # noqa: N812

        return T.reinterpret(f"uint8x{DOT * self.lanes}", T.Shuffle([fours], [T.int32(index)] * self.lanes))

    def weights(self, w: Any, offset: Any) -> Any:
        """Four neighbouring weights for every lane."""
        from tvm.tirx.script import builder as T  # noqa: N812

        return w[T.ramp(offset, 1, DOT * self.lanes)]

    def add_products(self, total: Any, taps: Any, weights: Any) -> Any:
        """total (int32) plus the inner products of four bytes each."""
        if self.in_words:
            return total + self.widen(self.words(taps, weights))
        # Of two signed operands, instructions that take one out of a vector take the second.
        operands = (weights, taps) if self.signed_inputs else (taps, weights)
        return self._call("int32", 1, self._products, total, *operands)

    def multiply(self, tile: TileShape, total: Any, x: Any, places: Sequence[Any], w: Any, offset: Any) -> Any:
        """Add a tile of products to its sums (int32, row by row): of k bytes from each of m places of the input, and of
        as many weights of n outputs from w[offset], output by output.
        """
        from tvm.tirx.script import builder as T  # noqa: N812

        rows = [x[row, T.ramp(column, 1, tile.k)] for row, column in places]
        inputs = T.Shuffle(rows, [T.int32(i) for i in range(tile.m * tile.k)])
        return self._call("int32", 1, tile.name, total, inputs, w[T.ramp(offset, 1, tile.k * tile.n)])

    def emit(self, name: str, *operands: Any) -> None:
        """Emit an instruction for tile registers."""
        from tvm.tirx.script import builder as T  # noqa: N812

        call = T.call_llvm_intrin if name.startswith("llvm.") else T.call_extern
        T.evaluate(call("void", name, *operands))

    def words(self, taps: Any, weights: Any) -> Any:
        """int16 sums of two products of bytes each."""
        from tvm.tirx.script import builder as T  # noqa: N812

        if self.machine == "aarch64":
            return _neon_words(taps, weights)
        if self.signed_inputs:
            inputs = T.Bind(T.reinterpret(f"int8x{DOT * self.lanes}", taps))
            weights = self._call("int8", DOT, self.sign, weights, inputs)
            taps = T.reinterpret(f"uint8x{DOT * self.lanes}", T.abs(inputs))
        return self._call("int16", 2, "llvm.x86.avx2.pmadd.ub.sw", taps, weights)

    def widen(self, words: Any) -> Any:
        """int32 sums of each lane's two words."""
        from tvm.tirx.script import builder as T  # noqa: N812

        if self.machine == "aarch64":
            return self._call("int32", 1, "llvm.aarch64.neon.saddlp", words)
        ones = T.Broadcast(T.int16(1), 2 * self.lanes)
        return self._call("int32", 1, "llvm.x86.avx2.pmadd.wd", words, ones)

    def round(self, x: Any) -> Any:
        """int32 of a float32 vector, halves to even."""
        from tvm.tirx.script import builder as T  # noqa: N812

        assert self.packs is not None
        # What the 512-bit form also takes: where masked lanes come from, the mask, and the rounding of the processor.
        remainder = (T.Broadcast(T.int32(0), 16), T.int16(-1), T.int32(4)) if self.lanes == 16 else ()
        return self._call("int32", 1, self.packs.round, x, *remainder)

    def saturate_words(self, a: Any, b: Any) -> Any:
        """int16 of two int32 vectors, part by part."""
        assert self.packs is not None
        return self._narrowed("int16", 2, self.packs.words, a, b)

    def saturate_codes(self, a: Any, b: Any) -> Any:
        """uint8 of two int16 vectors, part by part."""
        assert self.packs is not None
        return self._narrowed("uint8", 4, self.packs.codes, a, b)

    def _narrowed(self, dtype: str, per_lane: int, name: str, *pair: Any) -> Any:
        from tvm.tirx.script import builder as T  # noqa: N812

        if self.packs is None or not self.packs.of_one:
            return self._call(dtype, per_lane, name, *pair)
        count = per_lane * self.lanes
        halves = [T.call_llvm_pure_intrin(f"{dtype}x{count // 2}", name, one) for one in pair]
        return T.Shuffle(halves, [T.int32(place) for place in range(count)])

    def pick_bytes(self, table: Any, places: Any) -> Any:
        """Bytes of each part of `table` at the places in the same part; 0 where a place is 128 or more."""
        return self._call("uint8", DOT, self.pick, table, places)

    def permute_bytes(self, low: Any, places: Any, high: Any) -> Any:
        """Bytes of two vectors, one behind the other, at the places modulo their length."""
        return self._call("uint8", DOT, self.permute, low, places, high)

    def look_up_bytes(self, tables: Sequence[Any], places: Any) -> Any:
        """Bytes of four vectors, one behind the other, at the places; 0 beyond."""
        return self._call("uint8", DOT, self.look_up, *tables, places)

    def _call(self, dtype: str, per_lane: int, name: str, *operands: Any) -> Any:
        from tvm.tirx.script import builder as T  # noqa: N812

        return T.call_llvm_pure_intrin(f"{dtype}x{per_lane * self.lanes}", name, *operands)


def _neon_words(taps: Any, weights: Any) -> Any:
    """Without the dot product extension: two vectors of products of signed bytes, and sums of their neighbours."""
    from tvm.tirx.script import builder as T  # noqa: N812

    inputs = T.reinterpret(f"int8x{NEON_BYTES}", taps)
    halves = ([T.int32(first + i) for i in range(NEON_BYTES // 2)] for first in (0, NEON_BYTES // 2))
    products = [
        T.call_llvm_pure_intrin(
            "int16x8", "llvm.aarch64.neon.smull", *(T.Shuffle([x], half) for x in (inputs, weights))
        )
        for half in halves
    ]
    return T.call_llvm_pure_intrin("int16x8", "llvm.aarch64.neon.addp", *products)


def _scalar(total: Any, x: Any, place: Any, w: Any, offset: Any) -> Any:
    from tvm.tirx.script import builder as T  # noqa: N812

    row, column = place
    taps = (T.Cast("int32", x[row, column + i]) * T.Cast("int32", w[offset + i]) for i in range(DOT))
    return sum(taps, start=total)
