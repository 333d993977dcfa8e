"""Operators that ONNX Runtime computes in float alone, on codes all the same: the file says what each code becomes.

output = Reshape(GatherElements(table, Reshape(Cast(codes), [-1])), Shape(codes)), with a table of 256 codes. A Gather
needs no other shape, but copies each element by itself and takes eight times as long.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ptqc.codegen.onnxruntime.constants import Share
from ptqc.ir import reference
from ptqc.ir.integer_arithmetic import EVERY_CODE
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import constant
from ptqc.ir.operators import known
from ptqc.ir.operators.base import LoweredStep
from ptqc.ir.protos import reads

PARTS = ("index", "flat", "found", "shape")


def inside(output: str) -> list[str]:
    """Names of the values between codes and what they become."""
    return [f"{output}/{part}" for part in PARTS]


def with_lookups(lowered: Lowered, nodes: Iterable[onnx.NodeProto], share: Share) -> Iterator[onnx.NodeProto]:
    """The nodes of a lowered graph, with tables in the place of operators that the plan has on codes."""
    steps = {step.output: step for step in reference.steps(lowered) if is_looked_up(step)}
    replaced = {str(step.node.outputs[0].name) for step in steps.values()}
    remaining = [node for node in nodes if not replaced.intersection(node.output)]
    still_read = {name for node in remaining if node.output[0] not in steps for name in reads(node)}
    real = {str(step.node.inputs[0].name) for step in steps.values()}  # type: ignore[union-attr]
    unread = real - still_read - {str(value.name) for value in lowered.model.graph.outputs}
    for node in remaining:
        if (step := steps.get(node.output[0])) is not None:
            yield from _written(step, share)
        elif unread.isdisjoint(node.output):
            yield node


def is_looked_up(step: LoweredStep) -> bool:
    """Whether a kernel of the lowered graph is a table in the file."""
    operator = known(step.node)
    return operator is not None and operator.is_looked_up


def _written(step: LoweredStep, share: Share) -> list[onnx.NodeProto]:
    table, _ = reference.bounds(step, {step.inputs[0]: EVERY_CODE})
    index, flat, result, shape = inside(step.output)
    return [
        helper.make_node("Cast", [step.inputs[0]], [index], to=onnx.TensorProto.INT32),
        helper.make_node("Reshape", [index, share(np.array([-1], np.int64))], [flat]),
        helper.make_node("GatherElements", [share(table), flat], [result]),
        helper.make_node("Shape", [step.inputs[0]], [shape]),
        helper.make_node("Reshape", [result, shape], [step.output]),
    ]


@dataclass(frozen=True)
class StoredLookup:
    """A table of a file: names of the codes that it reads and of those that it gives."""

    inputs: tuple[str, ...]
    output: str
    table: np.ndarray

    kind = "table of"

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.output}"

    def bounds(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The least and the most that it may give: the same."""
        result = self.table[values[self.inputs[0]]]
        return result, result


def lookups(model: ir.Model) -> Iterator[StoredLookup]:
    """The tables of a file that was read back."""
    for node in model.graph:
        if node.op_type != "GatherElements" or node.domain:
            continue
        table, cast = constant(node.inputs[0]), _behind(_behind(node, 1, "Reshape"), 0, "Cast")
        readers: Sequence[ir.Node] = node.outputs[0].consumers()
        if table is None or table.dtype != np.uint8 or table.shape != EVERY_CODE.shape or cast is None:
            continue
        codes = cast.inputs[0]
        if codes is not None and codes.dtype == ir.DataType.UINT8 and [r.op_type for r in readers] == ["Reshape"]:
            yield StoredLookup((str(codes.name),), str(readers[0].outputs[0].name), table)


def _behind(node: ir.Node | None, place: int, op_type: str) -> ir.Node | None:
    """The node that makes an input, if it is of this operator."""
    value = node.inputs[place] if node is not None else None
    maker = value.producer() if value is not None else None
    return maker if maker is not None and maker.op_type == op_type else None
