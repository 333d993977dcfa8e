"""ResNet-50 (He et al., 2016, with strides in the 3 × 3 convolutions) with drawn weights: as ONNX, and in torch."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# Channels within the blocks of a stage, and blocks; what a block gives out is four times as wide.
STAGES, EXPANSION, CLASSES, SIZE = ((64, 3), (128, 4), (256, 6), (512, 3)), 4, 1000, 224


class Block(NamedTuple):
    """inputs, inside: channels. stride: of its 3 × 3 convolution."""

    inputs: int
    inside: int
    stride: int


def blocks(stages: tuple[tuple[int, int], ...] = STAGES) -> Iterator[Block]:
    inputs = stages[0][0]
    for stage, (inside, count) in enumerate(stages):
        for number in range(count):
            yield Block(inputs, inside, 2 if stage and not number else 1)
            inputs = inside * EXPANSION


def onnx_model(stages: tuple[tuple[int, int], ...] = STAGES, size: int = SIZE, classes: int = CLASSES) -> Any:
    """A model whose batch is open."""
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights = np.random.default_rng(0), list[Any](), list[Any]()

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(*shape: int, scale: float) -> str:
        name = f"w{len(weights)}"
        array = (random.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(x: str, inputs: int, outputs: int, side: int = 1, stride: int = 1) -> str:
        w = constant(outputs, inputs, side, side, scale=(2 / (inputs * side * side)) ** 0.5)
        return node("Conv", x, w, constant(outputs, scale=0.1), pads=[side // 2] * 4, strides=[stride] * 2)

    width = stages[0][0]
    y = node("Relu", conv("x", 3, width, 7, 2))
    y = node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for block in blocks(stages):
        outputs = block.inside * EXPANSION
        is_other = block.stride > 1 or block.inputs != outputs
        beside = conv(y, block.inputs, outputs, 1, block.stride) if is_other else y
        inner = node("Relu", conv(y, block.inputs, block.inside))
        inner = node("Relu", conv(inner, block.inside, block.inside, 3, block.stride))
        y = node("Relu", node("Add", conv(inner, block.inside, outputs), beside))
    y = node("Flatten", node("GlobalAveragePool", y))
    last = stages[-1][0] * EXPANSION
    y = node("Gemm", y, constant(classes, last, scale=last**-0.5), constant(classes, scale=0.1), transB=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, size, size])
    out = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["N", classes])
    graph = helper.make_graph(nodes, "resnet50", [x], [out], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def torch_model(torch: Any) -> Any:
    """The same in torch, with normalizations folded as a compiled model has them."""
    nn = torch.nn

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, block: Block) -> None:
            super().__init__()
            outputs = block.inside * EXPANSION
            self.first = nn.Conv2d(block.inputs, block.inside, 1)
            self.second = nn.Conv2d(block.inside, block.inside, 3, block.stride, 1)
            self.third = nn.Conv2d(block.inside, outputs, 1)
            is_other = block.stride > 1 or block.inputs != outputs
            self.beside = nn.Conv2d(block.inputs, outputs, 1, block.stride) if is_other else nn.Identity()

        def forward(self, x: Any) -> Any:
            inner = torch.relu(self.second(torch.relu(self.first(x))))
            return torch.relu(self.third(inner) + self.beside(x))

    head = [nn.Conv2d(3, STAGES[0][0], 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1][0] * EXPANSION, CLASSES)]
    return nn.Sequential(*head, *map(Bottleneck, blocks()), *tail)
