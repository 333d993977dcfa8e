"""Model-local functions that rebuild weights at load: planes -> codes -> what the layer reads.

ONNX Runtime inlines them and folds everything up to the int8 codes (or up to float, for a layer that computes in
float) when it loads the file, so they cost nothing per inference; only rows of a table are unpacked in each run, those
that are asked for. Only operators that fold in every version since
1.18 are used: subtraction in int32, no 8-bit arithmetic beyond shifts and bit-wise logic, no int4 types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ptqc.formats import Format
from ptqc.formats.planes import planes_of

DOMAIN = "p"


class UnpackKind(StrEnum):
    """What a function gives: both dequantized constants of an integer layer, its weight alone, or a float constant."""

    # Each takes what the format stores.
    LAYER = "layer"  # and bias, s_x, 2^k -> DequantizeLinear of weight and of bias
    WEIGHT = "weight"  # -> DequantizeLinear of weight
    FLOAT = "float"  # -> scale · codes, folded to a float constant
    VALUES = "values"  # -> the values themselves, where they have no scale
    ROWS = "rows"  # and i -> rows i of scale · codes, computed in each run from what is stored


FURTHER_INPUTS = {UnpackKind.LAYER: ("b", "x", "k"), UnpackKind.ROWS: ("i",)}
# How the names of functions begin.
LETTERS = {
    UnpackKind.LAYER: "L",
    UnpackKind.WEIGHT: "W",
    UnpackKind.FLOAT: "F",
    UnpackKind.VALUES: "P",
    UnpackKind.ROWS: "G",
}


@dataclass(frozen=True, order=True)
class UnpackFunction:
    """Identity of a function.

    axis, rank: of the weight's scales (0, 0 where they do not matter). Where rows are picked, rank: of their places.
    turned: a matrix is stored with its axes exchanged.
    """

    kind: UnpackKind
    form: Format
    axis: int = 0
    rank: int = 0
    turned: bool = False

    @property
    def name(self) -> str:
        """Short name, unique within a file."""
        kind = LETTERS[self.kind] + self.form.mark
        place = f"{self.axis}{self.rank}" if self.axis or self.rank else ""
        return f"{kind}{self.form.bits}{place}{'t' if self.turned else ''}"

    @property
    def inputs(self) -> list[str]:
        """Formal inputs."""
        return [*self.form.inputs, *FURTHER_INPUTS.get(self.kind, ())]

    @property
    def takes_shape(self) -> bool:
        """Whether calls state the weight's shape."""
        return self.form.is_packed and self.kind != UnpackKind.ROWS

    def to_proto(self, opset: int) -> onnx.FunctionProto:
        """The function's body."""
        body = _Rows(self) if self.kind == UnpackKind.ROWS else _Body(self.form)
        outputs = _BODIES[self.kind](body, self)
        attributes = ["d"] if self.takes_shape else []
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, self.name, self.inputs, outputs, body.nodes, imports, attributes)


