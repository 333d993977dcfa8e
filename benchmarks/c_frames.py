"""Networks along time as C source that takes whole windows, and as source that takes new frames.

python benchmarks/c_frames.py [--networks ds_cnn,tcn] [--budget 25%] [--out results.json] [--record]

Instructions and memory of a call on an emulated Cortex-M4 and Cortex-M55, as a compile counts them. The networks have
random weights: what a call costs depends on their shapes alone, and on how weights are packed.
ds_cnn: separable convolutions over time and features as in the keyword spotter of MLPerf Tiny, without padding along
time. tcn: eight causal convolutions of 64 channels with dilations 1 to 8, with sums over two of them each.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from harness import FIGURES, Column, command_line, machine, number, print_results, record, write_results
from onnx import numpy_helper

import ptqc

SAMPLES = 64
COLUMNS = (
    Column("network", "task"),
    Column("call", "call"),
    Column("frames", "frames", number(0)),
    Column("constants, bytes", "constant_bytes", number(0)),
    Column("memory, bytes", "memory_bytes", number(0)),
    Column("M4", "cortex_m4", number(0)),
    Column("M55", "cortex_m55", number(0)),
)


class Graph:
    """A graph in the making, with random weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.lines, self.weights, self.last = shape, list[str](), dict[str, np.ndarray](), "x"
        self.random = np.random.default_rng(0)

    def constant(self, *shape: int) -> str:
        """Weights that keep the size of activations, by name."""
        name = f"w{len(self.weights)}"
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        self.weights[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def add(self, call: str) -> str:
        """A node behind the last one, which stands for {} in it."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {call.format(self.last)}")
        self.last = name
        return name

    def conv(self, attributes: str, *shape: int) -> None:
        """A convolution and its Relu."""
        self.add(f"Conv <{attributes}> ({{}}, {self.constant(*shape)}, {self.constant(shape[0])})")
        self.add("Relu({})")

    def model(self, *output: int) -> onnx.ModelProto:
        """The model with the last value as its output, of this shape."""
        x, y = (",".join(map(str, ("N", *shape))) for shape in (self.shape, output))
        text = f"g (float[{x}] x) => (float[{y}] y) {{ {' '.join(self.lines)} y = Identity({self.last}) }}"
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.weights.items())
        return proto


def ds_cnn() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    graph = Graph((1, 49, 10))
    graph.conv("pads = [0, 1, 0, 1], strides = [2, 2]", 64, 1, 10, 4)
    for _ in range(4):
        graph.conv("pads = [0, 1, 0, 1], group = 64", 64, 1, 3, 3)
        graph.conv("kernel_shape = [1, 1]", 64, 64, 1, 1)
    graph.add("GlobalAveragePool({})")
    graph.add("Flatten({})")
    graph.add(f"Gemm <transB = 1> ({{}}, {graph.constant(12, 64)}, {graph.constant(12)})")
    return graph.model(12), graph.shape


def tcn() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    graph = Graph((40, 100))
    graph.conv("kernel_shape = [1]", 64, 40, 1)
    for dilation in (1, 2, 4, 8):
        begin = graph.last
        for _ in range(2):
            graph.conv(f"pads = [{2 * dilation}, 0], dilations = [{dilation}]", 64, 64, 3)
        graph.add(f"Add({{}}, {begin})")
    graph.add(f"Conv({{}}, {graph.constant(12, 64, 1)}, {graph.constant(12)})")
    return graph.model(12, 100), graph.shape


# Networks with the axis of time.
NETWORKS = {"ds_cnn": (ds_cnn, 2), "tcn": (tcn, 2)}


def rows_of(name: str, budget: str) -> Iterator[dict[str, Any]]:
    """A row for windows, and one for frames."""
    make, axis = NETWORKS[name]
    model, shape = make()
    samples = np.random.default_rng(1).standard_normal((SAMPLES, *shape)).astype(np.float32)
    for call in ("window", "frames"):
        options: dict[str, Any] = {"c_stream": axis} if call == "frames" else {}
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "out"
            artifact = ptqc.compile(
                model, calibration=samples, output=folder, budget=budget, target="c", force=True, **options
            )
            document = artifact.manifest["targets"]["c"]
        boards = document["boards"]
        sizes = {each: document.get(each, 0) for each in ("arena_bytes", "state_bytes", "input_and_output_bytes")}
        yield {
            "task": name,
            "budget": budget,
            "call": call,
            "frames": document.get("frames_per_call", shape[axis - 1]),
            "constant_bytes": document["constant_bytes"],
            **sizes,
            "memory_bytes": sum(sizes.values()) + boards["cortex-m4"]["stack_bytes"],
            "multiplications": document["multiplications"],
            "integers_different": document["verification"]["integers_different"],
            **{board.replace("-", "_"): boards[board]["instructions"] for board in ("cortex-m4", "cortex-m55")},
        }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = [row for name in options.networks.split(",") for row in rows_of(name, options.budget)]
    print_results(rows, COLUMNS, machine())
    if options.out:
        write_results(options.out, rows, machine())
    if options.record:
        record(FIGURES / "c_frames.json", rows, machine(), "call")


if __name__ == "__main__":
    main()
