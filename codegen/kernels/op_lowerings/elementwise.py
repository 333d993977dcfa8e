"""Element-wise operators of any number of operands and any types."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import typed
from ptqc.codegen.kernels.families.functions import BINARY, UNARY
from ptqc.codegen.kernels.families.pointwise import Operand
from ptqc.codegen.kernels.op_lowerings import real
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, text
from ptqc.ir.operators import clip_bounds

REAL = "float32"
Make = Callable[[ir.Node, str], typed.Function]  # of the type of the output


def _same(function: typed.Function) -> Make:
    return lambda _node, _dtype: function


def _mean(_node: ir.Node, dtype: str) -> typed.Function:
    return lambda x, _types: sum(x[1:], x[0]) / typed.number(len(x), dtype)


def _shift(node: ir.Node, _dtype: str) -> typed.Function:
    is_left = text(node, "direction", "LEFT") == "LEFT"
    return lambda x, _types: T.shift_left(*x) if is_left else T.shift_right(*x)


def _remainder(node: ir.Node, _dtype: str) -> typed.Function:
    return partial(typed.remainder, of_dividend=bool(integer(node, "fmod", 0)))


def _is_infinite(node: ir.Node, _dtype: str) -> typed.Function:
    below, above = (bool(integer(node, f"detect_{which}", 1)) for which in ("negative", "positive"))
    return partial(typed.is_infinite, below=below, above=above)


def _cast(_node: ir.Node, dtype: str) -> typed.Function:
    return lambda x, types: typed.converted(x[0], types[0], dtype)


def _power(_node: ir.Node, dtype: str) -> typed.Function:
    def power(x: Sequence[Any], types: Sequence[str]) -> Any:
        if dtype not in typed.ENDINGS:
            raise UnsupportedOp(f"of {dtype} there are no powers")
        return typed.named("pow")([x[0], typed.converted(x[1], types[1], dtype)], types)

    return power


TYPED: Mapping[str, Make] = {
    **{op_type: _same(typed.named(name)) for op_type, name in typed.NAMED.items()},
    "Abs": _same(typed.absolute),
    "Add": _same(typed.folded(lambda a, b: a + b)),
    "And": _same(typed.folded(lambda a, b: T.And(a, b))),
    "BitShift": _shift,
    "BitwiseAnd": _same(typed.folded(lambda a, b: T.bitwise_and(a, b))),
    "BitwiseNot": _same(lambda x, _types: T.bitwise_not(x[0])),
    "BitwiseOr": _same(typed.folded(lambda a, b: T.bitwise_or(a, b))),
    "BitwiseXor": _same(typed.folded(lambda a, b: T.bitwise_xor(a, b))),
    "Cast": _cast,
    "CastLike": _cast,
    "Div": _same(typed.quotient),
    "Equal": _same(typed.equals),
    "Greater": _same(lambda x, _types: x[0] > x[1]),
    "GreaterOrEqual": _same(lambda x, _types: x[0] >= x[1]),
    "Identity": _same(lambda x, _types: x[0]),
    "IsInf": _is_infinite,
    "IsNaN": _same(typed.is_nan),
    "Less": _same(lambda x, _types: x[0] < x[1]),
    "LessOrEqual": _same(lambda x, _types: x[0] <= x[1]),
    "Max": _same(typed.folded(lambda a, b: T.max(a, b))),
    "Mean": _mean,
    "Min": _same(typed.folded(lambda a, b: T.min(a, b))),
    "Mod": _remainder,
    "Mul": _same(typed.folded(lambda a, b: a * b)),
    "Neg": _same(lambda x, types: typed.number(0, types[0]) - x[0]),
    "Not": _same(lambda x, _types: T.Not(x[0])),
    "Or": _same(typed.folded(lambda a, b: T.Or(a, b))),
    "Pow": _power,
    "Relu": _same(lambda x, types: T.max(x[0], typed.number(0, types[0]))),
    "Sign": _same(typed.sign),
    "Sub": _same(typed.folded(lambda a, b: a - b)),
    "Sum": _same(typed.folded(lambda a, b: a + b)),
    "Where": _same(lambda x, _types: T.Select(*x)),
    "Xor": _same(typed.differs),
}


def apply(builder: ProgramBuilder, node: ir.Node) -> None:
    """An element-wise operator: by vectors where it is one or two real tensors, else element by element."""
    values = list(node.inputs[:1] if node.op_type == "CastLike" else node.inputs)
    is_real = all(builder.dtype(value) == REAL for value in (*values, node.outputs[0]))
    if is_real and node.op_type in UNARY:
        real.unary(builder, node)
    elif is_real and node.op_type in BINARY and len(values) == 2:
        real.binary(builder, node)
    elif is_real and node.op_type == "Pow" and real.form_of_power(builder, node) is not None:
        real.power(builder, node)
    elif node.op_type in TYPED:
        by_element(builder, node, values, TYPED[node.op_type](node, builder.dtype(node.outputs[0])))
    else:
        raise UnsupportedOp(f"of {builder.dtype(values[0])} it has no kernel")


def clip(builder: ProgramBuilder, node: ir.Node) -> None:
    """Clip; bounds may vary, and either may be absent."""
    if builder.dtype(node.inputs[0]) == REAL and clip_bounds(node) is not None:
        real.unary(builder, node)
        return
    bounds = [(make, value) for place, make in ((1, T.max), (2, T.min)) if (value := input_of(node, place)) is not None]

    def limited(x: Sequence[Any], _types: Sequence[str]) -> Any:
        result = x[0]
        for (limit, _), bound in zip(bounds, x[1:], strict=True):
            result = limit(result, bound)
        return result

    by_element(builder, node, [node.inputs[0], *(value for _, value in bounds)], limited)


def by_element(
    builder: ProgramBuilder, node: ir.Node, values: Sequence[ir.Value | None], function: typed.Function
) -> None:
    """Append a function of elements of these values, which repeat along axes of size 1 and may lack axes in front."""
    output = node.outputs[0]
    varying = [value for value in values if not builder.is_constant(value)]
    outer = real.outer(builder, varying, output)
    names, layouts = real.operands(builder, varying, output, outer)
    layout = Layout(builder.sizes(output)[outer:], builder.dtype(output), row_major=layouts[0].row_major)
    left = iter(layouts)
    operands: list[Operand] = [
        real.array(builder.number(value), len(layout.shape), outer) if builder.is_constant(value) else next(left)
        for value in values
    ]
    kernel = typed.apply(node.op_type, function, operands, layout)
    builder.add_as(kernel, names, output, layout)
