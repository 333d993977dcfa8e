"""Model-local functions that rebuild weights at load: planes -> codes -> what the layer reads.

ONNX Runtime inlines them and folds everything up to the int8 codes (or up to float, for a layer that computes in
float) when it loads the file, so they cost nothing per inference; only rows of a table are unpacked in each run, those
that are asked for. Only operators that fold in every version since
1.18 are used: subtraction in int32, no 8-bit arithmetic beyond shifts and bit-wise logic, no int4 types.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ptqc.formats import Format
from ptqc.formats.base import LOWEST_OPSET, Stated
from ptqc.formats.planes import halves, planes_of
from ptqc.ir.layers import pickers, stays_packed
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import initial, producer, rank, required
from ptqc.ir.quantized_weight import QuantizedWeight

# Nodes of the functions that unpack weights, where a format writes what it needs.
#
# Planes that are far apart are shifted, masked and joined: few nodes, but each makes as many bytes as there are
# weights, and ONNX Runtime keeps what all nodes of all weights make until it has folded the last one. Of close planes
# each byte is an index into a table of the codes that its bits stand for, which is one node for each plane: a weight
# of 7 bits takes 10 bytes on the way instead of 24, one of 4 bits 4 instead of 14. The tables cost bytes of the file.
#
# Single bits are few nodes, and the same for all formats: index = Σ 2^i · bit i is a product of integers, and what it
# stands for is in a list of levels that the caller gives. A weight of 7 bits takes 27 bytes on the way, one of 4 bits
# 18.

BYTES = 256  # values of one
BITS = 8
MASKS = 1 << np.arange(BITS)


class BodyNodes(ABC):
    """Nodes with generated names, that unpack a weight. is_padded: whether more is stored than is needed."""

    def __init__(self, *, is_padded: bool = False) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.is_padded = is_padded

    @abstractmethod
    def codes(self, to: ir.DataType) -> str:
        """Codes of the weight's shape, or values that have no scale."""

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The output of a new node."""
        output, stated = f"_{len(self.nodes)}", {n: a for n, a in attributes.items() if isinstance(a, Stated)}
        plain = {name: value for name, value in attributes.items() if name not in stated}
        node = helper.make_node(op_type, inputs, [output], **plain)
        kind = onnx.AttributeProto.INTS
        node.attribute.extend(onnx.AttributeProto(name=n, ref_attr_name=a.name, type=kind) for n, a in stated.items())
        self.nodes.append(node)
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
        return self.add("Constant", [], value_ints=Stated("d"))

    def single_bits(self, name: str) -> str:
        """The single bits (…, 8, m) of an array of bytes (…, m), lowest first."""
        return self.add("Sign", [self.add("BitwiseAnd", [name, self.constant(MASKS[:, None], np.uint8)])])

    def fitted(self, values: str, shape: str) -> str:
        """Values of a shape, without those that are too many."""
        if self.is_padded:
            values = self.cut(self.add("Reshape", [values, self.constant([-1], np.int64)]), shape)
        return self.add("Reshape", [values, shape])

    def cut(self, flat: str, shape: str) -> str:
        """Flat and padded values without the padding."""
        size = self.add("ReduceProd", [shape], keepdims=1)
        return self.add("Slice", [flat, self.constant([0], np.int64), size])


class BitsBody(BodyNodes):
    """Nodes that unpack single bits of any format."""

    def codes(self, to: ir.DataType) -> str:
        """The levels v that indices stand for, whose bits p have the weights w."""
        bits = self.add("Flatten", [self.single_bits("p")])
        codes = self.add("Gather", ["v", self.add("MatMulInteger", ["w", bits])])
        codes = self.fitted(codes, self.stated_shape())
        return codes if to == ir.DataType.INT8 else self.add("Cast", [codes], to=to)


class Body(BodyNodes):
    """Nodes that unpack planes which are far apart. shape: in which their indices are joined."""

    shape: Sequence[int] = (-1,)

    def __init__(self, form: Format, *, is_padded: bool = False) -> None:
        super().__init__(is_padded=is_padded)
        self.form = form

    def codes(self, to: ir.DataType) -> str:
        """As the format unpacks what it stores."""
        return self.form.unpack(self, to)

    def array(self, name: str) -> str:
        """A formal input."""
        return name

    def bits(self, name: str, shape: Stated) -> str:
        """The single bits of an array, without those that fill the last byte."""
        return self.fitted(self.single_bits(name), self.add("Constant", [], value_ints=shape))

    def entries(self, name: str, index: str) -> str:
        """The numbers at these indices, one after the other: GatherElements takes them faster than Gather does."""
        return self.add("GatherElements", [name, self.add("Flatten", [index], axis=0)], axis=1)

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

    def reshaped(self, values: str) -> str:
        """The weight's shape."""
        return self.add("Reshape", [values, self.stated_shape()])

    def trimmed(self, values: str) -> str:
        """The weight's shape, without values that are too many."""
        return self.fitted(values, self.stated_shape())

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
        return self.reshaped(flat)

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

    def bits(self, name: str, shape: Stated) -> str:  # noqa: ARG002
        """Those of these rows as columns, on which ConvInteger is 30 times as fast as on many matrices; and one of 0.

        It takes no matrix without columns, and there may be no places.
        """
        columns = self.add("Transpose", [self.add("Flatten", [self.plane(name)], axis=-2)])
        columns = self.add("Pad", [columns, self.constant([0, 0, 0, 1], np.int64)])
        bits = self.add("BitwiseAnd", [columns, self.constant(MASKS[:, None, None], np.uint8)])
        bits = self.add("Flatten", [self.add("Sign", [bits])], axis=-1)
        return self.add("Unsqueeze", [bits, self.constant([0, 1], np.int64)])

    def entries(self, name: str, index: str) -> str:
        """The numbers at these indices, whose last axis stays: one of places."""
        return self.add("Gather", [name, index], axis=1)

    def reshaped(self, values: str) -> str:
        """A row for each place."""
        columns = self.add("Flatten", [values], axis=-1)
        rows = self.add("Transpose", [self.add("Pad", [columns, self.constant([0, 0, 0, -1], np.int64)])])
        shape = self.add("Concat", [self.add("Shape", ["i"]), self.add("Shape", [rows], start=1)], axis=0)
        return self.add("Reshape", [rows, shape], allowzero=1)

    def shaped(self, flat: str) -> str:
        """A row for each place."""
        return self.add("Reshape", [flat, self.constant(self.shape, np.int64)])