class _Body:
    """Nodes of a function with generated names, where a format writes those that unpack it.

    flat: the shape in which indices are joined.
    """

    def __init__(self, form: Format) -> None:
        self.flat = [-1]
        self.bits = form.bits
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = f"_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, value: object, dtype: type) -> str:
        return self.add("Constant", [], value=numpy_helper.from_array(np.array(value, dtype)))

    def stored(self) -> str:
        """Indices from the planes, flat and padded; without planes what is stored."""
        if not planes_of(self.bits):
            return self.plane("p")
        total, shift = "", self.bits
        flat = self.constant(self.flat, np.int64)
        for width in planes_of(self.bits):
            shift -= width
            offsets = self.constant(np.arange(0, 8, width).reshape(-1, 1), np.uint8)
            part = self.add("BitShift", [self.plane(f"p{width}"), offsets], direction="RIGHT")
            part = self.add("BitwiseAnd", [part, self.constant(2**width - 1, np.uint8)])
            part = self.add("Reshape", [part, flat])
            if shift:
                part = self.add("BitShift", [part, self.constant(shift, np.uint8)], direction="LEFT")
            total = self.add("BitwiseOr", [total, part]) if total else part
        return total

    def shaped(self, flat: str) -> str:
        """Cut the padding off and give the weight's shape."""
        shape = self._shape()
        size = self.add("ReduceProd", [shape], keepdims=1)
        cut = self.add("Slice", [flat, self.constant([0], np.int64), size])
        return self.add("Reshape", [cut, shape])

    def joined(self, groups: str) -> str:
        return self.add("Reshape", [groups, self.constant(self.flat, np.int64)])

    def table(self) -> str:
        return "v"

    def plane(self, name: str) -> str:
        """What is read of a formal input that holds indices."""
        return name

    def _shape(self) -> str:
        """The caller's attribute d: the weight's dimensions."""
        output = self.add("Constant", [])
        attribute = onnx.AttributeProto(name="value_ints", ref_attr_name="d", type=onnx.AttributeProto.INTS)
        self.nodes[-1].attribute.append(attribute)
        return output


class _Rows(_Body):
    """The same of the rows at places `i`, which each have whole bytes of every plane."""

    def __init__(self, function: UnpackFunction) -> None:
        super().__init__(function.form)
        self.flat = [0] * function.rank + [-1]

    def plane(self, name: str) -> str:
        return self.add("Gather", [name, "i"])

    def shaped(self, flat: str) -> str:
        return flat


def _unpacked(body: _Body, function: UnpackFunction, to: ir.DataType) -> str:
    """The codes, or values that have no scale, as the layer reads them."""
    found = function.form.unpack(body, to)
    return body.add("Transpose", [found], perm=[1, 0]) if function.turned else found


def _dequantized(body: _Body, function: UnpackFunction) -> tuple[str, str]:
    codes = _unpacked(body, function, ir.DataType.INT8)
    scale = body.add("Cast", ["s"], to=TensorProto.FLOAT)
    # Zeros of the scale's length: Gemm becomes an integer kernel only where the zero point is explicit.
    zero = body.add("Cast", [body.add("Sub", [scale, scale])], to=TensorProto.INT8)
    return body.add("DequantizeLinear", [codes, scale, zero], axis=function.axis), scale


def _layer(body: _Body, function: UnpackFunction) -> list[str]:
    weight, scale = _dequantized(body, function)
    bias = body.add("Mul", [body.add("Cast", ["b"], to=TensorProto.INT32), "k"])
    products = body.add("Mul", ["x", scale])
    return [weight, body.add("DequantizeLinear", [bias, products], axis=0)]


def _weight(body: _Body, function: UnpackFunction) -> list[str]:
    return [_dequantized(body, function)[0]]


def _float(body: _Body, function: UnpackFunction) -> list[str]:
    codes = _unpacked(body, function, ir.DataType.FLOAT)
    scale = body.add("Cast", ["s"], to=TensorProto.FLOAT)
    if function.rank > 1:
        shape = [1] * function.rank
        shape[function.axis] = -1
        scale = body.add("Reshape", [scale, body.constant(shape, np.int64)])
    return [body.add("Mul", [codes, scale])]


def _values(body: _Body, function: UnpackFunction) -> list[str]:
    return [_unpacked(body, function, ir.DataType.FLOAT)]


def _rows(body: _Body, function: UnpackFunction) -> list[str]:
    codes = function.form.unpack(body, ir.DataType.FLOAT)
    scale = body.add("Cast", [body.add("Gather", ["s", "i"])], to=TensorProto.FLOAT)
    return [body.add("Mul", [codes, body.add("Unsqueeze", [scale, body.constant([-1], np.int64)])])]


_BODIES = {
    UnpackKind.LAYER: _layer,
    UnpackKind.WEIGHT: _weight,
    UnpackKind.FLOAT: _float,
    UnpackKind.VALUES: _values,
    UnpackKind.ROWS: _rows,
}
