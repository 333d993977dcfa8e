"""Operators whose places are computed or found: gathering, scattering, places of extremes, triangles, running sums."""

from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from ptqc.codegen.kernels.families import indexing, scattering
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, text

Build = Callable[[Layout, Layout, Layout], KernelSource]
Scatter = Callable[[Layout, Layout, Layout, Layout, str], KernelSource]


def gather_elements(builder: ProgramBuilder, node: ir.Node) -> None:
    """GatherElements."""
    axis = integer(node, "axis", 0) % len(builder.sizes(node.inputs[0]))
    outer = builder.outer(*node.inputs, node.outputs[0], touched=axis == 0)
    at_places(builder, node, outer, lambda x, places, y: indexing.gather_elements(x, places, y, axis - outer))


def gather(builder: ProgramBuilder, node: ir.Node) -> None:
    """Gather at places that vary, of anything."""
    axis = integer(node, "axis", 0) % len(builder.sizes(node.inputs[0]))
    whole = builder.outer(*node.inputs, node.outputs[0], touched=True)
    at_places(builder, node, whole, lambda x, places, y: indexing.gather(x, places, y, axis))


def gather_nd(builder: ProgramBuilder, node: ir.Node) -> None:
    """GatherND."""
    count = integer(node, "batch_dims", 0)
    outer = builder.outer(*node.inputs, node.outputs[0], touched=count == 0)
    at_places(builder, node, outer, lambda x, places, y: indexing.gather_nd(x, places, y, count - outer))


def at_places(builder: ProgramBuilder, node: ir.Node, outer: int, build: Build) -> None:
    """Append a kernel that reads a value at the places that another one holds."""
    (one, x), (other, places) = (builder.flat(value, outer) for value in node.inputs)
    y = Layout(builder.sizes(node.outputs[0])[outer:], x.dtype, row_major=True)
    builder.add_as(build(x, places, y), [one, other], node.outputs[0], y)


def scatter_elements(builder: ProgramBuilder, node: ir.Node) -> None:
    """ScatterElements."""
    axis = integer(node, "axis", 0) % len(builder.sizes(node.inputs[0]))
    outer = builder.outer(*node.inputs, node.outputs[0], touched=axis == 0)

    def build(x: Layout, places: Layout, updates: Layout, y: Layout, reduction: str) -> KernelSource:
        return scattering.scatter_elements(x, places, updates, y, axis - outer, reduction)

    scattered(builder, node, outer, build)


def scatter_nd(builder: ProgramBuilder, node: ir.Node) -> None:
    """ScatterND."""
    whole = builder.outer(*node.inputs, node.outputs[0], touched=True)
    scattered(builder, node, whole, scattering.scatter_nd)


def scattered(builder: ProgramBuilder, node: ir.Node, outer: int, build: Scatter) -> None:
    """Append a kernel that writes elements of a value to the places in another one that a third one holds."""
    (one, x), (other, places), (third, updates) = (builder.flat(value, outer) for value in node.inputs)
    reduction = text(node, "reduction", "none")
    if x.dtype == "bool" and reduction != "none":
        raise UnsupportedOp("truth values are not added")
    y = replace(x, is_io=False, row_major=True)
    builder.add_as(build(x, places, updates, y, reduction), [one, other, third], node.outputs[0], y)


def place_of_best(builder: ProgramBuilder, node: ir.Node) -> None:
    """ArgMax, ArgMin."""
    axis = integer(node, "axis", 0) % len(builder.sizes(node.inputs[0]))
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=axis == 0)
    is_largest, is_last = node.op_type == "ArgMax", bool(integer(node, "select_last_index", 0))
    name, x = builder.flat(node.inputs[0], outer)
    y = Layout(builder.sizes(node.outputs[0])[outer:], "int64", row_major=True)
    kernel = indexing.place_of_best(x, y, axis - outer, is_largest=is_largest, is_last=is_last)
    builder.add_as(kernel, [name], node.outputs[0], y)


def triangle(builder: ProgramBuilder, node: ir.Node) -> None:
    """Trilu."""
    diagonal = int(builder.number(node.inputs[1]).item()) if input_of(node, 1) is not None else 0
    is_upper, rank = bool(integer(node, "upper", 1)), len(builder.sizes(node.inputs[0]))
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=rank == 2)
    name, x = builder.flat(node.inputs[0], outer)
    builder.add_as(indexing.triangle(x, x, diagonal, is_upper=is_upper), [name], node.outputs[0], x)


def running(builder: ProgramBuilder, node: ir.Node) -> None:
    """CumSum, CumProd."""
    axis = int(builder.number(node.inputs[1]).item()) % len(builder.sizes(node.inputs[0]))
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=axis == 0)
    name, x = builder.flat(node.inputs[0], outer)
    if x.dtype == "bool":
        raise UnsupportedOp("truth values are not added")
    exclusive, backwards = (bool(integer(node, key, 0)) for key in ("exclusive", "reverse"))
    kernel = indexing.running(
        x, x, axis - outer, is_product=node.op_type == "CumProd", exclusive=exclusive, backwards=backwards
    )
    builder.add_as(kernel, [name], node.outputs[0], x)
