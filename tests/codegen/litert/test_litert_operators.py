"""Each operator's rule against ONNX Runtime: small networks in LiteRT, and what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from drawing import draw
from graphs import noise, parse
from lowering import SEVEN, quantized
from mostly_slow import mostly_slow
from qdq_forms import both

from ptqc.codegen.litert.graph import tflite_graph
from ptqc.codegen.litert.operators import RULES
from ptqc.codegen.litert.writer import TfliteGraph
from ptqc.errors import TargetError
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import QuantParams
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import run_rewrites
from ptqc.runtime.litert import FAST, REFERENCE, RUNTIME

Constants = Mapping[str, np.ndarray | np.generic]
# What moves values between real ones and codes, and between layouts.
AROUND = {"QUANTIZE", "DEQUANTIZE", "TRANSPOSE", "RESHAPE"}
MOST_RELATIVE = 0.1


@dataclass(frozen=True)
class Case:
    """A network behind an input x, what it is to become, and steps of its output that kernels may differ by."""

    body: str
    operators: Sequence[str]
    constants: Constants = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 4, 8, 8)
    steps: float = 2.0


W = noise(6, 4, 3, 3, seed=1, scale=0.3)
B = noise(6, seed=2)
SQUARE = noise(4, 4, 1, 1, seed=4, scale=0.5)
PADS = np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64)
SCALES = np.array([1, 1, 2, 2], np.float32)
CONV = ["CONV_2D"]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES = {
    "conv without padding": Case("y = Conv(x, w, b)", CONV, {"w": W, "b": B}),
    "conv padded as TFLite does": Case("y = Conv<pads=[1,1,1,1]>(x, w)", CONV, {"w": W}),
    "conv padded otherwise": Case("y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)", ["PAD", *CONV], {"w": W, "b": B}),
    "conv with dilations": Case("y = Conv<dilations=[2,1], pads=[2,1,2,1]>(x, w)", CONV, {"w": W}),
    "conv padded by itself": Case('y = Conv<auto_pad="SAME_UPPER", strides=[3,2]>(x, w)', CONV, {"w": W}),
    "conv padded below": Case('y = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, w)', ["PAD", *CONV], {"w": W}),
    "depthwise conv": Case(
        "y = Conv<group=4, pads=[1,1,1,1]>(x, w, b)",
        ["DEPTHWISE_CONV_2D"],
        {"w": noise(8, 1, 3, 3, seed=1), "b": noise(8, seed=2)},
    ),
    "conv with groups": Case("y = Conv<group=2>(x, w)", CONV, {"w": noise(6, 2, 3, 3, seed=1)}),
    "conv along one axis": Case(
        "y = Conv<pads=[1,0], strides=[2]>(x, w)", ["PAD", *CONV], {"w": noise(6, 4, 3, seed=1)}, (1, 4, 16)
    ),
    "gemm": Case("y = Gemm(x, w, b)", ["FULLY_CONNECTED"], {"w": noise(16, 5, seed=1), "b": noise(5, seed=2)}, (3, 16)),
    "gemm of a transposed weight": Case("y = Gemm<transB=1>(x, w)", ["FULLY_CONNECTED"], {"w": noise(5, 16)}, (3, 16)),
    "matmul of rows": Case("y = MatMul(x, w)", ["FULLY_CONNECTED"], {"w": noise(16, 5, seed=1)}, (2, 3, 16)),
    "add": Case("a = Conv(x, w) b = Conv(x, v) y = Add(a, b)", [*CONV * 2, "ADD"], {"w": SQUARE, "v": SQUARE + 1}),
    "mul by a plane": Case(
        "a = Conv(x, w) g = GlobalAveragePool(a) s = Sigmoid(g) y = Mul(a, s)",
        [*CONV, "MEAN", "LOGISTIC", "MUL"],
        {"w": SQUARE},
        steps=4,
    ),
    "pools": Case(
        "a = Conv(x, w) m = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(a) "
        "p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(m) y = Conv(p, v)",
        [*CONV, "PADV2", "MAX_POOL_2D", "AVERAGE_POOL_2D", *CONV],
        {"w": SQUARE, "v": SQUARE},
    ),
    "pool that counts zeros": Case(
        "a = Conv(x, w) p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(a) y = Conv(p, v)",
        [*CONV, "PAD", "AVERAGE_POOL_2D", *CONV],
        {"w": SQUARE, "v": SQUARE},
        steps=4,
    ),
    "pool beyond the image": Case(
        "a = Conv(x, w) p = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(a) y = Conv(p, v)",
        [*CONV, "MAX_POOL_2D", *CONV],
        {"w": SQUARE, "v": SQUARE},
    ),
    "an image becomes a row": Case(
        "a = Conv(x, w) f = Flatten(a) y = Gemm(f, v)",
        [*CONV, "FULLY_CONNECTED"],
        {"w": SQUARE, "v": noise(256, 3, seed=5, scale=0.1)},
    ),
    "a mean becomes a row": Case(
        "a = Conv(x, w) m = ReduceMean<keepdims=0>(a, axes) y = Gemm(m, v)",
        [*CONV, "MEAN", "FULLY_CONNECTED"],
        {"w": SQUARE, "axes": ints(2, 3), "v": noise(4, 3, seed=5)},
        steps=4,
    ),
    "transposes": Case(
        "a = Conv(x, w) t = Transpose<perm=[0,2,3,1]>(a) y = MatMul(t, v)",
        [*CONV, "FULLY_CONNECTED"],
        {"w": SQUARE, "v": noise(4, 3, seed=5)},
    ),
    "shuffled channels": Case(
        "a = Conv(x, w) r = Reshape(a, apart) t = Transpose<perm=[0,2,1,3,4]>(r) s = Reshape(t, back) y = Conv(s, v)",
        [*CONV, *CONV],
        {"w": SQUARE, "v": SQUARE, "apart": ints(1, 2, 2, 8, 8), "back": ints(1, 4, 8, 8)},
    ),
    "parts": Case(
        "a = Conv(x, w) l, r = Split<axis=1>(a, sizes) s = Slice(r, start, end, axes, steps) "
        "k = Slice(l, start, end, axes, steps) c = Concat<axis=1>(s, k) y = Conv(c, v)",
        [*CONV, *["STRIDED_SLICE"] * 4, "CONCATENATION", *CONV],
        {
            **{"w": SQUARE, "v": SQUARE, "sizes": ints(1, 3)},
            **{"start": ints(1), "end": ints(9), "axes": ints(2), "steps": ints(2)},
        },
    ),
    "padding of zeros and of other values": Case(
        'a = Conv(x, w) p = Pad(a, pads) q = Pad<mode="reflect">(p, pads) y = Conv(q, v)',
        [*CONV, "PAD", "MIRROR_PAD", *CONV],
        {"w": SQUARE, "v": SQUARE, "pads": PADS},
    ),
    "resized by repetition": Case(
        'a = Conv(x, w) r = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
        'nearest_mode="floor">(a, , scales) y = Conv(r, v)',
        [*CONV, "RESIZE_NEAREST_NEIGHBOR", *CONV],
        {"w": SQUARE, "v": SQUARE, "scales": SCALES},
    ),
    "resized between pixels": Case(
        'a = Conv(x, w) r = Resize<mode="linear">(a, , scales) y = Conv(r, v)',
        [*CONV, "RESIZE_BILINEAR", *CONV],
        {"w": SQUARE, "v": SQUARE, "scales": SCALES},
        steps=6,
    ),
    "depth to space": Case(
        'a = Conv(x, w) d = DepthToSpace<blocksize=2>(a) e = DepthToSpace<blocksize=2, mode="CRD">(a) '
        "s = Add(d, e) y = Conv(s, v)",
        [*CONV, "DEPTH_TO_SPACE", "GATHER", "DEPTH_TO_SPACE", "ADD", *CONV],
        {"w": noise(8, 4, 1, 1, seed=3), "v": noise(3, 2, 1, 1, seed=4)},
        steps=4,
    ),
    "clips that no saturation does": Case(
        "a = Conv(x, w) h = Clip(a, low, high) s = Add(a, h) r = Relu(s) t = Sub(s, r) y = Conv(t, v)",
        [*CONV, "MAXIMUM", "MINIMUM", "ADD", "RELU", "SUB", *CONV],
        {"w": SQUARE, "v": SQUARE, "low": np.float32(-0.5), "high": np.float32(0.25)},
        steps=4,
    ),
    "functions": Case(
        "a = Conv(x, w) s = Sigmoid(a) t = Tanh(a) l = LeakyRelu<alpha=0.1>(a) h = HardSwish(a) "
        "c = Concat<axis=1>(s, t, l, h) y = Conv(c, v)",
        [*CONV, "LOGISTIC", "TANH", "LEAKY_RELU", "HARD_SWISH", "CONCATENATION", *CONV],
        {"w": SQUARE, "v": noise(3, 16, 1, 1, seed=4)},
        steps=4,
    ),
    "softmax of channels": Case(
        "a = Conv(x, w) s = Softmax<axis=1>(a) y = Conv(s, v)",
        [*CONV, "SOFTMAX", *CONV],
        {"w": SQUARE, "v": SQUARE},
        steps=6,
    ),
    "a product of activations": Case(
        "a = MatMul(x, w) b = MatMul(x, v) t = Transpose<perm=[0,2,1]>(b) y = MatMul(a, t)",
        ["FULLY_CONNECTED", "FULLY_CONNECTED", "BATCH_MATMUL"],
        {"w": noise(16, 5, seed=1), "v": noise(16, 5, seed=2)},
        (2, 3, 16),
    ),
    "a shape that is computed": Case(
        "a = Conv(x, w) s = Shape(a) n = Gather(s, zero) u = Unsqueeze(n, axes) t = Concat<axis=0>(u, rest) "
        "r = Reshape(a, t) y = Gemm(r, v)",
        [*CONV, "FULLY_CONNECTED"],
        {
            **{"w": SQUARE, "v": noise(256, 3, seed=5, scale=0.1), "zero": np.int64(0)},
            **{"axes": ints(0), "rest": ints(-1)},
        },
    ),
    "real values": Case(
        "a = Exp(x) b = Neg(a) c = Sqrt(a) d = Div(b, c) e = HardSigmoid(d) f = Log(c) y = Add(e, f)",
        ["EXP", "NEG", "SQRT", "DIV", "MUL", "ADD", "RELU_0_TO_1", "LOG", "ADD"],
    ),
}

REFUSED: Mapping[str, tuple[str, Constants]] = {
    "Erf 'y'": ("y = Erf(x)", {}),
    "Conv 'y' along 3 axes": (
        "r = Reshape(x, s) y = Conv(r, w)",
        {"s": ints(1, 4, 8, 4, 2), "w": noise(2, 4, 1, 1, 1)},
    ),
    "Gemm 'y' with transA": ("f = Flatten(x) y = Gemm<transA=1>(f, w)", {"w": noise(1, 4)}),
    "AveragePool 'y' with this padding": ("y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)", {}),
    "MaxPool 'y' with dilations": ("y = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(x)", {}),
    "Pad 'y' of the mode edge": ('y = Pad<mode="edge">(x, pads)', {"pads": PADS}),
    "Pad 'y' that cuts off": ("y = Pad(x, pads)", {"pads": -PADS}),
    "Slice 'y' with negative steps": (
        "y = Slice(x, a, b, c, d)",
        {"a": ints(7), "b": ints(0), "c": ints(2), "d": ints(-1)},
    ),
    "Resize 'y' to no multiple": (
        "y = Resize(x, , , sizes)",
        {"sizes": ints(1, 4, 12, 12)},
    ),
    "Resize 'y' of the mode cubic": ('y = Resize<mode="cubic">(x, , scales)', {"scales": SCALES}),
    "Max 'y' of 2 inputs": ("y = Max(x, c)", {"c": np.float32(0.5)}),
}


def network(body: str, constants: Constants, shape: Sequence[int]) -> ir.Model:
    """A network whose output y has whatever shape comes out."""
    text = f"g (float[{','.join(map(str, shape))}] x) => (float y) {{ {body} }}"
    proto = ir.to_proto(parse(text, 18, **constants))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto)
    assert isinstance(inferred, onnx.ModelProto)
    return ir.from_proto(inferred)


def inputs(shape: Sequence[int]) -> list[Feeds]:
    return [{"x": noise(*shape, seed=seed)} for seed in range(3)]


def operators(graph: TfliteGraph) -> list[str]:
    return [each.name for each in graph.operators if each.name not in AROUND]


def in_litert(graph: TfliteGraph, feeds: Sequence[Feeds], folder: Path, kernels: str) -> Sequence[Feeds]:
    """What LiteRT gives."""
    pytest.importorskip("ai_edge_litert", reason="needs pip install 'ptqc[litert]'")
    from ptqc.codegen.litert.flatbuffer import serialized

    path = folder / "model.tflite"
    path.write_bytes(serialized(graph))
    return RUNTIME.run(path, list(map(dict, feeds)), folder, {"kernels": kernels}).outputs


def step(params: Mapping[str, QuantParams], outputs: Sequence[np.ndarray]) -> float:
    """One step of codes of the output; of real values as much as one of 8 bits is."""
    return params["y"].scale if "y" in params else float(np.ptp(outputs)) / 255


@pytest.mark.parametrize("name", CASES)
def test_operators_give_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    feeds = inputs(case.shape)
    model, _, params = both(quantized(network(case.body, case.constants, case.shape), feeds, forms=SEVEN), feeds)
    graph = tflite_graph(model, RULES)
    assert sorted(operators(graph)) == sorted(case.operators)
    wanted = [tensors_of(Runner(model).run(each))["y"] for each in feeds]
    limit = case.steps * step(params, wanted)
    for kernels in (FAST, REFERENCE):
        for outputs, array in zip(in_litert(graph, feeds, tmp_path, kernels), wanted, strict=True):
            np.testing.assert_allclose(outputs["y"], array, rtol=0, atol=limit, err_msg=kernels)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_with_the_node(name: str) -> None:
    body, constants = REFUSED[name]
    model = ir.to_proto(network(body, constants, (1, 4, 8, 8)))
    with pytest.raises(TargetError, match=f"litert has no rule for {name}"):
        tflite_graph(model, RULES)


# Networks that have a Slice with negative steps, or a Pad of the mode edge or wrap.
WITHOUT_RULE: set[int] = {6, 7, 9, 10}


@pytest.mark.parametrize("seed", mostly_slow(range(16), *range(6)))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    """Steps of codes grow through layers; a network without a rule for a node is refused with the node."""
    proto, feeds = draw(seed)
    model = ir.from_proto(proto)
    run_rewrites(model, default_rewrites(), feeds[:1])
    same = [each for each in feeds if each["x"].shape == feeds[0]["x"].shape]
    qdq, _, _ = both(quantized(model, feeds, forms=SEVEN), feeds)
    if seed in WITHOUT_RULE:
        with pytest.raises(TargetError, match="litert has no rule for"):
            tflite_graph(qdq, RULES)
        return
    graph = tflite_graph(qdq, RULES)
    wanted = [tensors_of(Runner(qdq).run(each)) for each in same]
    outputs = in_litert(graph, same, tmp_path, FAST)
    for name in wanted[0]:
        assert relative([each[name] for each in wanted], [each[name] for each in outputs]) < MOST_RELATIVE