DOMAIN = "p"


class UnpackKind(StrEnum):
    """What a function gives: both dequantized constants of an integer layer, its weight alone, or a float constant."""

    # Each takes what the format stores.
    LAYER = "layer"  # and bias, s_x, unit of the bias -> DequantizeLinear of weight and of bias
    WEIGHT = "weight"  # -> DequantizeLinear of weight
    FLOAT = "float"  # -> scale · codes, folded to a float constant
    VALUES = "values"  # -> the values themselves, where they have no scale
    ROWS = "rows"  # and i -> rows i of scale · codes, computed in each run from what is stored


FURTHER_INPUTS = {UnpackKind.LAYER: ("b", "x", "k"), UnpackKind.ROWS: ("i",)}
UNIT_OF_BIAS = "k"
# How the names of functions begin.
LETTERS = {
    UnpackKind.LAYER: "L",
    UnpackKind.WEIGHT: "W",
    UnpackKind.FLOAT: "F",
    UnpackKind.VALUES: "P",
    UnpackKind.ROWS: "G",
}


# What one function for all formats takes: single bits, what each of them weighs in an index, levels and scales.
BITS_INPUTS = ("p", "w", "v", "s")


@dataclass(frozen=True)
class UnpackFunction:
    """Identity of a function.

    form: None where single bits are stored, which are unpacked alike in all formats. axis, rank: of the weight's scales
    (0, 0 where they do not matter). Where rows are picked, rank: of their places. turned: which axes of what is
    stored are the weight's, where they are in another order. close: its planes are close. padded: there are more single
    bits than are needed. unrooted: scales are stored as they are, not as roots of multiples of a unit. whole: so are
    the codes of a bias.
    """

    kind: UnpackKind
    form: Format | None
    axis: int = 0
    rank: int = 0
    turned: tuple[int, ...] = ()
    close: bool = False
    padded: bool = False
    unrooted: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """Short name, unique within a file."""
        form = "" if self.form is None else f"{self.form.mark}{'' if self.form.parameters else self.form.bits}"
        place = f"{self.axis}{self.rank}" if self.axis or self.rank else ""
        turn = f"t{len(self.turned)}" if len(self.turned) > 2 else "t"  # of matrices there is one way
        marks = ((turn, self.turned), ("n", self.close), ("m", self.padded), ("r", self.unrooted), ("w", self.whole))
        return f"{LETTERS[self.kind]}{form}{place}{''.join(mark for mark, is_so in marks if is_so)}"

    @property
    def inputs(self) -> list[str]:
        """Formal inputs."""
        stored = BITS_INPUTS if self.form is None else self.form.inputs
        unit = ["u"] if "s" in stored and not self.unrooted else []
        further = FURTHER_INPUTS.get(self.kind, ())
        return [*stored, *unit, *(name for name in further if not (self.whole and name == UNIT_OF_BIAS))]

    @property
    def opset(self) -> int:
        """The lowest in which it can be written."""
        return LOWEST_OPSET if self.form is None else self.form.opset

    @property
    def takes_shape(self) -> bool:
        """Whether calls state the weight's shape."""
        return (self.form is None or self.form.is_packed) and self.kind != UnpackKind.ROWS

    def to_proto(self, opset: int) -> onnx.FunctionProto:
        """The function's body."""
        body = self._body()
        outputs = _OUTPUTS[self.kind](body, self)
        attributes = [*(["d"] if self.takes_shape else []), *(self.form.parameters if self.form is not None else ())]
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, self.name, self.inputs, outputs, body.nodes, imports, attributes)

    def _body(self) -> BodyNodes:
        if self.form is None:
            return BitsBody(is_padded=self.padded)
        if self.kind == UnpackKind.ROWS:
            return RowsBody(self.form, self.rank)
        return CloseBody(self.form) if self.close else Body(self.form, is_padded=self.padded)


