"""A small decoder with the parts of Llama: `python models/tiny_llama.py [--outliers] [--without-cache] [--out FILE]`.

Two pre-norm layers with RMS norm, rotary positions, grouped queries, a gated product and a key-value cache as inputs
and outputs. The cache grows by the tokens of each run; with `--capacity N` it has room for N from the start, each run
takes one token and its place, and all sizes are fixed, as native libraries want them. Weights are random. With outliers
some channels carry FACTOR times their values, which the weights behind them take back, so that the function is the
same: behind norms, between value and output projection, and between up and down projection. The values of a cache are
part of the interface, so with a cache those between value and output stay.
Needs onnx and NumPy only.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from drafts import Nodes
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
OPSET = 18
LAYERS, WIDTH, HEADS, SHARED, SIZE, INNER, VOCABULARY, POSITIONS = 2, 256, 4, 2, 64, 512, 256, 512
# One channel in EVERY, the first of which is FIRST, carries FACTOR times its values.
FACTOR, EVERY, FIRST = 25.0, 50, 7
EPSILON, BASE, LOWEST = 1e-5, 10_000.0, -1e9
# Spread of the logits, and of what each layer adds to the stream.
LOGITS, ADDED = 3.0, 0.5


@dataclass
class Draft(Nodes):
    """A graph in the making."""

    random: np.random.Generator
    has_outliers: bool
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: np.ndarray | float | list[int]) -> str:
        """A new constant: int64 for lists, else float32."""
        kind = np.int64 if isinstance(array, list) else np.float32
        self.constants.append(numpy_helper.from_array(np.asarray(array, kind), f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def matrix(self, inputs: int, outputs: int, gain: float = 1.0) -> np.ndarray:
        """Normal numbers (inputs, outputs) that keep the size of what they are multiplied with, times the gain."""
        return self.random.normal(0, gain / np.sqrt(inputs), (inputs, outputs))

    def factors(self, count: int) -> np.ndarray:
        """How many times its value each channel carries."""
        factors = np.ones(count)
        factors[FIRST::EVERY] = FACTOR if self.has_outliers else 1.0
        return factors

    def times(self, x: str, weight: np.ndarray) -> str:
        """A product with a constant matrix."""
        return self.op("MatMul", x, self.constant(weight))

    def norm(self, x: str) -> str:
        """RMS norm; its readers take back its outliers."""
        power = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", power, self.constant(EPSILON)))
        gain = self.random.uniform(0.5, 1.5, WIDTH) * self.factors(WIDTH)
        return self.op("Mul", self.op("Div", x, root), self.constant(gain))

    def heads(self, x: str, count: int) -> str:
        """(N, T, count · SIZE) as (N, count, T, SIZE)."""
        return self.op("Transpose", self.op("Reshape", x, self.constant([0, 0, count, SIZE])), perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        """Rotary positions, halves against each other."""
        axis, half = self.constant([3]), self.constant([SIZE // 2])
        low = self.op("Slice", x, self.constant([0]), half, axis)
        high = self.op("Slice", x, half, self.constant([SIZE]), axis)
        turned = self.op("Concat", self.op("Neg", high), low, axis=-1)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", turned, sin))

    def repeated(self, x: str) -> str:
        """(N, SHARED, T, SIZE) as (N, HEADS, T, SIZE): every shared head for its queries."""
        times = self.constant([1, 1, HEADS // SHARED, 1, 1])
        wide = self.op("Expand", self.op("Unsqueeze", x, self.constant([2])), times)
        return self.op("Reshape", wide, self.constant([0, HEADS, -1, SIZE]))


@dataclass(frozen=True)
class Positions:
    """cos, sin: (T, SIZE) of the places of the tokens. mask: what is added to scores (T, all places).

    is_here: of a cache with a capacity, which of its places is that of the token: (1, 1, capacity, 1).
    """

    cos: str
    sin: str
    mask: str
    is_here: str = ""


def build(outliers: bool = False, cache: bool = True, seed: int = 0, capacity: int = 0) -> onnx.ModelProto:
    """The network: `tokens` (N, T) to `logits` (N, T, VOCABULARY), with `past_key_0` … to `present_key_0` ….

    capacity: of the cache, where it has a fixed size; then N and T are 1, and `position_ids` (1, 1) is the place of the
    token, counted from 0.
    """
    draft = Draft(np.random.default_rng(seed), outliers)
    past = "past_key_0" if cache else ""
    positions = _position(draft, capacity) if capacity else _positions(draft, past)
    x = draft.op("Gather", draft.constant(draft.random.normal(0, 1, (VOCABULARY, WIDTH))), "tokens")
    for layer in range(LAYERS):
        x = draft.op("Add", x, _attention(draft, draft.norm(x), layer if cache else None, positions))
        x = draft.op("Add", x, _gated(draft, draft.norm(x)))
    reader = draft.matrix(WIDTH, VOCABULARY, LOGITS) / draft.factors(WIDTH)[:, None]
    draft.op("MatMul", draft.norm(x), draft.constant(reader), output="logits")
    return _model(draft, cache, capacity)


def _position(draft: Draft, capacity: int) -> Positions:
    """Of one token, whose place is an input."""
    place = draft.op("Reshape", "position_ids", draft.constant([1]))
    every, column = draft.constant([*range(capacity)]), draft.constant([1, 1, capacity, 1])
    is_seen = draft.op("LessOrEqual", every, place)
    mask = draft.op("Where", is_seen, draft.constant(0.0), draft.constant(LOWEST))
    is_here = draft.op("Reshape", draft.op("Equal", every, place), column)
    cos, sin = (draft.op("Gather", table, place) for table in _tables(draft))
    return Positions(cos, sin, mask, is_here)


def _tables(draft: Draft) -> tuple[str, str]:
    """Cosines and sines (POSITIONS, SIZE) of all places."""
    angles = np.arange(POSITIONS)[:, None] * BASE ** (-np.arange(0, SIZE, 2) / SIZE)
    cos, sin = (np.concatenate([function(angles)] * 2, 1) for function in (np.cos, np.sin))
    return draft.constant(cos), draft.constant(sin)


def _positions(draft: Draft, past: str) -> Positions:
    """Of tokens behind a past, or of a whole text."""
    length = draft.op("Gather", draft.op("Shape", "tokens"), draft.constant([1]))
    zero, one, first = draft.constant([0]), draft.constant([1]), draft.constant([0])
    if past:
        first = draft.op("Gather", draft.op("Shape", past), draft.constant([2]))
    end = draft.op("Add", first, length)
    scalars = [draft.op("Squeeze", value) for value in (zero, one, first, end)]
    places = draft.op("Range", scalars[2], scalars[3], scalars[1])
    every = draft.op("Range", scalars[0], scalars[3], scalars[1])
    cos, sin = (draft.op("Gather", table, places) for table in _tables(draft))
    is_seen = draft.op("LessOrEqual", every, draft.op("Unsqueeze", places, one))
    return Positions(cos, sin, draft.op("Where", is_seen, draft.constant(0.0), draft.constant(LOWEST)))


def _cached(draft: Draft, name: str, new: str, positions: Positions) -> str:
    """The past with what is new: behind it, or in its place where the cache has a capacity."""
    if positions.is_here:
        return draft.op("Where", positions.is_here, new, f"past_{name}", output=f"present_{name}")
    return draft.op("Concat", f"past_{name}", new, axis=2, output=f"present_{name}")


def _attention(draft: Draft, x: str, layer: int | None, positions: Positions) -> str:
    """Grouped queries; layer: of the cache, None without one."""
    cos, sin, mask = positions.cos, positions.sin, positions.mask
    taken = 1 / draft.factors(WIDTH)[:, None]
    query, key, value = (draft.matrix(WIDTH, count * SIZE) for count in (HEADS, SHARED, SHARED))
    out = draft.matrix(HEADS * SIZE, WIDTH, ADDED)
    carried = draft.factors(SIZE) if layer is None else np.ones(SIZE)
    q = draft.rotated(draft.heads(draft.times(x, taken * query), HEADS), cos, sin)
    k = draft.rotated(draft.heads(draft.times(x, taken * key), SHARED), cos, sin)
    v = draft.heads(draft.times(x, taken * value * np.tile(carried, SHARED)), SHARED)
    if layer is not None:
        k = _cached(draft, f"key_{layer}", k, positions)
        v = _cached(draft, f"value_{layer}", v, positions)
    scores = draft.op("MatMul", q, draft.op("Transpose", draft.repeated(k), perm=[0, 1, 3, 2]))
    scores = draft.op("Add", draft.op("Mul", scores, draft.constant(SIZE**-0.5)), mask)
    mixed = draft.op("MatMul", draft.op("Softmax", scores, axis=-1), draft.repeated(v))
    rows = draft.op("Reshape", draft.op("Transpose", mixed, perm=[0, 2, 1, 3]), draft.constant([0, 0, WIDTH]))
    return draft.times(rows, out / np.tile(carried, HEADS)[:, None])


def _gated(draft: Draft, x: str) -> str:
    """SwiGLU."""
    taken, carried = 1 / draft.factors(WIDTH)[:, None], draft.factors(INNER)
    gate, up = draft.matrix(WIDTH, INNER), draft.matrix(WIDTH, INNER)
    down = draft.matrix(INNER, WIDTH, 2 * ADDED)
    gate_ = draft.times(x, taken * gate)
    gate_ = draft.op("Mul", gate_, draft.op("Sigmoid", gate_))
    inner = draft.op("Mul", gate_, draft.times(x, taken * up * carried))
    return draft.times(inner, down / carried[:, None])


def _model(draft: Draft, cache: bool, capacity: int) -> onnx.ModelProto:
    def value(name: str, *shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    names = [f"{kind}_{layer}" for layer in range(LAYERS) for kind in ("key", "value")] if cache else []
    batch, length, past, whole = (1, 1, capacity, capacity) if capacity else ("N", "T", "P", "Q")
    given = [helper.make_tensor_value_info("tokens", TensorProto.INT64, [batch, length])]
    if capacity:
        given.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, 1]))
    given += [value(f"past_{name}", batch, SHARED, past, SIZE) for name in names]
    made = [value("logits", batch, length, VOCABULARY)]
    made += [value(f"present_{name}", batch, SHARED, whole, SIZE) for name in names]
    graph = helper.make_graph(draft.nodes, "tiny_llama", given, made, draft.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def sample(length: int, past: int = 0, cache: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """One sample: random tokens, behind a random past where there is a cache."""
    random = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {"tokens": random.integers(0, VOCABULARY, (1, length))}
    for layer in range(LAYERS) if cache else ():
        for kind in ("key", "value"):
            feeds[f"past_{kind}_{layer}"] = random.normal(0, 1, (1, SHARED, past, SIZE)).astype(np.float32)
    return feeds


def main() -> None:
    """Write the network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outliers", action="store_true", help="some channels carry 25 times their values")
    parser.add_argument("--without-cache", action="store_true", help="whole sequences only")
    parser.add_argument("--capacity", type=int, default=0, help="a cache of a fixed size, for one token at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models" / "tiny_llama.onnx")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.without_cache and options.capacity:
        parser.error("a capacity is that of a cache")
    if options.capacity > POSITIONS:
        parser.error(f"there are {POSITIONS} places")
    onnx.save(build(options.outliers, not options.without_cache, capacity=options.capacity), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
