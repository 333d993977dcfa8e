"""Networks of 8-bit layers in C, computed by the kernels of CMSIS-NN that TFLite Micro calls, with random numbers.

Only the geometry is that of an ONNX model. One program has all layers of a network, and its input says which one runs.
"""

import math
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ptqc.codegen.c.emulation import Board, BoardRun, BuildOptions, CNetwork, compile_c, run_on_board

FOLDERS = (
    "BasicMathFunctions",
    "ConvolutionFunctions",
    "FullyConnectedFunctions",
    "NNSupportFunctions",
    "PoolingFunctions",
    "TransposeFunctions",
)
OTHER_TYPES = ("s4", "s16", "f16", "f32")
# Bytes that the input begins with: the layer, and whether it runs or tells how much scratch memory it takes.
HEAD = 2
RUN, SIZES = 0, 1
SCRATCH = 2**16
NO_SUCH_LAYER = 99

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Layer:
    """A layer with int8 values. source, result: height, width and channels. pad: rows above, and columns to the left.

    live: bytes of all activations that are in memory while it runs, itself included.
    """

    kind: str
    source: Size
    result: Size
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    live: int = 0

    @property
    def depth(self) -> int:
        """Products in one sum."""
        channels = {"conv": self.source[2], "dense": math.prod(self.source)}.get(self.kind, 1)
        return math.prod(self.kernel) * channels

    @property
    def products(self) -> int:
        """Products of a weight and an activation in a run."""
        return self.depth * math.prod(self.result) if self.has_weights else 0

    @property
    def has_weights(self) -> bool:
        return self.kind not in ("pool", "add")

    @property
    def weight_bytes(self) -> int:
        """Bytes of int8 weights and int32 biases."""
        return (self.depth + 4) * self.result[2] if self.has_weights else 0

    @property
    def input_bytes(self) -> int:
        return math.prod(self.source) * (2 if self.kind == "add" else 1)

    def __str__(self) -> str:
        described = "×".join(map(str, self.source))
        kernel = f", {'×'.join(map(str, self.kernel))}" if self.kind in ("conv", "depthwise", "pool") else ""
        stride = f" / {self.stride[0]}" if self.kind in ("conv", "depthwise") and self.stride != (1, 1) else ""
        return f"{self.kind} {described}{kernel}{stride} to {'×'.join(map(str, self.result))}"


def layers_of(path: Path) -> list[Layer]:
    """Read the layers that CMSIS-NN has kernels for, batch 1; activation functions are part of the layer before."""
    model = _fixed(path)
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    nodes = [(node, _layer(node, shapes, weights)) for node in model.graph.node]
    live = _live_bytes(model.graph, shapes, weights)
    return [
        Layer(layer.kind, layer.source, layer.result, layer.kernel, layer.stride, layer.pad, live[index])
        for index, (_, layer) in enumerate(nodes)
        if layer is not None
    ]


def _fixed(path: Path) -> onnx.ModelProto:
    """A model with a batch of one and constants folded, and padding as part of convolutions."""
    import onnxruntime as ort

    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.shape_inference.infer_shapes(onnx.load(options.optimized_model_filepath))


def _layer(node: onnx.NodeProto, shapes: dict[str, list[int]], weights: dict[str, list[int]]) -> Layer | None:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type not in ("Conv", "Gemm", "AveragePool", "GlobalAveragePool", "ReduceMean", "Add"):
        return None
    source, result = _size(shapes[node.input[0]]), _size(shapes[node.output[0]])
    if node.op_type == "Gemm":
        return Layer("dense", source, result)
    if node.op_type == "Add":
        return Layer("add", source, result)
    kernel = tuple(attributes.get("kernel_shape", source[:2]))
    stride = tuple(attributes.get("strides", (1, 1)))
    if node.op_type != "Conv":  # a mean over everything takes one step
        return Layer("pool", source, result, kernel, stride)
    pad = tuple(
        max((outer - 1) * step + width - inner, 0) // 2
        for inner, outer, width, step in zip(source[:2], result[:2], kernel, stride, strict=True)
    )
    pad = pad if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" else tuple(attributes["pads"][:2])
    depthwise = attributes.get("group", 1) > 1
    assert not depthwise or weights[node.input[1]][1] == 1, "groups of one channel alone"
    return Layer("depthwise" if depthwise else "conv", source, result, kernel, stride, pad)


def _size(shape: Sequence[int]) -> Size:
    """Height, width and channels of an activation that ONNX has channels first."""
    channels, *spatial = shape[1:]
    height, width = spatial or (1, 1)
    return height, width, channels


