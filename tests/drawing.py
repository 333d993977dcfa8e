"""Random small networks: each step draws an operator that the shape of the last value allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
OPSET = 18
PRIMES = (1, 2, 3, 5, 7, 13, 17, 31)
LARGEST = 4096  # elements of a value


@dataclass
class Drawing:
    """A network under construction. value: its present end; shapes: of every value, for a batch of 1."""

    random: np.random.Generator
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    value: str = "x"

    @property
    def shape(self) -> Shape:
        """Of the present end."""
        return self.shapes[self.value]

    @property
    def rank(self) -> int:
        """Number of its spatial axes."""
        return len(self.shape) - 2

    def whole(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(self.random.integers(low, high + 1))

    def wholes(self, low: int, high: int, count: int) -> list[int]:
        return [self.whole(low, high) for _ in range(count)]

    def likely(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def one_of(self, *choices: Any) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    def constant(self, array: np.ndarray | np.generic) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def noise(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def add(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """Append a node, which becomes the end."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op_type, inputs, names, **attributes)
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])
                for name in dict.fromkeys(inputs) if name in self.shapes]  # fmt: skip
        values = [c for c in self.constants if c.name in inputs]
        graph = helper.make_graph([node], "g", made, [onnx.ValueInfoProto(name=name) for name in names], values)
        inferred = onnx.shape_inference.infer_shapes(_model(graph), strict_mode=True, data_prop=True)
        for output in inferred.graph.output:
            self.shapes[output.name] = tuple(axis.dim_value for axis in output.type.tensor_type.shape.dim)
        self.nodes.append(node)
        self.value = names[0]
        return self.value

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The network for any batch size."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.shapes["x"][1:]])]
        ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["N", *self.shapes[v][1:]]) for v in outputs]
        return _model(helper.make_graph(self.nodes, "g", inputs, ends, self.constants))


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def convolution(d: Drawing, outputs: int | None = None, *, pointwise: bool = False) -> None:
    """Any kernel, stride (beyond the kernel too), dilation, groups and one-sided padding."""
    channels, sizes = d.shape[1], d.shape[2:]
    divisors = [n for n in range(1, channels + 1) if channels % n == 0 and (outputs is None or outputs % n == 0)]
    groups = int(d.one_of(1, 1, *divisors, divisors[-1]))  # type: ignore[call-overload]
    outputs = outputs or groups * int(d.one_of(1, 1, 2, d.whole(1, max(1, 24 // groups))))  # type: ignore[call-overload]
    kernel = [1] * d.rank if pointwise else d.wholes(1, 4, d.rank)
    dilations = d.wholes(1, 3 if d.likely(0.3) else 1, d.rank)
    strides = [1] * d.rank if pointwise else d.wholes(1, 4 if d.likely(0.2) else 2, d.rank)
    extents = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    pads = [0] * (2 * d.rank) if pointwise else d.wholes(0, 2, 2 * d.rank)
    for axis, (size, extent) in enumerate(zip(sizes, extents, strict=True)):
        pads[axis] += max(0, extent - size - pads[axis] - pads[axis + d.rank])
    weight = d.noise(outputs, channels // groups, *kernel, scale=_gain(d, channels // groups * int(np.prod(kernel))))
    if d.likely(0.3):
        weight[d.whole(0, outputs - 1)] = 0
    inputs = [d.value, d.constant(weight)]
    if d.likely(0.7):
        inputs.append(d.constant(d.noise(outputs, scale=0.3)))
    d.add("Conv", inputs, group=groups, strides=strides, dilations=dilations, pads=pads)


def _gain(d: Drawing, terms: int) -> float:
    """Keeps magnitudes, as a rule."""
    return float(10 ** d.random.uniform(-2, 2) if d.likely(0.1) else 1.0) / np.sqrt(terms)


def transposed_convolution(d: Drawing) -> None:
    """Kernel equal to stride, or stride 1: what a rewrite makes an ordinary convolution of."""
    channels, outputs = d.shape[1], d.whole(1, 6)
    groups = int(d.one_of(1, *(n for n in (2, 3) if channels % n == 0 and outputs % n == 0)))  # type: ignore[call-overload]
    size = 2 if d.rank == 2 and d.likely(0.5) else 0
    kernel = [size] * 2 if size else d.wholes(1, 3, d.rank)
    weight = d.constant(d.noise(channels, outputs // groups, *kernel, scale=_gain(d, channels)))
    inputs = [d.value, weight, *([d.constant(d.noise(outputs))] if d.likely(0.5) else [])]
    d.add("ConvTranspose", inputs, group=groups, strides=[size or 1] * d.rank)


def normalization(d: Drawing) -> None:
    """BatchNormalization, which folds into a convolution in front."""
    convolution(d)
    channels = d.shape[1]
    scale, bias, mean = (d.constant(d.noise(channels)) for _ in range(3))
    variance = d.constant(d.random.uniform(0.5, 2.0, channels).astype(np.float32))
    d.add("BatchNormalization", [d.value, scale, bias, mean, variance])


def activation(d: Drawing) -> None:
    match d.one_of("Relu", "Relu", "Clip", "Sigmoid", "HardSwish", "LeakyRelu", "HardSigmoid", "Tanh"):
        case "Clip":
            low, high = sorted(d.random.uniform(-1, 2, 2))
            bounds = (0.0, 6.0) if d.likely(0.5) else (low, high)
            d.add("Clip", [d.value, *(d.constant(np.float32(bound)) for bound in bounds)])
        case "LeakyRelu":
            d.add("LeakyRelu", [d.value], alpha=float(d.random.uniform(0.01, 0.5)))
        case kind:
            d.add(str(kind), [d.value])


def residual(d: Drawing) -> None:
    """A sum or product of the value and what a convolution makes of it."""
    before = d.value
    convolution(d, d.shape[1], pointwise=True)
    if d.likely(0.3):
        activation(d)
    pair = [before, d.value] if d.likely(0.5) else [d.value, before]
    d.add("Add" if d.likely(0.7) else "Mul", pair)


def gate(d: Drawing) -> None:
    """Squeeze and excitation."""
    before, channels = d.value, d.shape[1]
    d.add("GlobalAveragePool", [d.value])
    convolution(d, channels, pointwise=True)
    d.add("Sigmoid" if d.likely(0.5) else "HardSigmoid", [d.value])
    d.add("Mul", [before, d.value] if d.likely(0.5) else [d.value, before])


def joined(d: Drawing) -> None:
    """Concatenation of values with other scales."""
    before = d.value
    axis = d.whole(1, d.rank + 1)
    convolution(d, None if axis == 1 else d.shape[1], pointwise=True)
    branch = d.value
    if d.likely(0.5):
        activation(d)
    d.add("Concat", [before, d.value, branch][: d.whole(2, 3)], axis=axis - (d.rank + 2 if d.likely(0.3) else 0))


def pool(d: Drawing) -> None:
    kernel = [min(size, d.whole(1, 3)) for size in d.shape[2:]]
    if d.likely(0.3):  # rounding up, where no window lies outside: ONNX's shapes are not ONNX Runtime's there
        attributes: dict[str, Any] = {"ceil_mode": 1, "strides": [d.whole(1, k) for k in kernel]}
    else:
        attributes = {"strides": d.wholes(1, 3, d.rank), "pads": [min(k - 1, d.whole(0, 2)) for k in kernel * 2]}
    if d.likely(0.3) and min(d.shape[2:]) > 4:
        attributes["dilations"] = d.wholes(1, 2, d.rank)
    d.add("MaxPool", [d.value], kernel_shape=kernel, **attributes)


def averaged(d: Drawing) -> None:
    kernel = [min(size, d.whole(1, 3)) for size in d.shape[2:]]
    pads = [min(k - 1, d.whole(0, 1)) for k in kernel * 2]
    strides = d.wholes(1, 3, d.rank)
    d.add("AveragePool", [d.value], kernel_shape=kernel, strides=strides, pads=pads, count_include_pad=d.whole(0, 1))


def adjusted(d: Drawing) -> None:
    """Arithmetic with a number for each channel, or for each element."""
    shape = (d.shape[1], *[1] * d.rank) if d.likely(0.7) else d.shape[1:]
    operands = [d.value, d.constant(d.noise(*shape) + np.float32(2))]
    d.add(str(d.one_of("Add", "Mul", "Sub", "Div", "PRelu")), operands)


def distributed(d: Drawing) -> None:
    d.add("Softmax", [d.value], axis=d.whole(1, d.rank + 1))


def resized(d: Drawing) -> None:
    chosen = [d.one_of(1, 2, 1.5, 3, 0.5 if size > 1 else 1) for size in d.shape[2:]]
    scales = np.array([1, 1, *chosen], np.float32)
    way = d.one_of("half_pixel", "asymmetric", "align_corners")
    rounding = d.one_of("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
    d.add(
        "Resize",
        [d.value, "", d.constant(scales)],
        mode="nearest",
        coordinate_transformation_mode=way,
        nearest_mode=rounding,
    )


def padded(d: Drawing) -> None:
    pads = [0, d.whole(0, 1), *d.wholes(0, 2, d.rank), 0, d.whole(0, 2), *d.wholes(0, 2, d.rank)]
    inputs = [d.value, d.constant(np.array(pads))]
    if d.likely(0.3):
        mirrors = min(d.shape[1:]) > 2
        d.add("Pad", inputs, mode=d.one_of("edge", "wrap", *["reflect"] * mirrors))
        return
    if d.likely(0.3):
        inputs.append(d.constant(np.float32(d.one_of(0.0, 0.5))))
    d.add("Pad", inputs)


def sliced(d: Drawing) -> None:
    axes = [axis for axis in range(1, d.rank + 2) if d.shape[axis] > 1 and d.likely(0.6)]
    if not axes:
        return
    starts = [d.whole(0, d.shape[axis] - 2) for axis in axes]
    ends = [d.shape[axis] if d.likely(0.5) else d.shape[axis] - 1 for axis in axes]
    steps = [d.whole(1, 2) for _ in axes]
    if d.likely(0.2):
        starts, ends, steps = [-1] * len(axes), [-1000] * len(axes), [-1] * len(axes)
    d.add("Slice", [d.value, *(d.constant(np.array(a)) for a in (starts, ends, axes, steps))])


def split(d: Drawing) -> None:
    axis = d.whole(1, d.rank + 1)
    size = d.shape[axis]
    if size < 2:
        return
    cut = d.whole(1, size - 1)
    first = d.add("Split", [d.value, d.constant(np.array([cut, size - cut]))], outputs=2, axis=axis)
    second = first[:-1] + "1"
    if cut * 2 == size:
        d.add("Add", [first, second])
    else:
        d.add("Concat", [second, first], axis=axis)


def turned(d: Drawing) -> None:
    """Axes in another order; the new channels are what was a spatial axis."""
    axes = [int(axis) for axis in d.random.permutation(np.arange(1, d.rank + 2))]
    d.add("Transpose", [d.value], perm=[0, *axes])


def shuffled(d: Drawing) -> None:
    """The channel shuffle of ShuffleNet."""
    channels = d.shape[1]
    groups = next((n for n in (2, 3, 5) if channels % n == 0), 0)
    if not groups:
        return
    split_, back = [0, groups, channels // groups, *d.shape[2:]], [0, channels, *d.shape[2:]]
    d.add("Reshape", [d.value, d.constant(np.array(split_))])
    d.add("Transpose", [d.value], perm=[0, 2, 1, *range(3, len(split_))])
    d.add("Reshape", [d.value, d.constant(np.array(back))])


def blocks(d: Drawing) -> None:
    if d.rank == 2 and d.shape[1] % 4 == 0:
        d.add("DepthToSpace", [d.value], blocksize=2, mode=d.one_of("DCR", "CRD"))


STEPS: dict[Callable[[Drawing], None], int] = {
    convolution: 8,
    transposed_convolution: 1,
    normalization: 2,
    activation: 5,
    residual: 3,
    gate: 1,
    joined: 2,
    pool: 2,
    averaged: 1,
    adjusted: 2,
    distributed: 1,
    resized: 1,
    padded: 1,
    sliced: 1,
    split: 1,
    turned: 1,
    shuffled: 1,
    blocks: 1,
}


def head(d: Drawing) -> None:
    """Products of vectors."""
    if d.likely(0.7) and d.rank > 0:
        d.add("GlobalAveragePool", [d.value])
    if d.rank > 0:
        d.add("Flatten", [d.value])
    for _ in range(d.whole(0, 2)):
        product(d)
        if d.likely(0.5):
            activation(d)
    product(d)


def product(d: Drawing) -> None:
    """A matrix product with a bias or without, and with factors or without."""
    inputs, outputs = d.shape[1], int(d.one_of(*PRIMES))  # type: ignore[call-overload]
    weight = d.noise(inputs, outputs, scale=_gain(d, inputs))
    if d.likely(0.3):
        d.add("MatMul", [d.value, d.constant(weight)])
        d.add("Add", [d.value, d.constant(d.noise(outputs))])
        return
    is_turned = d.likely(0.5)
    operands = [d.value, d.constant(np.ascontiguousarray(weight.T) if is_turned else weight)]
    if d.likely(0.7):
        operands.append(d.constant(d.noise(outputs)))
    alpha, beta = (float(d.one_of(1.0, 1.0, 0.7, -1.5)) for _ in range(2))  # type: ignore[arg-type]
    d.add("Gemm", operands, transB=int(is_turned), alpha=alpha, beta=beta)


def draw(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A network and samples of one batch size for it."""
    d = Drawing(np.random.default_rng(seed))
    channels, spatial = int(d.one_of(*PRIMES)), [d.whole(3, 12) for _ in range(int(d.one_of(1, 2, 2, 2)))]  # type: ignore[call-overload]
    d.shapes["x"] = (1, channels, *spatial)
    steps, chances = list(STEPS), np.array(list(STEPS.values()), float)
    convolution(d)
    for _ in range(d.whole(2, 7)):
        if d.rank < 1 or np.prod(d.shape) > LARGEST:
            break
        steps[int(d.random.choice(len(steps), p=chances / chances.sum()))](d)
    inner = d.value
    if d.likely(0.6) and np.prod(d.shape) < LARGEST:
        head(d)
    magnitude = 10 ** d.random.uniform(-8, 8) if d.likely(0.25) else 1.0
    batch = int(d.one_of(1, 3))  # type: ignore[call-overload]
    feeds = [{"x": d.noise(batch, *d.shapes["x"][1:], scale=magnitude)} for _ in range(3)]
    outputs = dict.fromkeys([d.value, *([inner] if d.likely(0.2) else [])])
    return d.model(list(outputs)), feeds
