"""A decoder of Llama's shape with random weights: `python models/random_llama.py [--size 20m] [--cache]`.

Pre-norm layers with RMS norm, rotary positions, grouped queries and a gated product (Touvron et al., "Llama 2", 2023,
arXiv 2307.09288). Weights are drawn and written one after the other, as external data, so that no more than one is in
memory whatever the size. With a cache, keys and values of earlier tokens are inputs and outputs. For memory and time,
which do not depend on the weights; needs onnx, ml_dtypes and NumPy only.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import onnx
from drafts import Nodes
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
OPSET = 18
EPSILON, BASE, POSITIONS = 1e-5, 10_000.0, 2048
# Where each tensor of the data file begins, as mapping it into memory asks for.
ALIGNED = 4096
# Spread of the logits, and of what each layer adds to the stream.
LOGITS, ADDED = 3.0, 0.5
# NumPy's types of what ONNX calls by these names, and the number that hides a place.
TYPES = {
    "float32": (np.dtype(np.float32), TensorProto.FLOAT, -1e9),
    "float16": (np.dtype(np.float16), TensorProto.FLOAT16, -6e4),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, -1e9),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: layers, width of the stream, heads and heads of keys, inner width, vocabulary."""

    layers: int
    width: int
    heads: int
    shared: int
    inner: int
    vocabulary: int

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Elements of all matrices."""
        keys = 2 * self.width * self.shared * self.head
        return self.layers * (2 * self.width**2 + keys + 3 * self.width * self.inner) + 2 * self.vocabulary * self.width


# By about their parameters; 1.1b is TinyLlama's.
SHAPES = {
    "1m": Shape(2, 128, 4, 2, 256, 2048),
    "20m": Shape(9, 384, 6, 2, 1024, 8192),
    "100m": Shape(12, 768, 12, 4, 2048, 16384),
    "300m": Shape(16, 1024, 16, 4, 2816, 32000),
    "1.1b": Shape(22, 2048, 32, 4, 5632, 32000),
}


@dataclass
class Draft(Nodes):
    """A graph in the making. data: takes the matrices; location: its name beside the model."""

    shape: Shape
    kind: str
    data: BinaryIO
    location: str
    random: np.random.Generator
    has_cache: bool = False
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: np.ndarray | float | list[int]) -> str:
        """A new constant inside the model: int64 for lists, else of the model's type."""
        dtype = np.dtype(np.int64) if isinstance(array, list) else TYPES[self.kind][0]
        made = numpy_helper.from_array(np.asarray(array).astype(dtype), f"constant_{len(self.constants)}")
        self.constants.append(made)
        return made.name

    def matrix(self, name: str, inputs: int, outputs: int, deviation: float) -> str:
        """Normal numbers (inputs, outputs) behind the others in the data file."""
        dtype, number, _ = TYPES[self.kind]
        self.data.seek(-(-self.data.tell() // ALIGNED) * ALIGNED)
        start = self.data.tell()
        drawn = self.random.standard_normal((inputs, outputs), np.float32)
        drawn *= np.float32(deviation)
        self.data.write(drawn.astype(dtype).tobytes())
        made = TensorProto(name=name, data_type=number, dims=[inputs, outputs], data_location=TensorProto.EXTERNAL)
        place = {"location": self.location, "offset": start, "length": drawn.size * dtype.itemsize}
        for key, value in place.items():
            made.external_data.add(key=key, value=str(value))
        self.constants.append(made)
        return name

    def times(self, x: str, name: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """A product with a matrix that keeps the size of what it is multiplied with, times the gain."""
        return self.op("MatMul", x, self.matrix(name, inputs, outputs, gain / np.sqrt(inputs)))

    def norm(self, x: str) -> str:
        """RMS norm."""
        power = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", power, self.constant(EPSILON)))
        gain = self.random.uniform(0.5, 1.5, self.shape.width)
        return self.op("Mul", self.op("Div", x, root), self.constant(gain))

    def heads(self, x: str, count: int) -> str:
        """(N, T, count · head) as (N, count, T, head)."""
        split = self.op("Reshape", x, self.constant([0, 0, count, self.shape.head]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        """Rotary positions, halves against each other."""
        half = self.shape.head // 2
        low, high = self.op("Split", x, output=f"low_{len(self.nodes)}", axis=-1), f"high_{len(self.nodes)}"
        self.nodes[-1].output.append(high)
        self.nodes[-1].input.append(self.constant([half, half]))
        turned = self.op("Concat", self.op("Neg", high), low, axis=-1)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", turned, sin))

    def cached(self, name: str, new: str) -> str:
        """What is new behind the past, where there is one."""
        return self.op("Concat", f"past_{name}", new, axis=2, output=f"present_{name}") if self.has_cache else new

    def repeated(self, x: str) -> str:
        """(N, shared, T, head) as (N, heads, T, head): every shared head for its queries."""
        shape = self.shape
        times = self.constant([1, 1, shape.heads // shape.shared, 1, 1])
        wide = self.op("Expand", self.op("Unsqueeze", x, self.constant([2])), times)
        return self.op("Reshape", wide, self.constant([0, shape.heads, -1, shape.head]))


def write(shape: Shape, path: Path, kind: str = "float32", seed: int = 0, cache: bool = False) -> None:
    """Write the network, `tokens` (N, T) to `logits` (N, T, vocabulary) in float32, and its data beside it.

    cache: with `past_key_0` … in and `present_key_0` … out, (N, shared, places, head).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".data").open("wb") as data:
        draft = Draft(shape, kind, data, path.with_suffix(".data").name, np.random.default_rng(seed), cache)
        positions = _positions(draft)
        x = draft.op("Gather", draft.matrix("embedding", shape.vocabulary, shape.width, 1.0), "tokens")
        for layer in range(shape.layers):
            x = draft.op("Add", x, _attention(draft, draft.norm(x), f"layer_{layer}", positions))
            x = draft.op("Add", x, _gated(draft, draft.norm(x), f"layer_{layer}"))
        last = draft.times(draft.norm(x), "head", shape.width, shape.vocabulary, LOGITS)
        draft.op("Cast", last, output="logits", to=TensorProto.FLOAT)
    given = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", "T"])]
    made = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", "T", shape.vocabulary])]
    for name in cache_names(shape) if cache else ():
        for values, prefix, places in ((given, "past", "P"), (made, "present", "Q")):
            sizes: list[str | int | None] = ["N", shape.shared, places, shape.head]
            values.append(helper.make_tensor_value_info(f"{prefix}_{name}", TYPES[kind][1], sizes))
    graph = helper.make_graph(draft.nodes, "random_llama", given, made, draft.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def _positions(draft: Draft) -> tuple[str, str, str]:
    """Cosines and sines (T, head) of the places of the tokens, and what is added to scores (T, T)."""
    length = draft.op("Squeeze", draft.op("Shape", "tokens", start=1, end=2), draft.constant([0]))
    zero, one = (draft.op("Squeeze", draft.constant([value])) for value in (0, 1))
    first, end = zero, length
    if draft.has_cache:
        first = draft.op("Squeeze", draft.op("Shape", "past_key_0", start=2, end=3), draft.constant([0]))
        end = draft.op("Add", first, length)
    places = draft.op("Range", first, end, one)
    every = draft.op("Range", zero, end, one) if draft.has_cache else places
    half = draft.shape.head // 2
    angles = np.arange(POSITIONS)[:, None] * BASE ** (-np.arange(half) / half)
    tables = (np.concatenate([function(angles)] * 2, 1) for function in (np.cos, np.sin))
    cos, sin = (draft.op("Gather", draft.constant(table), places) for table in tables)
    is_seen = draft.op("LessOrEqual", every, draft.op("Unsqueeze", places, draft.constant([1])))
    lowest = TYPES[draft.kind][2]
    return cos, sin, draft.op("Where", is_seen, draft.constant(0.0), draft.constant(lowest))


def _attention(draft: Draft, x: str, name: str, positions: tuple[str, str, str]) -> str:
    """Grouped queries."""
    cos, sin, mask = positions
    shape, keys = draft.shape, draft.shape.shared * draft.shape.head
    q = draft.rotated(draft.heads(draft.times(x, f"{name}_q", shape.width, shape.width), shape.heads), cos, sin)
    k = draft.rotated(draft.heads(draft.times(x, f"{name}_k", shape.width, keys), shape.shared), cos, sin)
    v = draft.heads(draft.times(x, f"{name}_v", shape.width, keys), shape.shared)
    number = name.removeprefix("layer_")
    k, v = draft.cached(f"key_{number}", k), draft.cached(f"value_{number}", v)
    scores = draft.op("MatMul", q, draft.op("Transpose", draft.repeated(k), perm=[0, 1, 3, 2]))
    scores = draft.op("Add", draft.op("Mul", scores, draft.constant(shape.head**-0.5)), mask)
    mixed = draft.op("MatMul", draft.op("Softmax", scores, axis=-1), draft.repeated(v))
    rows = draft.op("Reshape", draft.op("Transpose", mixed, perm=[0, 2, 1, 3]), draft.constant([0, 0, shape.width]))
    return draft.times(rows, f"{name}_o", shape.width, shape.width, ADDED)


def _gated(draft: Draft, x: str, name: str) -> str:
    """SwiGLU."""
    shape = draft.shape
    gate = draft.times(x, f"{name}_gate", shape.width, shape.inner)
    gate = draft.op("Mul", gate, draft.op("Sigmoid", gate))
    inner = draft.op("Mul", gate, draft.times(x, f"{name}_up", shape.width, shape.inner))
    return draft.times(inner, f"{name}_down", shape.inner, shape.width, 2 * ADDED)


def samples(shape: Shape, count: int, length: int, seed: int = 0) -> np.ndarray:
    """Random tokens (count, length)."""
    return np.random.default_rng(seed).integers(0, shape.vocabulary, (count, length))


def cache_names(shape: Shape) -> list[str]:
    """Of keys and values, without `past_` or `present_`."""
    return [f"{kind}_{layer}" for layer in range(shape.layers) for kind in ("key", "value")]


def step(shape: Shape, past: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Feeds of one token behind a random past of a network with a cache, in float32."""
    random = np.random.default_rng(seed)
    size = (1, shape.shared, past, shape.head)
    caches = {f"past_{name}": random.standard_normal(size, np.float32) for name in cache_names(shape)}
    return {"tokens": samples(shape, 1, 1, seed), **caches}


def main() -> None:
    """Write the network, and samples for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SHAPES, default="20m")
    parser.add_argument("--type", choices=TYPES, default="float32")
    parser.add_argument("--cache", action="store_true", help="keys and values of earlier tokens are inputs and outputs")
    parser.add_argument("--samples", type=int, default=32, help="random token sequences to calibrate with")
    parser.add_argument("--length", type=int, default=64, help="of each of them")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models" / "random_llama.onnx")
    options = parser.parse_args()
    shape = SHAPES[options.size]
    write(shape, options.out, options.type, cache=options.cache)
    if not options.cache:
        np.savez(options.out.with_suffix(".npz"), tokens=samples(shape, options.samples, options.length))
    print(f"{options.out}: {shape.parameters:,} parameters in {options.type}")


if __name__ == "__main__":
    main()
