"""Nodes of the functions that unpack weights, where a format writes what it needs.

Planes that are far apart are shifted, masked and joined: few nodes, but each makes as many bytes as there are weights,
and ONNX Runtime keeps what all nodes of all weights make until it has folded the last one. Of close planes each byte is
an index into a table of the codes that its bits stand for, which is one node for each plane: a weight of 7 bits takes
10 bytes on the way instead of 24, one of 4 bits 4 instead of 14. The tables cost bytes of the file.

Single bits are few nodes, and the same for all formats: index = Σ 2^i · bit i is a product of integers, and what it
stands for is in a list of levels that the caller gives. A weight of 7 bits takes 27 bytes on the way, one of 4 bits 18.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ptqc.formats import Format
from ptqc.formats.planes import halves, planes_of

BYTES = 256  # values of one
BITS = 8
MASKS = 1 << np.arange(BITS)


class BodyNodes(ABC):
    """Nodes with generated names, that unpack a weight."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    @abstractmethod
    def codes(self, to: ir.DataType) -> str:
        """Codes of the weight's shape, or values that have no scale."""

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The output of a new node."""
        output = f"_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, value: object, dtype: type) -> str:
        """A constant."""
        return self.add("Constant", [], value=numpy_helper.from_array(np.array(value, dtype)))

    def fields(self, packed: str, width: int, offsets: np.ndarray) -> str:
        """The numbers of so many bits that begin at these places of each byte.

        Other bits go before the shift: OpenVINO divides by powers of two instead, and rounds what is not exact.
        """
        own = self.add("BitwiseAnd", [packed, self.constant((2**width - 1) << offsets, np.uint8)])
        return self.add("BitShift", [own, self.constant(offsets, np.uint8)], direction="RIGHT")

    def stated_shape(self) -> str:
        """The caller's attribute d: the dimensions of what is stored."""
        output = self.add("Constant", [])
        attribute = onnx.AttributeProto(name="value_ints", ref_attr_name="d", type=onnx.AttributeProto.INTS)
        self.nodes[-1].attribute.append(attribute)
        return output

    def cut(self, flat: str, shape: str) -> str:
        """Flat and padded values without the padding."""
        size = self.add("ReduceProd", [shape], keepdims=1)
        return self.add("Slice", [flat, self.constant([0], np.int64), size])


class BitsBody(BodyNodes):
    """Nodes that unpack single bits of any format. is_padded: whether there are more than needed."""

    def __init__(self, *, is_padded: bool) -> None:
        super().__init__()
        self.is_padded = is_padded

    def codes(self, to: ir.DataType) -> str:
        """The levels v that indices stand for, whose bits p have the weights w."""
        bits = self.add("Flatten", [self.add("Sign", [self.add("BitwiseAnd", ["p", self.constant(MASKS, np.uint8)])])])
        codes, shape = self.add("Gather", ["v", self.add("MatMulInteger", ["w", bits])]), self.stated_shape()
        if self.is_padded:
            codes = self.cut(self.add("Reshape", [codes, self.constant([-1], np.int64)]), shape)
        codes = self.add("Reshape", [codes, shape])
        return codes if to == ir.DataType.INT8 else self.add("Cast", [codes], to=to)


