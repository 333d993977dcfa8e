"""Random networks whose channels are tied in many ways: convolutional ones, and attention with rotary positions."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ptqc.ir.nodes import infer_shapes
from ptqc.passes.base import Feeds


@dataclass
class Draft:
    """A graph in the making, with random weights."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; the name of its output, or of several."""
        names = [f"{op_type.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def vector(self, *shape: int) -> str:
        return self.constant(self.rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def pick(self, *several: Any) -> Any:
        return several[self.rng.integers(len(several))]

    def model(self, inputs: dict[str, list[Any]], outputs: list[str], ids: int = 0) -> ir.Model:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        if ids:
            values.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [1, ids]))
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", values, made, self.constants)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
        infer_shapes(model)
        return model


def network(seed: int) -> tuple[ir.Model, Feeds]:
    """One network with one sample; every third one has attention."""
    rng = np.random.default_rng(seed)
    return (attention if seed % 3 == 0 else convolutional)(Draft(rng))


def convolutional(draft: Draft) -> tuple[ir.Model, Feeds]:
    """Random blocks, each of one or two values that there are, then a head."""
    width = int(draft.pick(8, 12))
    values = [(conv(draft, "x", 3, width), width)]
    for _ in range(int(draft.rng.integers(3, 8))):
        block = draft.pick(residual, gated, separable, grouped, appended, functions, normalized, cut, squeezed, twice)
        values.append(block(draft, values))
    outputs = [draft.op("Identity", values[-1][0])] if draft.rng.random() < 0.2 else []
    x, channels = values[-1]
    if draft.rng.random() < 0.5:
        x, channels = draft.op("Flatten", draft.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])), 9 * channels
    else:
        x = draft.op("Flatten", draft.op("GlobalAveragePool", x))
    outputs.append(draft.op("Gemm", x, draft.weight(5, channels), draft.vector(5), transB=1))
    feeds = {"x": draft.rng.standard_normal((1, 3, 6, 6)).astype(np.float32)}
    return draft.model({"x": [1, 3, 6, 6]}, outputs), feeds


Value = tuple[str, int]


