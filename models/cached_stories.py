"""stories260K with a cache of keys and values: `python models/cached_stories.py stories260K.onnx [--capacity N]`.

Takes the weights out of the exported decoder, which reads whole texts, and puts them into a graph with `past_key_0` …
and `present_key_0` …, (texts, heads, places, channels). The cache grows by the tokens of each run; with `--capacity N`
it has room for N from the start, each run takes one token and its place, and all sizes are fixed. Numbers are those of
the export to rounding. Needs onnx and NumPy only.
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
HEADS, EPSILON, LOWEST = 8, 1e-5, -1e4


@dataclass(frozen=True)
class Weights:
    """Constants of the export, by the path of the module that reads them. cos, sin: (places, pairs of channels)."""

    by_name: dict[str, np.ndarray]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "Weights":
        """Of the exported decoder. Matrices have names of their own there, so the products' names count."""
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        products = {node.name: node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
        matrices = {name.strip("/"): arrays[taken] for name, taken in products.items() if taken in arrays}
        return cls({**arrays, **{name.removesuffix("/MatMul"): array for name, array in matrices.items()}})

    def __getitem__(self, name: str) -> np.ndarray:
        return self.by_name[name]

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return sum(name.endswith(".n1") for name in self.by_name)

    @property
    def width(self) -> int:
        """Of the stream."""
        return self["nf"].size

    @property
    def size(self) -> int:
        """Channels of one head."""
        return self.width // HEADS

    @property
    def shared(self) -> int:
        """Heads of keys and values."""
        return int(self["blocks.0/k"].shape[1]) // self.size

    @property
    def places(self) -> int:
        """The longest text."""
        return len(self["cos"])


@dataclass
class Draft(Nodes):
    """A graph in the making. cos, sin: (T, 1, channels / 2); is_here: of a cache with a capacity, the token's place."""

    weights: Weights
    capacity: int
    constants: list[onnx.TensorProto] = field(default_factory=list)
    cos: str = ""
    sin: str = ""
    mask: str = ""
    is_here: str = ""

    def constant(self, array: np.ndarray | float | list[int]) -> str:
        """A new constant: int64 for lists, else float32."""
        kind = np.int64 if isinstance(array, list) else np.float32
        self.constants.append(numpy_helper.from_array(np.asarray(array, kind), f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def times(self, x: str, name: str) -> str:
        """A product with a matrix."""
        return self.op("MatMul", x, self.constant(self.weights[name]))

    def norm(self, x: str, name: str) -> str:
        """RMS norm."""
        power = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", power, self.constant(EPSILON)))
        return self.op("Mul", self.op("Div", x, root), self.constant(self.weights[name]))

    def heads(self, x: str, count: int) -> str:
        """(N, T, count · size) as (N, count, T, size)."""
        split = self.op("Reshape", x, self.constant([0, 0, count, self.weights.size]))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x: str, count: int) -> str:
        """Heads (N, count, T, size) of x, neighbours turned against each other by the places of their tokens."""
        pairs = self.op("Reshape", x, self.constant([0, 0, count, self.weights.size // 2, 2]))
        a, b = (self.op("Gather", pairs, self.constant([place]), axis=4) for place in (0, 1))
        turned = (
            self.op("Sub", self.op("Mul", a, self.cos), self.op("Mul", b, self.sin)),
            self.op("Add", self.op("Mul", a, self.sin), self.op("Mul", b, self.cos)),
        )
        return self.heads(self.op("Concat", *turned, axis=4), count)

    def cached(self, name: str, new: str) -> str:
        """The past with what is new: behind it, or in its place where the cache has a capacity."""
        if self.is_here:
            return self.op("Where", self.is_here, new, f"past_{name}", output=f"present_{name}")
        return self.op("Concat", f"past_{name}", new, axis=2, output=f"present_{name}")

    def repeated(self, x: str) -> str:
        """(N, shared, S, size) as (N, HEADS, S, size): every shared head for its queries."""
        times = self.constant([1, 1, HEADS // self.weights.shared, 1, 1])
        wide = self.op("Expand", self.op("Unsqueeze", x, self.constant([2])), times)
        return self.op("Reshape", wide, self.constant([0, HEADS, -1, self.weights.size]))


def build(exported: onnx.ModelProto, capacity: int = 0) -> onnx.ModelProto:
    """The network: `tokens` (N, T) to `logits` (N, T, vocabulary), with caches in and out.

    capacity: of the cache, where it has a fixed size; then N and T are 1, and `position_ids` (1, 1) is the place of the
    token, counted from 0.
    """
    weights = Weights.of(exported)
    draft = Draft(weights, capacity)
    _place(draft)
    x = draft.op("Gather", draft.constant(weights["emb.weight"]), "tokens")
    for layer in range(weights.layers):
        x = draft.op("Add", x, _attention(draft, draft.norm(x, f"blocks.{layer}.n1"), layer))
        x = draft.op("Add", x, _gated(draft, draft.norm(x, f"blocks.{layer}.n2"), f"blocks.{layer}"))
    draft.op("MatMul", draft.norm(x, "nf"), draft.constant(weights["head"]), output="logits")
    return _model(draft)


def _place(draft: Draft) -> None:
    """Cosines and sines of the tokens' places, and what each of them sees."""
    if draft.capacity:
        places = draft.op("Reshape", "position_ids", draft.constant([1]))
        every = draft.constant([*range(draft.capacity)])
        is_here = draft.op("Equal", every, places)
        draft.is_here = draft.op("Reshape", is_here, draft.constant([1, 1, draft.capacity, 1]))
    else:
        zero, one = draft.constant([0]), draft.constant([1])
        length = draft.op("Gather", draft.op("Shape", "tokens"), one)
        first = draft.op("Gather", draft.op("Shape", "past_key_0"), draft.constant([2]))
        scalars = [draft.op("Squeeze", x) for x in (zero, one, first, draft.op("Add", first, length))]
        places = draft.op("Range", scalars[2], scalars[3], scalars[1])
        every = draft.op("Range", scalars[0], scalars[3], scalars[1])
    # (places, 1, pairs, 1), as pairs of channels have an axis for both of them.
    tables = (draft.constant(draft.weights[name][..., None]) for name in ("cos", "sin"))
    draft.cos, draft.sin = (draft.op("Gather", table, places) for table in tables)
    is_seen = draft.op("LessOrEqual", every, draft.op("Unsqueeze", places, draft.constant([1])))
    draft.mask = draft.op("Where", is_seen, draft.constant(0.0), draft.constant(LOWEST))


def _attention(draft: Draft, x: str, layer: int) -> str:
    """Grouped queries."""
    weights, name = draft.weights, f"blocks.{layer}"
    q = draft.rotated(draft.times(x, f"{name}/q"), HEADS)
    k = draft.cached(f"key_{layer}", draft.rotated(draft.times(x, f"{name}/k"), weights.shared))
    v = draft.cached(f"value_{layer}", draft.heads(draft.times(x, f"{name}/v"), weights.shared))
    scores = draft.op("MatMul", q, draft.op("Transpose", draft.repeated(k), perm=[0, 1, 3, 2]))
    scores = draft.op("Add", draft.op("Mul", scores, draft.constant(weights.size**-0.5)), draft.mask)
    mixed = draft.op("MatMul", draft.op("Softmax", scores, axis=-1), draft.repeated(v))
    rows = draft.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return draft.times(draft.op("Reshape", rows, draft.constant([0, 0, weights.width])), f"{name}/o")


def _gated(draft: Draft, x: str, name: str) -> str:
    """SwiGLU."""
    gate = draft.times(x, f"{name}/w1")
    gate = draft.op("Mul", gate, draft.op("Sigmoid", gate))
    return draft.times(draft.op("Mul", gate, draft.times(x, f"{name}/w3")), f"{name}/w2")


def _model(draft: Draft) -> onnx.ModelProto:
    def value(name: str, *shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    weights, capacity = draft.weights, draft.capacity
    names = [f"{kind}_{layer}" for layer in range(weights.layers) for kind in ("key", "value")]
    batch, length, past, whole = (1, 1, capacity, capacity) if capacity else ("N", "T", "P", "Q")
    given = [helper.make_tensor_value_info("tokens", TensorProto.INT64, [batch, length])]
    if capacity:
        given.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, 1]))
    given += [value(f"past_{name}", batch, weights.shared, past, weights.size) for name in names]
    made = [value("logits", batch, length, weights["head"].shape[1])]
    made += [value(f"present_{name}", batch, weights.shared, whole, weights.size) for name in names]
    graph = helper.make_graph(draft.nodes, "cached_stories", given, made, draft.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def main() -> None:
    """Write the network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exported", type=Path, help="stories260K.onnx, which reads whole texts")
    parser.add_argument("--capacity", type=int, default=0, help="a cache of a fixed size, for one token at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models" / "cached_stories.onnx")
    options = parser.parse_args()
    exported = onnx.load(options.exported)
    if options.capacity > (places := Weights.of(exported).places):
        parser.error(f"there are {places} places")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(exported, options.capacity), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
