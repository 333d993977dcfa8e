"""Products of 8-bit weights where ONNX Runtime saturates: run with `python tests/on_avx2.py`."""

import numpy as np
import pytest
from compiling import proto

from ptqc.execution import saturation
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.execution.saturation import EXACT_SUMS, IN_FLOAT, LENGTH, apart, can_saturate, saturates

pytestmark = pytest.mark.processor

# Two layers that share weight and zero point.
TIED = """g (float[N,4] x) => (float[N,4] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    v = DequantizeLinear<axis=1>(w, scales, zeros) a = MatMul(d, v)
    aq = QuantizeLinear(a, t, z) ad = DequantizeLinear(aq, t, z)
    v2 = DequantizeLinear<axis=1>(w, scales, zeros) b = MatMul(ad, v2)
    bq = QuantizeLinear(b, u, z) y = DequantizeLinear(bq, u, z)
}"""
# Two float layers that share a dequantized weight.
SHARED = """g (float[N,4] x) => (float[N,4] y) {
    v = DequantizeLinear<axis=1>(w, scales, zeros) a = MatMul(x, v) r = Sigmoid(a) y = MatMul(r, v)
}"""
STEPS = {name: np.array(step, np.float32) for name, step in (("s", 1), ("t", 1000), ("u", 1e6))}
ZERO = {"z": np.array(0, np.uint8)}
CODES: dict[str, np.ndarray] = {"w": np.full((4, 4), 127, np.int8), "scales": np.ones(4, np.float32)}
CODES["zeros"] = np.zeros(4, np.int8)


def test_the_option_makes_sums_exact_on_every_processor() -> None:
    assert saturation.product(EXACT_SUMS) == LENGTH * 255 * 127
    assert saturates() == (saturation.product({}) < LENGTH * 255 * 127)


def test_layers_that_share_a_weight_are_exact_too() -> None:
    options = session_options(exact_sums=False)
    options.add_session_config_entry(*next(iter(IN_FLOAT.items())))
    model, feeds = proto(TIED, 19, **STEPS, **ZERO, **CODES), {"x": np.full((1, 4), 255, np.float32)}
    for chosen in (session_options(), options):
        result = Runner(model, ["aq"], chosen).run(feeds)
        assert result["aq"].tolist() == [[130] * 4]  # 4 · 255 · 127 / 1000
        assert result["y"].tolist() == [[66e6] * 4]  # 4 · 130,000 · 127 in steps of a million


def test_nodes_get_constants_of_their_own() -> None:
    model = proto(TIED, 19, **STEPS, **ZERO, **CODES)
    read = [name for node in apart(model).graph.node for name in node.input[:3:2] if node.op_type == "DequantizeLinear"]
    weights = [name for name in read if name.startswith(("w", "zeros"))]
    assert len(weights) == len(set(weights)) == 4
    assert len(apart(model).graph.initializer) == len(model.graph.initializer) + 2


def test_layers_that_share_a_dequantized_weight() -> None:
    model = proto(SHARED, 19, **CODES)
    assert [node.op_type for node in apart(model).graph.node].count("DequantizeLinear") == 2
    result = Runner(model, (), session_options()).run({"x": np.ones((1, 4), np.float32)})
    assert result["y"].tolist() == [[4 * 127] * 4]


def test_only_weights_beyond_seven_bits_can_saturate() -> None:
    assert can_saturate(proto(TIED, 19, **STEPS, **ZERO, **CODES))
    assert not can_saturate(proto(TIED, 19, **STEPS, **ZERO, **{**CODES, "w": np.full((4, 4), -64, np.int8)}))