def _live_bytes(graph: onnx.GraphProto, shapes: dict[str, list[int]], weights: dict[str, list[int]]) -> list[int]:
    """Bytes of int8 activations in memory at each node; what has one reader of the same size is overwritten."""
    readers = [[name for name in node.input if name and name not in weights] for node in graph.node]
    last = {name: index for index, names in enumerate(readers) for name in names}
    last.update({value.name: len(readers) for value in graph.output})
    result, present = [], {value.name for value in graph.input}
    for index, node in enumerate(graph.node):
        present.update(node.output)
        in_place = node.op_type in ("Relu", "Flatten", "Reshape", "Add")
        replaced = {name for name in readers[index] if in_place and last[name] == index}
        counted = present - set(sorted(replaced)[:1])
        result.append(sum(math.prod(shapes[name]) for name in counted))
        present = {name for name in present if last.get(name, 0) > index}
    return result


def build_library(checkout: Path, board: Board, flags: Sequence[str], folder: Path) -> Path:
    """Compile CMSIS-NN's kernels for int8 to an archive."""
    sources = [
        path
        for name in FOLDERS
        for path in sorted((checkout / "Source" / name).glob("*.c"))
        if not any(part in OTHER_TYPES for part in path.stem.split("_") if "s8" not in path.stem.split("_"))
    ]
    options = ["-std=c99", "-ffunction-sections", "-fdata-sections", f"-I{checkout / 'Include'}", *flags]
    objects = [folder / f"{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(_compile, board, options), sources, objects))
    archive = folder / "libcmsis_nn.a"
    subprocess.run(["arm-none-eabi-ar", "rcsD", archive, *objects], check=True)
    return archive


def _compile(board: Board, options: Sequence[str], source: Path, output: Path) -> None:
    compile_c(board, source, output, options)


@dataclass(frozen=True)
class Measured:
    """What layers did on a board. scratch: bytes that each asks for. outputs: of each."""

    instructions: list[int]
    scratch: list[int]
    outputs: list[bytes]
    run: BoardRun


def measure(layers: Sequence[Layer], board: Board, checkout: Path, flags: Sequence[str]) -> Measured:
    """Run each layer of a network on a board."""
    random = np.random.default_rng(0)
    data = random.integers(-128, 128, max(layer.input_bytes for layer in layers), np.int8).tobytes()
    sizes = (HEAD, len(data)), (max(math.prod(layer.result) for layer in layers), 4)
    samples = [[bytes([index, mode]), data] for mode in (SIZES, RUN) for index in range(len(layers))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archive = build_library(checkout, board, flags, folder)
        (folder / "layers.h").write_text(HEADER, encoding="utf-8")
        (folder / "layers.c").write_text("\n".join(_source(layers)), encoding="utf-8")
        network = CNetwork(folder, "layers", *sizes, archives=(archive,), includes=(checkout / "Include",))
        run = run_on_board(board, network, samples, BuildOptions(flags=("-Wno-unused-parameter",)))
    count = len(layers)
    scratch = [int.from_bytes(outputs[1], "little", signed=True) for outputs in run.outputs[:count]]
    outputs = [values[0][: math.prod(layer.result)] for layer, values in zip(layers, run.outputs[count:], strict=True)]
    return Measured(run.instructions[count:], scratch, outputs, run)


HEADER = """\
#include <stdint.h>
int ptqc_layers_run(const uint8_t *head, const int8_t *input, int8_t *output, int32_t *scratch);
"""
CONV = """\
static const {params} params_{i} = {{{offsets}, {{{stride}}}, {{{pad}}}, {{1, 1}}, {{-128, 127}}}};
static const cmsis_nn_dims input_{i} = {{1, {source}}}, filter_{i} = {{{filter}}}, bias_{i} = {{1, 1, 1, {channels}}};
static const cmsis_nn_dims output_{i} = {{1, {result}}};
static int run_{i}(const int8_t *input, int8_t *output) {{
    const cmsis_nn_context context = {{scratch_buffer, sizeof scratch_buffer}};
    const cmsis_nn_per_channel_quant_params scales = {{(int32_t *)multipliers_{i}, (int32_t *)shifts_{i}}};
    return {function}(&context, &params_{i}, &scales, &input_{i}, input, &filter_{i}, weights_{i}, &bias_{i},
                      biases_{i}, &output_{i}, output);
}}
static int32_t size_{i}(void) {{
    return {function}_get_buffer_size(&params_{i}, &input_{i}, &filter_{i}, &output_{i});
}}
"""
# MVE reads sums of weights, which TFLite Micro computes once before the first run.
DENSE = """\
static const cmsis_nn_dims input_{i} = {{1, 1, 1, {depth}}}, filter_{i} = {{{depth}, 1, 1, {channels}}};
static const cmsis_nn_dims output_{i} = {{1, 1, 1, {channels}}}, bias_{i} = {{1, 1, 1, {channels}}};
static int run_{i}(const int8_t *input, int8_t *output) {{
    const cmsis_nn_fc_params params = {{128, 0, -128, {{-128, 127}}}};
    const cmsis_nn_per_tensor_quant_params scale = {{1 << 30, {shift}}};
#ifdef __ARM_FEATURE_MVE
    const cmsis_nn_context context = {{(void *)sums_{i}, sizeof sums_{i}}};
#else
    const cmsis_nn_context context = {{0, 0}};
#endif
    return arm_fully_connected_s8(&context, &params, &scale, &input_{i}, input, &filter_{i}, weights_{i}, &bias_{i},
                                  biases_{i}, &output_{i}, output);
}}
static int32_t size_{i}(void) {{ return arm_fully_connected_s8_get_buffer_size(&filter_{i}); }}
"""
POOL = """\
static const cmsis_nn_dims input_{i} = {{1, {source}}}, filter_{i} = {{1, {kernel}, 1}}, output_{i} = {{1, {result}}};
static int run_{i}(const int8_t *input, int8_t *output) {{
    const cmsis_nn_context context = {{scratch_buffer, sizeof scratch_buffer}};
    const cmsis_nn_pool_params params = {{{{{stride}}}, {{0, 0}}, {{-128, 127}}}};
    return arm_avgpool_s8(&context, &params, &input_{i}, input, &filter_{i}, &output_{i}, output);
}}
static int32_t size_{i}(void) {{ return arm_avgpool_s8_get_buffer_size({width}, {channels}); }}
"""
ADD = """\
static int run_{i}(const int8_t *input, int8_t *output) {{
    return arm_elementwise_add_s8(input, input + {count}, 128, 1 << 30, 0, 128, 1 << 30, 0, 20, output, -128, 1 << 30,
                                  -19, -128, 127, {count});
}}
static int32_t size_{i}(void) {{ return 0; }}
"""
TEMPLATES = {"conv": CONV, "depthwise": CONV, "dense": DENSE, "pool": POOL, "add": ADD}
#: The function that TFLite Micro calls for a kind of layer.
FUNCTIONS = {
    "conv": "arm_convolve_wrapper_s8",
    "depthwise": "arm_depthwise_conv_wrapper_s8",
    "dense": "arm_fully_connected_s8",
    "pool": "arm_avgpool_s8",
    "add": "arm_elementwise_add_s8",
}


def _source(layers: Sequence[Layer]) -> Iterator[str]:
    yield '#include "layers.h"\n#include "arm_nnfunctions.h"\n'
    yield f"static int8_t scratch_buffer[{SCRATCH}] __attribute__((aligned(16)));\n"
    random = np.random.default_rng(1)
    for index, layer in enumerate(layers):
        yield from _constants(index, layer, random)
        yield TEMPLATES[layer.kind].format(**_values(index, layer))
    yield "int ptqc_layers_run(const uint8_t *head, const int8_t *input, int8_t *output, int32_t *scratch) {"
    yield "    switch (2 * head[0] + head[1]) {"
    for index in range(len(layers)):
        yield f"    case {2 * index + RUN}: return run_{index}(input, output);"
        yield f"    case {2 * index + SIZES}: *scratch = size_{index}(); return 0;"
    yield f"    default: return {NO_SUCH_LAYER};\n    }}\n}}"


def _constants(index: int, layer: Layer, random: np.random.Generator) -> Iterator[str]:
    if not layer.has_weights:
        return
    channels = layer.result[2]
    weights = random.integers(-127, 128, (channels, layer.depth))
    biases = random.integers(-1000, 1000, channels)
    yield _array("int8_t", f"weights_{index}", weights.ravel())
    yield _array("int32_t", f"biases_{index}", biases)
    if layer.kind == "dense":
        yield "#ifdef __ARM_FEATURE_MVE"
        yield _array("int32_t", f"sums_{index}", biases + 128 * weights.sum(axis=1)) + "#endif"
    else:
        yield _array("int32_t", f"multipliers_{index}", [2**30] * channels)
        yield _array("int32_t", f"shifts_{index}", [_shift(layer)] * channels)


def _array(kind: str, name: str, values: Any) -> str:
    return f"static const {kind} {name}[] = {{{', '.join(map(str, values))}}};\n"


def _shift(layer: Layer) -> int:
    """A power of two by which sums of random products become values of 8 bits."""
    return -round(math.log2(math.sqrt(layer.depth) * 2**13 / 2**6))


def _values(index: int, layer: Layer) -> dict[str, Any]:
    """What the templates take. Tiles are width and height, and dimensions height, width and channels."""
    depthwise, channels = layer.kind == "depthwise", layer.result[2]
    kernel = ", ".join(map(str, layer.kernel))
    return {
        "i": index,
        "function": FUNCTIONS[layer.kind],
        "params": f"cmsis_nn_{'dw_' if depthwise else ''}conv_params",
        "offsets": "128, -128, 1" if depthwise else "128, -128",
        "stride": f"{layer.stride[1]}, {layer.stride[0]}",
        "pad": f"{layer.pad[1]}, {layer.pad[0]}",
        "source": ", ".join(map(str, layer.source)),
        "result": ", ".join(map(str, layer.result)),
        "filter": f"1, {kernel}, {channels}" if depthwise else f"{channels}, {kernel}, {layer.source[2]}",
        "kernel": kernel,
        "channels": channels,
        "depth": layer.depth,
        "shift": _shift(layer),
        "width": layer.result[1],
        "count": math.prod(layer.source),
    }
