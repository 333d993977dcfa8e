"""Operators that only move elements, on codes and on real values."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptqc.codegen.tvm.emission import Emission
from ptqc.codegen.tvm.families import Built, Declined, move, pool
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.window import Window
from ptqc.execute.onnxruntime import Runner
from ptqc.nodes import input_of, integer, integers, text

# Below every code and every float32: what a largest-of-window ignores.
LOWEST = {"uint8": 0.0, "float32": -3.4028235e38}
BATCH = 0


def _moved(emission: Emission, node: ir.Node, build: Callable[[Layout, Layout], Built]) -> None:
    """Add a kernel from the node's first input to its first output."""
    source = emission.inside(emission.read(node.inputs[0]))
    given = emission.layouts[source]
    layout = Layout(emission.shape(node.outputs[0]), given.dtype)
    emission.add(build(given, layout), [source], str(node.outputs[0].name), layout)


def reshape(emission: Emission, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    _moved(emission, node, move.reshape)


def transpose(emission: Emission, node: ir.Node) -> None:
    """Transpose that leaves the batch in front."""
    axes = integers(node, "perm", [])
    if not axes or axes[0] != BATCH:
        raise Declined("it moves the batch axis")
    _moved(emission, node, lambda x, y: move.transpose(x, y, [axis - 1 for axis in axes[1:]]))


def strided(emission: Emission, node: ir.Node) -> None:
    """Slice with constant bounds."""
    rank = len(emission.shapes[str(node.outputs[0].name)])
    starts, ends = emission.number(node.inputs[1]), emission.number(node.inputs[2])
    axes = emission.number(node.inputs[3]) if input_of(node, 3) is not None else np.arange(len(starts))
    steps = emission.number(node.inputs[4]) if input_of(node, 4) is not None else np.ones(len(starts), np.int64)
    first, step = [0] * rank, [1] * rank
    sizes = emission.shapes[str(emission.read(node.inputs[0]))]
    for axis, start, end, stride in zip(axes % rank, starts, ends, steps, strict=True):
        chosen = range(*slice(int(start), int(end), int(stride)).indices(sizes[axis]))
        first[axis], step[axis] = chosen.start, chosen.step
    if first[BATCH] or step[BATCH] != 1:
        raise Declined("it slices the batch axis")
    _moved(emission, node, lambda x, y: move.strided(x, y, first[1:], step[1:]))


def pad(emission: Emission, node: ir.Node) -> None:
    """Pad with a constant."""
    pads = emission.number(node.inputs[1]).tolist()
    if text(node, "mode", "constant") != "constant" or input_of(node, 3) is not None or min(pads) < 0:
        raise Declined("only padding of all axes with a constant has a kernel")
    value = float(emission.number(node.inputs[2])) if input_of(node, 2) is not None else 0.0
    before = pads[1 : len(pads) // 2]
    _moved(emission, node, lambda x, y: move.pad(x, y, before, value))


def concat(emission: Emission, node: ir.Node) -> None:
    """Concat along any axis but the batch."""
    rank = len(emission.shapes[str(node.outputs[0].name)])
    axis = integer(node, "axis", 0) % rank
    if axis == BATCH:
        raise Declined("it joins along the batch axis")
    names = [emission.inside(emission.read(value)) for value in node.inputs]
    given = [emission.layouts[name] for name in names]
    layout = Layout(emission.shape(node.outputs[0]), given[0].dtype)
    emission.add(move.concat(given, layout, axis - 1), names, str(node.outputs[0].name), layout)


def split(emission: Emission, node: ir.Node) -> None:
    """Split along any axis but the batch, one kernel per part."""
    source = emission.inside(emission.read(node.inputs[0]))
    given = emission.layouts[source]
    axis = integer(node, "axis", 0) % (len(given.shape) + 1)
    if axis == BATCH:
        raise Declined("it splits the batch axis")
    start = 0
    for value in node.outputs:
        layout = Layout(emission.shape(value), given.dtype)
        starts = [start if i == axis - 1 else 0 for i in range(len(given.shape))]
        emission.add(move.strided(given, layout, starts, [1] * len(starts)), [source], str(value.name), layout)
        start += layout.shape[axis - 1]


def depth_to_space(emission: Emission, node: ir.Node) -> None:
    """DepthToSpace of planes."""
    block, columns_first = integer(node, "blocksize", 1), text(node, "mode", "DCR") == "CRD"
    _moved(emission, node, lambda x, y: move.depth_to_space(x, y, block, columns_first=columns_first))


def resize(emission: Emission, node: ir.Node) -> None:
    """Resize to the nearest element; ONNX Runtime itself says which one that is along each axis."""
    if text(node, "mode", "nearest") != "nearest":
        raise Declined("only resizing to the nearest element has a kernel")
    before = emission.shapes[str(emission.read(node.inputs[0]))]
    after = emission.shapes[str(node.outputs[0].name)]
    maps = [_neighbours(emission, node, axis, before, after) for axis in range(1, len(before))]
    _moved(emission, node, lambda x, y: move.nearest(x, y, maps))


def _neighbours(
    emission: Emission, node: ir.Node, axis: int, before: tuple[int, ...], after: tuple[int, ...]
) -> np.ndarray:
    """Index of the source element for each element along an axis."""
    others = {index: np.asarray(emission.number(v)) for index, v in enumerate(node.inputs) if index and v is not None}
    names = ["x", *(f"c{i}" if i in others else "" for i in range(1, len(node.inputs)))]
    proto = ir.to_proto(node)
    proto.input[:], proto.output[:] = names, ["y"]
    graph = helper.make_graph(
        [proto],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, before)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, after)],
        [onnx.numpy_helper.from_array(array, f"c{index}") for index, array in others.items()],
    )
    opset = emission.lowered.model.opset_imports[""]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    shape = [1] * len(before)
    shape[axis] = before[axis]
    ramp = np.broadcast_to(np.arange(before[axis], dtype=np.float32).reshape(shape), before)
    found = Runner(model).run({"x": np.ascontiguousarray(ramp)})["y"]
    return np.moveaxis(found, axis, 0).reshape(after[axis], -1)[:, 0].astype(np.int32)


