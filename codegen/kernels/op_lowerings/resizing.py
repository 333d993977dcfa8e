"""Resize: ONNX Runtime itself says what each element is made of, axis by axis."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import resample
from ptqc.codegen.kernels.pending import NearestResize
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.folding import opened, standalone
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import text

Shape = Sequence[int]
Resized = Callable[[np.ndarray], np.ndarray]
SEPARABLE = ("linear", "cubic")


def resize(builder: ProgramBuilder, node: ir.Node) -> None:
    """Resize to the nearest element, or by interpolation."""
    mode = text(node, "mode", "nearest")
    if mode not in ("nearest", *SEPARABLE) or text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise UnsupportedOp("cropping has no kernel")
    before, after = builder.sizes(node.inputs[0]), builder.sizes(node.outputs[0])
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=before[0] != after[0])
    resized = _oracle(builder, node)
    if mode == "nearest":
        maps = [_neighbours(resized, axis, before, after) for axis in range(outer, len(before))]
        builder.apply(node, lambda _x, _y: NearestResize(builder.isa, maps), outer=outer, stored=True)
        return
    _interpolate(builder, node, resized, outer)


def _oracle(builder: ProgramBuilder, node: ir.Node) -> Resized:
    """What ONNX Runtime makes of other values of the input."""
    proto, constants = standalone(node, builder.number)
    like = {"x": np.zeros(builder.sizes(node.inputs[0]), np.float32)}
    runner = opened(builder.lowered.model, [proto], constants, like, ["y"])
    return lambda values: runner.run({"x": values})["y"]


def _neighbours(resized: Resized, axis: int, before: Shape, after: Shape) -> np.ndarray:
    """Index of the source element for each element along an axis."""
    shape = [1] * len(before)
    shape[axis] = before[axis]
    ramp = np.ascontiguousarray(np.broadcast_to(np.arange(before[axis], dtype=np.float32).reshape(shape), before))
    return _line(resized(ramp), axis, after).astype(np.int32)


def _interpolate(builder: ProgramBuilder, node: ir.Node, resized: Resized, outer: int) -> None:
    """One kernel for each axis that is resized, since the weights of an element are products over the axes."""
    builder.real(node.inputs[0])
    output, before, after = node.outputs[0], builder.sizes(node.inputs[0]), builder.sizes(node.outputs[0])
    name, x = builder.flat(node.inputs[0], outer)
    axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for axis in axes or [len(after) - 1]:
        weights, shape = _weights(resized, axis, before, after), list(x.shape)
        shape[axis - outer] = after[axis]
        y = Layout(tuple(shape), "float32", row_major=True)
        result = str(output.name) if y.shape == after[outer:] else f"{output.name}@{axis}"
        name = builder.add(resample.along(x, y, axis - outer, weights), [name], result, y)
        x = y
    builder.layouts[name] = Layout(builder.shape(output), "float32", row_major=True)


def _weights(resized: Resized, axis: int, before: Shape, after: Shape) -> np.ndarray:
    """What each element along an axis takes of each source element, which is one and all others zero."""
    columns = []
    for place in range(before[axis]):
        unit = np.zeros(before, np.float32)
        unit[(slice(None),) * axis + (place,)] = 1
        columns.append(_line(resized(unit), axis, after))
    return np.stack(columns, axis=1)


def _line(values: np.ndarray, axis: int, shape: Shape) -> np.ndarray:
    return np.moveaxis(values, axis, 0).reshape(shape[axis], -1)[:, 0]
