"""ResNet-50 v1.5 at 224x224 with random weights: `python models/random_resnet50.py [--out FILE]`.

For sizes and speed, which do not depend on the weights; needs onnx and NumPy only. Batch normalization is folded.
Shapes: He et al., "Deep Residual Learning for Image Recognition", 2016; 3x3 convolutions have the strides (v1.5).
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
OPSET, SIDE, CLASSES = 17, 224, 1000
# Channels of the inner convolutions, and blocks, of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4
# Of the last convolution of a block, so that sums do not grow from block to block.
RESIDUAL_GAIN = 0.3


@dataclass
class Builder:
    """A graph in the making."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; the name of its output."""
        output = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        """Add normal numbers that keep the size of what they are multiplied with (He initialization)."""
        deviation = gain * np.sqrt(2 / np.prod(shape[1:]))
        values = self.random.normal(0, deviation, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"weight_{len(self.weights)}"))
        return self.weights[-1].name

    def bias(self, count: int) -> str:
        """Add small numbers, one for each output."""
        values = self.random.normal(0, 0.05, count).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"weight_{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, gain: float = 1.0) -> str:
        """A convolution with as much padding as keeps the size at stride 1."""
        given = (x, self.weight(outputs, inputs, kernel, kernel, gain=gain), self.bias(outputs))
        pads, sizes = [kernel // 2] * 4, [kernel] * 2
        return self.add("Conv", *given, kernel_shape=sizes, strides=[stride] * 2, pads=pads)

    def block(self, x: str, inputs: int, width: int, stride: int) -> str:
        """A bottleneck, with a convolution beside it where the shape changes."""
        outputs = EXPANSION * width
        inner = self.add("Relu", self.conv(x, inputs, width, 1))
        inner = self.add("Relu", self.conv(inner, width, width, 3, stride))
        inner = self.conv(inner, width, outputs, 1, gain=RESIDUAL_GAIN)
        beside = x if inputs == outputs else self.conv(x, inputs, outputs, 1, stride, gain=0.5**0.5)
        return self.add("Relu", self.add("Add", inner, beside))


def build(seed: int = 0) -> onnx.ModelProto:
    """The network: `input` (N, 3, 224, 224), `output` (N, 1000)."""
    builder = Builder(np.random.default_rng(seed))
    x = builder.add("Relu", builder.conv("input", 3, STAGES[0][0], 7, 2))
    x = builder.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = STAGES[0][0]
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            x = builder.block(x, channels, width, 2 if stage and block == 0 else 1)
            channels = EXPANSION * width
    x = builder.add("Flatten", builder.add("GlobalAveragePool", x))
    builder.nodes.append(
        helper.make_node("Gemm", [x, builder.weight(CLASSES, channels), builder.bias(CLASSES)], ["output"], transB=1)
    )
    given = helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["N", 3, SIDE, SIDE])
    made = helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(builder.nodes, "resnet50", [given], [made], builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def main() -> None:
    """Write the network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models" / "resnet50.onnx")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