def conv(draft: Draft, x: str, inputs: int, outputs: int, groups: int = 1, weight: str | None = None) -> str:
    weight = weight or draft.weight(outputs, inputs // groups, 3, 3)
    return str(draft.op("Conv", x, weight, draft.vector(outputs), pads=[1, 1, 1, 1], group=groups))


def residual(draft: Draft, values: list[Value]) -> Value:
    x, width = values[-1]
    inner = draft.op("Relu", conv(draft, x, width, 6))
    return draft.op("Add", x, conv(draft, inner, 6, width)), width


def gated(draft: Draft, values: list[Value]) -> Value:
    """A product with one number for each channel, squeezed from the whole plane."""
    x, width = values[-1]
    mean = draft.op("ReduceMean", x, draft.ints(2, 3), keepdims=1)
    gate = draft.op("Sigmoid", draft.op("Conv", mean, draft.weight(width, width, 1, 1)))
    return draft.op("Mul", x, gate), width


def separable(draft: Draft, values: list[Value]) -> Value:
    x, width = values[-1]
    times = int(draft.pick(1, 1, 2))
    deep = draft.op("Relu", conv(draft, x, width, width * times, width))
    return conv(draft, deep, width * times, width), width


def grouped(draft: Draft, values: list[Value]) -> Value:
    x, width = values[-1]
    if width % 2:
        return residual(draft, values)
    return draft.op(
        "Clip", conv(draft, x, width, width, 2), draft.vector(), draft.constant(np.array(6, np.float32))
    ), width


def appended(draft: Draft, values: list[Value]) -> Value:
    (x, width), (other, more) = values[-1], values[int(draft.rng.integers(len(values)))]
    return draft.op("Concat", x, other, axis=1), width + more


def functions(draft: Draft, values: list[Value]) -> Value:
    x, width = values[-1]
    x = draft.op("PRelu", x, draft.vector(width, 1, 1))
    x = draft.op("Mul", draft.vector(1, width, 1, 1), draft.op(draft.pick("Tanh", "LeakyRelu", "HardSwish"), x))
    return draft.op("Add", x, draft.op(draft.pick("AveragePool", "MaxPool"), x, kernel_shape=[1, 1])), width


def normalized(draft: Draft, values: list[Value]) -> Value:
    x, width = values[-1]
    if draft.rng.random() < 0.5:
        constants = [draft.vector(width) for _ in range(4)]
        return draft.op("BatchNormalization", x, *constants), width
    rows = draft.op("Transpose", x, perm=[0, 2, 3, 1])
    rows = draft.op("LayerNormalization", rows, draft.vector(width), draft.vector(width))
    return draft.op("Transpose", rows, perm=[0, 3, 1, 2]), width


def cut(draft: Draft, values: list[Value]) -> Value:
    """Two halves, of which one gates the other, or which change places."""
    x, width = values[-1]
    if width % 2:
        return residual(draft, values)
    first, second = draft.op("Split", x, draft.ints(width // 2, width // 2), outputs=2, axis=1)
    if draft.rng.random() < 0.5:
        return draft.op("Concat", second, first, axis=1), width
    wide = draft.op("Mul", first, draft.op("Sigmoid", second))
    if draft.rng.random() < 0.5:
        return wide, width // 2
    shuffled = draft.op("Reshape", x, draft.ints(1, 2, width // 2, 6, 6))
    shuffled = draft.op("Transpose", shuffled, perm=[0, 2, 1, 3, 4])
    return draft.op("Reshape", shuffled, draft.ints(0, -1, 6, 6)), width


def squeezed(draft: Draft, values: list[Value]) -> Value:
    """Less one channel at each end, and one channel that is added to all."""
    x, width = values[-1]
    least = draft.op("Slice", x, draft.ints(1), draft.ints(width - 1), draft.ints(1))
    single = draft.op("Slice", x, draft.ints(0), draft.ints(1), draft.ints(1))
    return draft.op("Add", least, single), width - 2


def twice(draft: Draft, values: list[Value]) -> Value:
    """One weight in two layers."""
    x, width = values[-1]
    weight = draft.weight(width, width, 3, 3)
    inner = draft.op("Relu", conv(draft, x, width, width, weight=weight))
    return conv(draft, inner, width, width, weight=weight), width


def attention(draft: Draft) -> tuple[ir.Model, Feeds]:
    """Two pre-norm layers: rotary positions, grouped queries, a gated product, at times a cache."""
    heads, shared, size, length = 4, int(draft.pick(1, 2, 4)), 8, 5
    width, is_paired, has_cache = heads * size, bool(draft.pick(0, 1)), bool(draft.pick(0, 0, 1))
    positions = (draft.vector(length, size // 2 if is_paired else size) for _ in range(2))
    cos, sin = positions
    x = draft.op("Gather", table := draft.weight(11, width), "ids")
    inputs: dict[str, list[Any]] = {}
    outputs: list[str] = []
    for layer in range(2):
        normal = norm(draft, x, width)
        q, k, v = (
            draft.op(
                "Transpose",
                draft.op(
                    "Reshape", draft.op("MatMul", normal, draft.weight(width, n * size)), draft.ints(1, -1, n, size)
                ),
                perm=[0, 2, 1, 3],
            )
            for n in (heads, shared, shared)
        )
        turn = in_pairs if is_paired else in_halves
        q, k = (turn(draft, part, cos, sin, size) for part in (q, k))
        if has_cache:
            inputs[f"past_{layer}"] = [1, shared, 3, size]
            k = draft.op("Concat", f"past_{layer}", k, axis=2)
            v = draft.op("Concat", f"past_{layer}", v, axis=2)
            outputs.append(draft.op("Identity", k))
        k, v = (repeated(draft, part, heads // shared, heads, size) for part in (k, v))
        scores = draft.op("MatMul", q, draft.op("Transpose", k, perm=[0, 1, 3, 2]))
        mixed = draft.op("MatMul", draft.op("Softmax", scores, axis=-1), v)
        rows = draft.op("Reshape", draft.op("Transpose", mixed, perm=[0, 2, 1, 3]), draft.ints(1, -1, width))
        x = draft.op("Add", x, draft.op("MatMul", rows, draft.weight(width, width)))
        normal = norm(draft, x, width)
        gate, up = (draft.op("MatMul", normal, draft.weight(width, 12)) for _ in range(2))
        gate = draft.op("Mul", gate, draft.op("Sigmoid", gate))
        x = draft.op("Add", x, draft.op("MatMul", draft.op("Mul", gate, up), draft.weight(12, width)))
    turned = draft.op("Transpose", table, perm=[1, 0]) if draft.rng.random() < 0.3 else draft.weight(width, 11)
    outputs.append(draft.op("MatMul", norm(draft, x, width), turned))
    feeds = {name: draft.rng.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}
    return draft.model(inputs, outputs, length), {"ids": draft.rng.integers(0, 11, (1, length)), **feeds}


def norm(draft: Draft, x: str, width: int) -> str:
    if draft.rng.random() < 0.3:
        return str(draft.op("LayerNormalization", x, draft.vector(width), draft.vector(width), axis=-1))
    power = draft.op("ReduceMean", draft.op("Mul", x, x), draft.ints(-1), keepdims=1)
    root = draft.op("Sqrt", draft.op("Add", power, draft.constant(np.array(1e-5, np.float32))))
    return str(draft.op("Mul", draft.op("Div", x, root), draft.vector(width)))


def in_halves(draft: Draft, x: str, cos: str, sin: str, size: int) -> str:
    low = draft.op("Slice", x, draft.ints(0), draft.ints(size // 2), draft.ints(3))
    high = draft.op("Slice", x, draft.ints(size // 2), draft.ints(2**62), draft.ints(3))
    turned = draft.op("Concat", draft.op("Neg", high), low, axis=-1)
    return str(draft.op("Add", draft.op("Mul", x, cos), draft.op("Mul", turned, sin)))


def in_pairs(draft: Draft, x: str, cos: str, sin: str, size: int) -> str:
    even = draft.op("Slice", x, draft.ints(0), draft.ints(size), draft.ints(3), draft.ints(2))
    odd = draft.op("Slice", x, draft.ints(1), draft.ints(size), draft.ints(3), draft.ints(2))
    first = draft.op("Sub", draft.op("Mul", even, cos), draft.op("Mul", odd, sin))
    second = draft.op("Add", draft.op("Mul", even, sin), draft.op("Mul", odd, cos))
    first, second = (draft.op("Unsqueeze", part, draft.ints(4)) for part in (first, second))
    return str(draft.op("Reshape", draft.op("Concat", first, second, axis=4), draft.ints(0, 0, 0, -1)))


def repeated(draft: Draft, x: str, times: int, heads: int, size: int) -> str:
    if times == 1:
        return x
    wide = draft.op("Expand", draft.op("Unsqueeze", x, draft.ints(2)), draft.ints(1, 1, times, 1, 1))
    return str(draft.op("Reshape", wide, draft.ints(1, heads, -1, size)))