def _unpacked(body: BodyNodes, function: UnpackFunction, to: ir.DataType) -> str:
    """The codes, or values that have no scale, as the layer reads them."""
    result = body.codes(to)
    return body.add("Transpose", [result], perm=function.turned) if function.turned else result


def _scale(body: BodyNodes, function: UnpackFunction, stored: str = "s") -> str:
    scale = body.add("Cast", [stored], to=TensorProto.FLOAT)
    return scale if function.unrooted else body.add("Mul", [body.add("Mul", [scale, scale]), "u"])


def _dequantized(body: BodyNodes, function: UnpackFunction) -> tuple[str, str]:
    codes, scale = _unpacked(body, function, ir.DataType.INT8), _scale(body, function)
    # Zeros of the scale's length: Gemm becomes an integer kernel only where the zero point is explicit.
    zero = body.add("Cast", [body.add("Sub", [scale, scale])], to=TensorProto.INT8)
    return body.add("DequantizeLinear", [codes, scale, zero], axis=function.axis), scale


def _layer(body: BodyNodes, function: UnpackFunction) -> list[str]:
    weight, scale = _dequantized(body, function)
    products = body.add("Mul", ["x", scale])
    bias = "b"
    if not function.whole:
        real = body.add("Mul", [body.add("Cast", ["b"], to=TensorProto.FLOAT), UNIT_OF_BIAS])
        bias = body.add("Cast", [body.add("Round", [body.add("Div", [real, products])])], to=TensorProto.INT32)
    return [weight, body.add("DequantizeLinear", [bias, products], axis=0)]


def _weight(body: BodyNodes, function: UnpackFunction) -> list[str]:
    return [_dequantized(body, function)[0]]


def _float(body: BodyNodes, function: UnpackFunction) -> list[str]:
    codes, scale = _unpacked(body, function, ir.DataType.FLOAT), _scale(body, function)
    if function.rank > 1:
        shape = [1] * function.rank
        shape[function.axis] = -1
        scale = body.add("Reshape", [scale, body.constant(shape, np.int64)])
    return [body.add("Mul", [codes, scale])]


def _values(body: BodyNodes, function: UnpackFunction) -> list[str]:
    return [_unpacked(body, function, ir.DataType.FLOAT)]


def _rows(body: BodyNodes, function: UnpackFunction) -> list[str]:
    codes = body.codes(ir.DataType.FLOAT)
    scale = _scale(body, function, body.add("Gather", ["s", "i"]))
    return [body.add("Mul", [codes, body.add("Unsqueeze", [scale, body.constant([-1], np.int64)])])]


_OUTPUTS = {
    UnpackKind.LAYER: _layer,
    UnpackKind.WEIGHT: _weight,
    UnpackKind.FLOAT: _float,
    UnpackKind.VALUES: _values,
    UnpackKind.ROWS: _rows,
}


# Rows of tables that stay packed in memory: a Gather of what is stored, unpacked in each run.
#
# A Gather of rows of a weight that only such nodes read becomes a call with the bytes of the table and the places.


@dataclass(frozen=True)
class Pick:
    """A node that picks rows of a table. rows, places, table: names of its output and inputs; solution: of the table.

    codes: name of the initializer with the table's. rank, dtype: of the places.
    """

    rows: str
    places: str
    table: str
    codes: str
    solution: QuantizedWeight
    rank: int
    dtype: np.dtype[Any]


def picks(lowered: Lowered) -> Iterator[Pick]:
    """All of a lowered graph whose tables stay packed."""
    for value in (value for node in lowered.model.graph for value in node.outputs if value.name in lowered.weights):
        maker = producer(value, "DequantizeLinear")
        if maker is None or not pickers(value):
            continue
        codes, scale = (str(source.name) for source in maker.inputs[:2] if source is not None)
        form = lowered.formats.get(codes)  # none where the table is stored as it is, in FP8 for example
        if form is None:
            continue
        solution = QuantizedWeight(form, initial(lowered.model, codes), initial(lowered.model, scale), 0)
        if not stays_packed(form, solution.codes.shape):
            continue
        for node in pickers(value):
            yield _pick(node, str(value.name), codes, solution)


def _pick(node: ir.Node, table: str, codes: str, solution: QuantizedWeight) -> Pick:
    places = required(node.inputs[1])
    dtype = np.dtype(np.int64) if places.dtype is None else places.dtype.numpy()
    return Pick(str(node.outputs[0].name), str(places.name), table, codes, solution, rank(places) or 0, dtype)
