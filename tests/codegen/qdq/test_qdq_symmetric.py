"""Forms of QDQ models for runtimes that take no zero points."""

import numpy as np
from graphs import noise, parse
from lowering import quantized, samples
from qdq_forms import both, symmetric, symmetric_model

from ptqc.codegen.qdq.rules import QdqGraph
from ptqc.codegen.qdq.symmetric import for_tensorrt, signed
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner
from ptqc.formats import UINT8, QuantParams


def test_int8_around_0_means_the_same() -> None:
    """Up to the roundings of ONNX Runtime, whose kernels for these are others."""
    model = symmetric_model()
    other = signed(model)
    feeds = samples(1, 3, 8, 8)[0]
    wanted, result = (Runner(each).run(feeds)["y"] for each in (model, other))
    assert relative([wanted], [result]) < 0.02
    zeros = [np.asarray(QdqGraph(other).array(node.input[2])) for node in QdqGraph(other).conversions()]
    assert {(zero.dtype, int(zero)) for zero in zeros} == {(np.dtype(np.int8), 0)}


def test_for_tensorrt_relu_is_behind_its_layer_and_biases_are_real() -> None:
    model = both(symmetric(powers=False), samples(1, 3, 8, 8))[0]
    other = for_tensorrt(model)
    feeds = samples(1, 3, 8, 8)[0]
    wanted, result = (Runner(each).run(feeds)["y"] for each in (model, other))
    assert relative([wanted], [result]) < 0.05
    makers = {name: node.op_type for node in other.graph.node for name in node.output}
    assert {makers[node.input[0]] for node in other.graph.node if node.op_type == "Relu"} == {"Conv"}
    assert len(other.graph.node) < len(model.graph.node)


def test_a_bound_within_the_codes_stays_for_tensorrt() -> None:
    """With the lowest code as zero point, codes reach twice as far as around 0."""
    graph = "g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { c = Tanh(x) r = Clip(c, low, high) y = Conv(r, w, b) }"
    constants: dict[str, np.ndarray | np.generic] = {"low": np.float32(0), "high": np.float32(0.5)}
    constants |= {"w": noise(3, 3, 1, 1), "b": noise(3)}
    feeds = samples(1, 3, 8, 8)
    network = quantized(parse(graph, **constants), feeds, params={"r": QuantParams(UINT8, 0.75 / 255, 0)}, fused=True)
    model = both(network, feeds, {})[0]
    zeros = [np.asarray(QdqGraph(model).array(node.input[2])) for node in QdqGraph(model).conversions()]
    assert {int(zero) for zero in zeros} == {0}
    other = for_tensorrt(model)
    assert relative([Runner(model).run(feeds[0])["y"]], [Runner(other).run(feeds[0])["y"]]) < 0.02
