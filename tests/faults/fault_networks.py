"""Small networks that between them have something for every rewrite, kernel and storage format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from compiling import proto, samples, weight


@dataclass(frozen=True)
class Network:
    """A model, its calibration data, and how it is compiled."""

    model: onnx.ModelProto
    data: np.ndarray
    budget: str | None
    options: Mapping[str, Any]


# Something for every rewrite, and every integer kernel behind them.
IMAGE = """g (float[N,4,8,8] x) => (float[N,6] y, float[N,Z] z) {
    xp = Pad(x, edges)
    a = Conv(xp, w1, b1)
    n = BatchNormalization<epsilon=0.2>(a, gain, shift, mean, variance)
    r = Clip(n, zero, one)
    doubled = Mul(w2, two)
    c = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(r, doubled, b2)
    d = Div(c, divisors)
    s = Relu(d)
    m = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(s)
    l = Clip(m, zero, one)
    j = Concat<axis=1>(l, s)
    e = Conv(j, w3, b3)
    q = Add(e, s)
    o = BatchNormalization<epsilon=0.2>(q, gain, shift, mean, variance)
    u = Conv<pads=[1,1,1,1]>(o, w4, b4)
    t = ConvTranspose<pads=[1,1,1,1]>(u, w5)
    v = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(t)
    vp = Pad(v, column)
    vt = Transpose<perm=[0,1,3,2]>(vp)
    z = Reshape(vt, rows)
    g = ReduceMean<axes=[2,3], keepdims=0>(v)
    h = Gemm<alpha=0.5, beta=2.0, transB=1>(g, w6, b6)
    k = BatchNormalization<epsilon=0.2>(h, gain, shift, mean, variance)
    kr = Relu(k)
    f = MatMul(kr, w7)
    y = Add(f, b7)
}"""

# Attention that computes in float: an embedding, a mask of two values, products by constants.
WORDS = """g (int64[N,32] i) => (float[N,32,16] y) {
    e = Gather(embedding, i)
    q = MatMul(e, w1)
    k = MatMul(e, w2)
    v = MatMul(e, w3)
    kt = Transpose<perm=[0,2,1]>(k)
    a = MatMul(q, kt)
    m = Add(a, mask)
    p = Softmax<axis=-1>(m)
    c = MatMul(p, v)
    d = Sub(c, e)
    rows = Reshape(d, flat)
    h = Gemm(rows, w4, b4)
    y = Reshape(h, back)
}"""

# Layers that share a weight, in the smallest formats.
SMALL = """g (float[N,8,4,4] x) => (float[N,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    ar = Relu(a)
    b = Conv<pads=[1,1,1,1]>(ar, w1, b2)
    c = Add(b, x)
    p = GlobalAveragePool(c)
    f = Flatten(p)
    g = Gemm<transB=1>(f, w2, b3)
    gr = Relu(g)
    y = Gemm<transB=1>(gr, w3, b3)
}"""

# Functions and means of codes, and products that stay float.
GATES = """g (float[N,4,8,8] x) => (float[N,6] y, float[N,6] z) {
    a = Conv(x, w1, b1)
    s = Sigmoid(a)
    c = Conv(s, w2, b2)
    l = LeakyRelu<alpha=0.3>(c)
    p = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(l)
    e = Conv(p, w3, b3)
    g = GlobalAveragePool(e)
    f = Flatten(g)
    h = Gemm(f, w4, b4)
    k = Sigmoid(h)
    y = Gemm(k, w5, b5)
    t = Conv(x, w6, b6)
    m = GlobalAveragePool(t)
    n = Flatten(m)
    z = MatMul(n, w7)
}"""

HALF = "g (float16[N,8] x) => (float16[N,8] y) { h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v) }"


def image() -> onnx.ModelProto:
    large = weight(8, seed=12)
    large[0] = 12  # so many steps of the accumulator that 16 bits need a factor
    shapes = {"w1": (8, 4, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 16, 1, 1), "w4": (8, 8, 3, 3), "w5": (8, 8, 3, 3)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    normalization = {"gain": (0.8, 1.6), "shift": (-0.3, 0.5), "mean": (-0.4, 0.4), "variance": (0.3, 3)}
    return proto(
        IMAGE,
        17,
        **weights,
        **{name: np.linspace(*ends, 8, dtype=np.float32) for name, ends in normalization.items()},
        **{f"b{i}": weight(8, seed=10 + i) for i in (1, 2, 4, 6)},
        b3=large,
        w6=weight(8, 8, seed=5),
        w7=weight(8, 6, seed=6),
        b7=weight(6, seed=7),
        divisors=np.linspace(0.5, 2, 8, dtype=np.float32).reshape(1, 8, 1, 1),
        zero=np.array(0, np.float32),
        one=np.array(1, np.float32),
        two=np.array(2, np.float32),
        edges=np.array([0, 0, 2, 1, 0, 0, 0, 1]),
        column=np.array([0, 0, 0, 0, 0, 0, 0, 1]),
        rows=np.array([0, -1]),
    )


def words() -> onnx.ModelProto:
    return proto(
        WORDS,
        18,
        **{f"w{i}": weight(16, 16, seed=i) for i in (1, 2, 3, 4)},
        b4=weight(16, seed=5),
        embedding=weight(64, 16),
        mask=np.where(np.tri(32, dtype=bool), np.float32(0), np.float32(-3)),
        flat=np.array([-1, 16]),
        back=np.array([-1, 32, 16]),
    )


def small() -> onnx.ModelProto:
    weights = {"w1": weight(8, 8, 3, 3), "w2": weight(8, 8, seed=1), "w3": weight(8, 8, seed=2)}
    return proto(SMALL, 18, **weights, **{f"b{i}": weight(8, seed=10 + i) for i in (1, 2, 3)})


def wide() -> onnx.ModelProto:
    """The same with columns that are long enough for a trellis."""
    return _of_32(lambda values: values)


def table() -> onnx.ModelProto:
    """One that stays packed."""
    graph = "g (int64[N,T] i) => (float[N,T,16] y) { e = Gather(embedding, i) y = MatMul(e, w) }"
    return proto(graph, embedding=weight(4096, 64), w=weight(64, 16, seed=1))


def pruned() -> onnx.ModelProto:
    """Half of the weights are zero, and no grid of so few bits has one."""
    return _of_32(lambda values: np.where(np.abs(values) > np.median(np.abs(values)), values, np.float32(0)))


def _of_32(changed: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    weights = {"w1": weight(32, 32, 3, 3), "w2": weight(32, 32, seed=1), "w3": weight(32, 32, seed=2)}
    biases = {f"b{i}": weight(32, seed=10 + i) for i in (1, 2, 3)}
    graph = SMALL.replace("N,8,4,4]", "N,32,6,6]").replace("N,8]", "N,32]")
    return proto(graph, 18, **{name: changed(values) for name, values in weights.items()}, **biases)


def gates() -> onnx.ModelProto:
    shapes = [(8, 4, 1, 1), (8, 8, 1, 1), (8, 8, 1, 1), (8, 8), (8, 6), (8, 4, 1, 1), (8, 6)]
    weights = {f"w{i}": weight(*shape, seed=i) for i, shape in enumerate(shapes, 1)}
    biases = {f"b{i}": weight(8, seed=10 + i) for i in (1, 2, 3, 4, 6)}
    return proto(GATES, 18, **weights, **biases, b5=weight(6, seed=15))


def half() -> onnx.ModelProto:
    arrays = {"w": weight(8, 8), "b": weight(8, seed=1), "v": weight(8, 8, seed=2)}
    return proto(HALF, 18, **{name: array.astype(np.float16) for name, array in arrays.items()})


def _networks() -> dict[str, Network]:
    tokens = np.random.default_rng(0).integers(0, 64, (16, 32))
    numbers = samples(8, count=16).astype(np.float16)
    integer, float8 = {"activations": "integer"}, {"activations": "float8", "activation_limit": 10.0}
    return {
        "image": Network(image(), samples(4, 8, 8, count=16), None, {**integer, "bits": (4, 7)}),
        "pairs": Network(small(), samples(8, 4, 4, count=16), "95%", {**integer, "bits": (2, 3)}),
        "codebook": Network(small(), samples(8, 4, 4, count=16), "75%", {**integer, "bits": (2, 3)}),
        "pruned": Network(pruned(), samples(32, 6, 6, count=16), "16%", {**integer, "bits": (2, 3)}),
        "trellis": Network(
            wide(), samples(32, 6, 6, count=16), None, {**integer, "bits": (2, 3), "formats": ("int", "tcq")}
        ),
        "entropy": Network(
            wide(), samples(32, 6, 6, count=16), None, {**integer, "bits": (4, 5), "formats": ("entropy",)}
        ),
        "table": Network(table(), 60 * tokens, "8%", {"activations": "float", "formats": ("tcq",)}),
        "two of four": Network(pruned(), samples(32, 6, 6, count=16), None, {**integer, "sparsity": "2:4"}),
        "words": Network(words(), tokens, "40%", {"activations": "float", "bits": (3, 4)}),
        "gates": Network(gates(), samples(4, 8, 8, count=16), None, {**integer, "bits": (7,)}),
        "float8": Network(image(), samples(4, 8, 8, count=16), None, float8),
        "half": Network(half(), numbers, None, {**integer, "bits": (4,)}),
    }


NETWORKS = _networks()
