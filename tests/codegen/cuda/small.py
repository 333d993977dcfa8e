"""A small network with all kernels of the target's own: tensor cores, inner products of bytes, a fused sum."""

from graphs import noise, parse
from lowering import Quantized, quantized, samples

from ptqc.codegen.onnxruntime.export import Exported, export

FEEDS = samples(2, 3, 8, 7)
GRAPH = """g (float[N, 3, 8, 7] x) => (float[N, 5] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu(a)
    d = Conv <group = 32, pads = [1, 1, 1, 1]> (r, v)
    e = Conv <pads = [1, 0, 1, 2], strides = [2, 1]> (d, u)
    z = Conv (e, q)
    s = Add(z, e)
    m = GlobalAveragePool(s)
    f = Flatten(m)
    y = Gemm <transB = 1> (f, h)
}"""
CONSTANTS = {
    "w": noise(32, 3, 3, 3, scale=0.4),
    "v": noise(32, 1, 3, 3, seed=1, scale=0.4),
    "u": noise(48, 32, 3, 3, seed=2, scale=0.2),
    "q": noise(48, 48, 1, 1, seed=3, scale=0.3),
    "h": noise(5, 48, seed=4),
}


def network() -> tuple[Quantized, Exported]:
    """The network on integers, and its file."""
    network = quantized(parse(GRAPH, **CONSTANTS), FEEDS)
    return network, export(network.lowered, network.model)