class Body(BodyNodes):
    """Nodes that unpack planes which are far apart. shape: in which their indices are joined."""

    shape: Sequence[int] = (-1,)

    def __init__(self, form: Format) -> None:
        super().__init__()
        self.form = form

    def codes(self, to: ir.DataType) -> str:
        """As the format unpacks what it stores."""
        return self.form.unpack(self, to)

    def given(self, name: str) -> str:
        """A formal input."""
        return name

    def stored(self) -> str:
        """Indices from the planes, flat and padded; without planes what is stored."""
        return self.indices("p", self.form.bits) if planes_of(self.form.bits) else "p"

    def indices(self, name: str, bits: int) -> str:
        """Indices joined from planes of such names, flat and padded."""
        total, shift = "", bits
        flat = self.constant(self.shape, np.int64)
        for width in planes_of(bits):
            shift -= width
            part = self.fields(f"{name}{width}", width, np.arange(0, BITS, width).reshape(-1, 1))
            part = self.add("Reshape", [part, flat])
            if shift:
                part = self.add("BitShift", [part, self.constant(shift, np.uint8)], direction="LEFT")
            total = self.add("BitwiseOr", [total, part]) if total else part
        return total

    def shaped(self, flat: str) -> str:
        """Cut the padding off and give the weight's shape."""
        shape = self.stated_shape()
        return self.add("Reshape", [self.cut(flat, shape), shape])

    def affine(self, step: int, lowest: int, to: ir.DataType) -> str:
        """lowest + step · index, in int32: 8-bit subtraction does not fold in every version of ONNX Runtime."""
        codes = self.add("Cast", [self.shaped(self.stored())], to=TensorProto.INT32)
        return self.add("Cast", [self.moved(codes, step, lowest)], to=to)

    def moved(self, index: str, step: int, lowest: int) -> str:
        """lowest + step · index, of int32."""
        if step != 1:
            index = self.add("Mul", [index, self.constant(step, np.int32)])
        return self.add("Sub", [index, self.constant(-lowest, np.int32)]) if lowest else index

    def looked_up(self) -> str:
        """What indices stand for in the table."""
        if self.form.group == 1:
            index = self.add("Cast", [self.shaped(self.stored())], to=TensorProto.INT32)
            return self.add("Gather", ["v", index])
        groups = self.add("Gather", ["v", self.add("Cast", [self.stored()], to=TensorProto.INT32)])
        return self.shaped(self.add("Reshape", [groups, self.constant(self.shape, np.int64)]))


class CloseBody(Body):
    """The same of close planes (`pack_close`)."""

    def __init__(self, form: Format) -> None:
        super().__init__(form)
        self._every_byte = ""

    def stored(self) -> str:
        """Indices, in the shape that all planes have together."""
        if not planes_of(self.form.bits):
            return self.plane("p")
        total, shift = "", self.form.bits
        for width in planes_of(self.form.bits):
            shift -= width
            table = self._indices(width)
            if shift:
                table = self.add("BitShift", [table, self.constant(shift, np.uint8)], direction="LEFT")
            total = self._with(total, table, width)
        return total

    def shaped(self, flat: str) -> str:
        """Nothing is padded."""
        return self.add("Reshape", [flat, self.stated_shape()])

    def affine(self, step: int, lowest: int, to: ir.DataType) -> str:
        """The offset is in the table of the highest bits; what other bits add to that shares no bit with it."""
        total, shift = "", self.form.bits
        for width in planes_of(self.form.bits):
            shift -= width
            index = self.add("Cast", [self._indices(width)], to=TensorProto.INT32)
            table = self.add("Cast", [self.moved(index, step << shift, 0 if total else lowest)], to=TensorProto.INT8)
            total = self._with(total, table, width)
        codes = self.shaped(total)
        return codes if to == ir.DataType.INT8 else self.add("Cast", [codes], to=to)

    def looked_up(self) -> str:
        """Of one plane, bytes stand for what all of their indices stand for."""
        widths = planes_of(self.form.bits)
        if len(widths) != 1:
            return self.shaped(self.add("Gather", ["v", self.add("Cast", [self.stored()], to=TensorProto.INT32)]))
        index = self.add("Cast", [self._indices(widths[0])], to=TensorProto.INT32)
        return self.shaped(self._with("", self.add("Gather", ["v", index]), widths[0]))

    def plane(self, name: str) -> str:
        """What is read of a formal input that holds indices."""
        return name

    def _indices(self, width: int) -> str:
        """The indices that each byte of a plane holds, in the shape that it stands for."""
        axes = halves(BITS // width)
        if not self._every_byte:
            self._every_byte = self.constant(np.arange(BYTES), np.uint8)
        column = self.add("Reshape", [self._every_byte, self.constant([-1] + [1] * len(axes), np.int64)])
        return self.fields(column, width, np.arange(0, BITS, width).reshape(axes))

    def _with(self, total: str, table: str, width: int) -> str:
        """What is joined so far and what a plane has in the table."""
        part = self.add("Gather", [table, self.add("Cast", [self.plane(f"p{width}")], to=TensorProto.INT32)])
        return self.add("BitwiseOr", [total, part]) if total else part


class RowsBody(CloseBody):
    """The same of the rows at places `i`, which each have whole bytes of every plane. rank: of the places."""

    def __init__(self, form: Format, rank: int) -> None:
        super().__init__(form)
        self.shape = (*(0,) * rank, -1)

    def plane(self, name: str) -> str:
        """The rows of it."""
        return self.add("Gather", [name, "i"])

    def shaped(self, flat: str) -> str:
        """A row for each place."""
        return self.add("Reshape", [flat, self.constant(self.shape, np.int64)])
