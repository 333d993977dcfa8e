"""Zero points moved into biases, or into sums where no bias takes them."""

import numpy as np
import onnx
import pytest
from graphs import noise, parse
from lowering import samples
from onnx_ir import to_proto

from ptqc.codegen.qdq.rules import QdqGraph
from ptqc.codegen.qdq.shifts import shift_values
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner

WEIGHTED = (
    "codes = QuantizeLinear({}, step, zero) r = DequantizeLinear(codes, step, zero) wr = DequantizeLinear(w, s, z) "
)
CONV = "c = Conv(x, v, b) " + WEIGHTED.format("c") + "y = Conv(r, wr, b)"
PADDED = "c = Conv(x, v, b) " + WEIGHTED.format("c") + "y = Conv <pads = [1, 1, 1, 1]> (r, wr, b)"
FUNCTION = "c = Tanh(x) " + WEIGHTED.format("c") + "y = Conv(r, wr, b)"
SEVERAL = "c = Conv(x, v, b) " + WEIGHTED.format("c") + "d = Conv(r, wr, b) e = Abs(c) y = Add(d, e)"


@pytest.mark.parametrize(
    ("nodes", "sums"), [(CONV, 0), (PADDED, 1), (FUNCTION, 1), (SEVERAL, 2)], ids=["bias", "padded", "sum", "several"]
)
def test_it_computes_the_same_around_0(nodes: str, sums: int) -> None:
    constants: dict[str, np.ndarray | np.generic] = {
        "v": noise(3, 3, 1, 1, seed=2),
        "w": np.random.default_rng(0).integers(-99, 99, (3, 3, 1, 1)).astype(np.int8),
        "s": np.array([0.02, 0.01, 0.03], np.float32),
        "z": np.zeros(3, np.int8),
        "b": noise(3, seed=3),
        "step": np.float32(0.02),
        "zero": np.int8(-61),
    }
    nodes = nodes.replace("DequantizeLinear(w", "DequantizeLinear <axis = 0> (w")
    model = to_proto(parse(f"g (float[1, 3, 4, 4] x) => (float[1, 3, A, B] y) {{ {nodes} }}", **constants))
    feeds = samples(1, 3, 4, 4)
    wanted = [Runner(model).run(each)["y"] for each in feeds]
    shift_values(model)
    onnx.checker.check_model(model, full_check=True)
    assert relative(wanted, [Runner(model).run(each)["y"] for each in feeds]) < 1e-2
    graph = QdqGraph(model)
    assert not any(np.asarray(graph.array(node.input[2])).any() for node in graph.conversions())
    assert sum(node.op_type == "Add" for node in graph.nodes) == sums


def test_a_product_has_no_bias_to_take_it() -> None:
    """Its weight lies the other way round, so that sums over it are of another length."""
    constants: dict[str, np.ndarray | np.generic] = {
        "w": np.random.default_rng(0).integers(-99, 99, (3, 5)).astype(np.int8),
        "s": np.full(5, 0.02, np.float32),
        "z": np.zeros(5, np.int8),
        "step": np.float32(0.02),
        "zero": np.int8(-61),
    }
    nodes = "t = Tanh(x) " + WEIGHTED.format("t").replace("Linear(w", "Linear <axis = 1> (w") + "y = MatMul(r, wr)"
    model = to_proto(parse(f"g (float[4, 3] x) => (float[4, 5] y) {{ {nodes} }}", **constants))
    feeds = samples(4, 3)
    wanted = [Runner(model).run(each)["y"] for each in feeds]
    shift_values(model)
    assert relative(wanted, [Runner(model).run(each)["y"] for each in feeds]) < 1e-2
