"""Model-local functions that rebuild weights at load: planes -> codes -> what the layer reads.

ONNX Runtime inlines them and folds everything up to the int8 codes (or up to float, for a layer that computes in
float) when it loads the file, so they cost nothing per inference. Only operators that fold in every version since
1.18 are used: subtraction in int32, no 8-bit arithmetic beyond shifts and bit-wise logic, no int4 types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ptqc import grids
from ptqc.codegen.onnxruntime.planes import planes_of
from ptqc.formats import Family, Format

DOMAIN = "p"


class Kind(StrEnum):
    """What a function gives: both dequantized constants of an integer layer, its weight alone, or a float constant."""

    # Those of codebooks take its levels between planes and scale.
    LAYER = "layer"  # planes, scale, bias, s_x, 2^k -> DequantizeLinear of weight and of bias
    WEIGHT = "weight"  # planes, scale -> DequantizeLinear of weight
    FLOAT = "float"  # planes, scale -> scale · codes, folded to a float constant
    PALETTE = "palette"  # planes, values -> values[codes]


@dataclass(frozen=True, order=True)
class Function:
    """Identity of a function. axis, rank: of the weight's scales (0, 0 where they do not matter)."""

    kind: Kind
    form: Format
    axis: int = 0
    rank: int = 0

    @property
    def name(self) -> str:
        """Short name, unique within a file."""
        kind = {Kind.LAYER: "L", Kind.WEIGHT: "W", Kind.FLOAT: "F", Kind.PALETTE: "P"}[self.kind]
        kind += {Family.CODEBOOK: "c", Family.PAIRS: "d"}.get(self.form.family, "")
        place = f"{self.axis}{self.rank}" if self.axis or self.rank else ""
        return f"{kind}{self.form.bits}{place}"

    @property
    def inputs(self) -> list[str]:
        """Formal inputs."""
        planes = [f"p{width}" for width in planes_of(self.form.bits)] or ["p"]
        levels = ["v"] if self.form.is_codebook or self.form.family == Family.PALETTE else []
        extra = {Kind.LAYER: ["s", "b", "x", "k"], Kind.PALETTE: []}
        return planes + levels + extra.get(self.kind, ["s"])

    @property
    def has_shape(self) -> bool:
        """Whether the codes have to be given the weight's shape; those of 8 bits are stored in it."""
        return bool(planes_of(self.form.bits)) or self.form.group > 1

    def to_proto(self, opset: int) -> onnx.FunctionProto:
        """The function's body."""
        body = _Body()
        codes = _codes(body, self.form)
        outputs = {Kind.LAYER: _layer, Kind.WEIGHT: _weight, Kind.FLOAT: _float, Kind.PALETTE: _palette}[self.kind](
            body, codes, self
        )
        attributes = ["d"] if self.has_shape else []
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, self.name, self.inputs, outputs, body.nodes, imports, attributes)


class _Body:
    """Nodes of a function with generated names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = f"_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, value: object, dtype: type) -> str:
        return self.add("Constant", [], value=numpy_helper.from_array(np.array(value, dtype)))

    def shape(self) -> str:
        """The caller's attribute d: the weight's dimensions."""
        output = self.add("Constant", [])
        attribute = onnx.AttributeProto(name="value_ints", ref_attr_name="d", type=onnx.AttributeProto.INTS)
        self.nodes[-1].attribute.append(attribute)
        return output


def _codes(body: _Body, form: Format) -> str:
    """What the weight's shape holds: uint8 grid indices from the planes, codes of pairs, 8-bit codes as they are."""
    if form.group > 1:
        found = _looked_up(body, _joined(body, form) if planes_of(form.bits) else "p")
        return _shaped(body, body.add("Reshape", [found, body.constant([-1], np.int64)]))
    return _shaped(body, _joined(body, form)) if planes_of(form.bits) else "p"


def _joined(body: _Body, form: Format) -> str:
    """Indices from the planes, flat and padded."""
    total, shift = "", form.bits
    flat = body.constant([-1], np.int64)
    for width in planes_of(form.bits):
        shift -= width
        offsets = body.constant(np.arange(0, 8, width).reshape(-1, 1), np.uint8)
        part = body.add("BitShift", [f"p{width}", offsets], direction="RIGHT")
        part = body.add("BitwiseAnd", [part, body.constant(2**width - 1, np.uint8)])
        part = body.add("Reshape", [part, flat])
        if shift:
            part = body.add("BitShift", [part, body.constant(shift, np.uint8)], direction="LEFT")
        total = body.add("BitwiseOr", [total, part]) if total else part
    return total


def _shaped(body: _Body, flat: str) -> str:
    """Cut the padding off and give the weight's shape."""
    shape = body.shape()
    size = body.add("ReduceProd", [shape], keepdims=1)
    cut = body.add("Slice", [flat, body.constant([0], np.int64), size])
    return body.add("Reshape", [cut, shape])


def _signed(body: _Body, index: str, form: Format) -> str:
    """Codes of indices: int32 on a uniform grid (see ptqc.grids), int8 from a codebook."""
    if form.is_codebook:
        return index if form.group > 1 else _looked_up(body, index)
    if not planes_of(form.bits):
        return index
    codes = body.add("Cast", [index], to=TensorProto.INT32)
    if grids.is_symmetric(form):
        codes = body.add("Mul", [codes, body.constant(2, np.int32)])
    lowest = -int(grids.code_of(np.zeros((), np.int64), form))
    return body.add("Sub", [codes, body.constant(lowest, np.int32)])


def _dequantized(body: _Body, index: str, function: Function) -> tuple[str, str]:
    codes = _signed(body, index, function.form)
    if planes_of(function.form.bits) and function.form.family == Family.INTEGER:
        codes = body.add("Cast", [codes], to=TensorProto.INT8)
    scale = body.add("Cast", ["s"], to=TensorProto.FLOAT)
    # Zeros of the scale's length: Gemm becomes an integer kernel only where the zero point is explicit.
    zero = body.add("Cast", [body.add("Sub", [scale, scale])], to=TensorProto.INT8)
    return body.add("DequantizeLinear", [codes, scale, zero], axis=function.axis), scale


def _layer(body: _Body, index: str, function: Function) -> list[str]:
    weight, scale = _dequantized(body, index, function)
    bias = body.add("Mul", [body.add("Cast", ["b"], to=TensorProto.INT32), "k"])
    products = body.add("Mul", ["x", scale])
    return [weight, body.add("DequantizeLinear", [bias, products], axis=0)]


def _weight(body: _Body, index: str, function: Function) -> list[str]:
    return [_dequantized(body, index, function)[0]]


def _float(body: _Body, index: str, function: Function) -> list[str]:
    codes = body.add("Cast", [_signed(body, index, function.form)], to=TensorProto.FLOAT)
    scale = body.add("Cast", ["s"], to=TensorProto.FLOAT)
    if function.rank > 1:
        shape = [1] * function.rank
        shape[function.axis] = -1
        scale = body.add("Reshape", [scale, body.constant(shape, np.int64)])
    return [body.add("Mul", [codes, scale])]


def _palette(body: _Body, index: str, function: Function) -> list[str]:
    assert function.form.family == Family.PALETTE
    return [_looked_up(body, index)]


def _looked_up(body: _Body, index: str) -> str:
    return body.add("Gather", ["v", body.add("Cast", [index], to=TensorProto.INT32)])
