"""A small graph to cut parts out of."""

import onnx
from compiling import proto, weight

from ptqc.tools.reduce.cut import Whole

GRAPH = """g (float[N,8] x) => (float[N,8] y, float[N,8] r) {
    h = Gemm(x, w)
    r = Relu(h)
    s = Add(r, h)
    t = Sigmoid(s)
    y = Gemm(t, w)
}"""


def whole(graph: str = GRAPH) -> Whole:
    model = onnx.shape_inference.infer_shapes(proto(graph, w=weight(8, 8)))
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    return Whole(model, {value.name: value for value in values})