def largest(emission: Emission, node: ir.Node) -> None:
    """MaxPool over one or two axes."""
    kernel = integers(node, "kernel_shape", [])
    rank = len(kernel)
    pads = integers(node, "pads", [0] * (2 * rank))
    strides, dilations = (integers(node, key, [1] * rank) for key in ("strides", "dilations"))
    if rank not in (1, 2) or len(node.outputs) > 1 or text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Declined("only pools over one or two axes with explicit padding have a kernel")
    output = emission.shape(node.outputs[0])[1:]
    if rank == 1:
        pads, kernel, output = [0, pads[0], 0, pads[1]], [1, *kernel], (1, *output)
        strides, dilations = [1, *strides], [1, *dilations]
    name = emission.read(node.inputs[0])
    sizes = (1, *emission.layouts[name].shape[1:])[-2:]
    for axis in range(2):  # rounding up reads beyond the declared border
        needed = (output[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        pads[2 + axis] = max(pads[2 + axis], needed - sizes[axis] - pads[axis])
    source = emission.padded(name, pads, LOWEST[emission.layouts[name].dtype])
    given = emission.layouts[source]
    window = Window(
        given.shape[0], (given.shape[1], given.shape[2]), (kernel[0], kernel[1]), (strides[0], strides[1]),
        (dilations[0], dilations[1]),
    )  # fmt: skip
    layout = Layout(emission.shape(node.outputs[0]), given.dtype)
    emission.add(pool.largest(given, layout, window, emission.isa), [source], str(node.outputs[0].name), layout)
