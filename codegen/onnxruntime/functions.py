"""Model-local functions that rebuild weights at load: planes -> codes -> what the layer reads.

ONNX Runtime inlines them and folds everything up to the int8 codes (or up to float, for a layer that computes in
float) when it loads the file, so they cost nothing per inference; only rows of a table are unpacked in each run, those
that are asked for. Only operators that fold in every version since
1.18 are used: subtraction in int32, no 8-bit arithmetic beyond shifts and bit-wise logic, no int4 types.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptqc.codegen.onnxruntime.bodies import BitsBody, Body, BodyNodes, CloseBody, RowsBody
from ptqc.formats import Format
from ptqc.formats.base import LOWEST_OPSET

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
        form = "" if self.form is None else f"{self.form.mark}{self.form.bits}"
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
        attributes = ["d"] if self.takes_shape else []
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, self.name, self.inputs, outputs, body.nodes, imports, attributes)

    def _body(self) -> BodyNodes:
        if self.form is None:
            return BitsBody(is_padded=self.padded)
        if self.kind == UnpackKind.ROWS:
            return RowsBody(self.form, self.rank)
        return CloseBody(self.form) if self.close else Body(self.form)


def _unpacked(body: BodyNodes, function: UnpackFunction, to: ir.DataType) -> str:
    """The codes, or values that have no scale, as the layer reads them."""
    found = body.codes(to)
    return body.add("Transpose", [found], perm=function.turned) if function.turned else found


def _scale(body: BodyNodes, function: UnpackFunction, stored: str = "s") -> str:
    """Scales from what is stored of them."""
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
