"""Operators without a kernel are replaced by others: by ONNX's own definition of them, or by one that is given here."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
import onnx.defs
import onnx.inliner
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir

from ptqc.codegen.program import attention, grouped, recurrent, rotary
from ptqc.codegen.program.folding import SIZES
from ptqc.ir.external import whole_message
from ptqc.ir.nodes import constant, output_name

# The domain of nodes that a definition is put in place of, while that goes on.
OURS = "ptqc.definitions"
DEFINITIONS = {
    "BatchNormalization": """<epsilon: float = 1e-5> (x, scale, bias, mean, variance) => (y) {
        rows = Constant <value_ints = [0, 0, -1]> () row = Constant <value_ints = [1, -1, 1]> ()
        least = Constant <value_float: float = @epsilon> () raised = Add(variance, least) deviation = Sqrt(raised)
        factor = Div(scale, deviation) moved = Mul(mean, factor) rest = Sub(bias, moved)
        factors = Reshape(factor, row) rests = Reshape(rest, row)
        flat = Reshape(x, rows) scaled = Mul(flat, factors) total = Add(scaled, rests)
        sizes = Shape(x) y = Reshape(total, sizes)
    }""",
    "InstanceNormalization": """<epsilon: float = 1e-5> (x, scale, bias) => (y) {
        rows = Constant <value_ints = [0, 0, -1]> () row = Constant <value_ints = [1, -1, 1]> ()
        one = Constant <value_floats = [1.0]> () factors = Reshape(scale, row) rests = Reshape(bias, row)
        flat = Reshape(x, rows) normal = LayerNormalization <axis = 2, epsilon: float = @epsilon> (flat, one)
        scaled = Mul(normal, factors) total = Add(scaled, rests) sizes = Shape(x) y = Reshape(total, sizes)
    }""",
    "Gemm": """<alpha: float = 1.0, beta: float = 1.0> (a, b, c) => (y) {
        first = Constant <value_float: float = @alpha> () second = Constant <value_float: float = @beta> ()
        product = MatMul(a, b) scaled = Mul(product, first) rest = Mul(c, second) y = Add(scaled, rest)
    }""",
    "LayerNormalization": """<axis: int = -1, epsilon: float = 1e-5> (x, scale, bias) => (y, mean, inverse) {
        last = Constant <value_ints = [1]> () least = Constant <value_float: float = @epsilon> ()
        flat = Flatten <axis: int = @axis> (x) about = ReduceMean <keepdims = 1> (flat, last)
        rough = Sub(flat, about) beside = ReduceMean <keepdims = 1> (rough, last) centred = Sub(rough, beside)
        middle = Add(about, beside) square = Mul(centred, centred) variance = ReduceMean <keepdims = 1> (square, last)
        raised = Add(variance, least) deviation = Sqrt(raised) ratio = Div(centred, deviation)
        sizes = Shape(x) normal = Reshape(ratio, sizes) scaled = Mul(normal, scale) y = Add(scaled, bias)
        outer = Shape <start = 0, end: int = @axis> (x) inner = Shape <start: int = @axis> (x)
        ones = Div(inner, inner) kept = Concat <axis = 0> (outer, ones)
        mean = Reshape(middle, kept) factor = Reciprocal(deviation) inverse = Reshape(factor, kept)
    }""",
    "GlobalMaxPool": """(x) => (y) {
        rows = Constant <value_ints = [0, 0, -1]> () last = Constant <value_ints = [2]> () flat = Reshape(x, rows)
        largest = ReduceMax <keepdims = 1> (flat, last) sizes = Shape <start = 0, end = 2> (x)
        rest = Shape <start = 2> (x) ones = Div(rest, rest) wanted = Concat <axis = 0> (sizes, ones)
        y = Reshape(largest, wanted)
    }""",
}
# Everything else that ONNX defines by other operators has kernels, or a definition with a loop.
BY_ONNX = frozenset(
    (
        "AffineGrid",
        "Attention",
        "Celu",
        "CenterCropPad",
        "GroupNormalization",
        "MeanVarianceNormalization",
        "NegativeLogLikelihoodLoss",
        "RMSNormalization",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "RotaryEmbedding",
        "Selu",
        "Shrink",
        "SoftmaxCrossEntropyLoss",
        "SpaceToDepth",
        "Swish",
        "ThresholdedRelu",
    )
)


def _is_plain_gemm_of_two(node: ir.Node) -> bool:
    is_turned = any(node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    return not is_turned and len(node.inputs) > 2 and not is_static(node.inputs[1])


def _is_more_than_rows(node: ir.Node) -> bool:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    return not is_static(node.inputs[1]) or any(value.name for value in node.outputs[1:])


# Which nodes get a function of their own, and what writes it: what the function is depends on more than attributes.
WRITTEN: tuple[tuple[Callable[[ir.Node], bool], Callable[[ir.Node], str]], ...] = (
    (attention.is_attention, attention.definition),
    (grouped.is_grouped, grouped.definition),
    (rotary.is_whole, rotary.definition),
)
# Operators that have kernels, and which of their nodes are replaced nevertheless.
SOMETIMES: Mapping[str, Callable[[ir.Node], bool]] = {
    "Gemm": _is_plain_gemm_of_two,
    "LayerNormalization": _is_more_than_rows,
}


def expanded(model: ir.Model, *, unrolls: bool = False) -> ir.Model:
    """The model with definitions in the place of nodes without a kernel; the same one where there are none.

    unrolls: whether recurrent nodes have none.
    """
    chosen = [node for node in model.graph if _is_chosen(node) or (unrolls and recurrent.is_written_out(node))]
    if not chosen:
        return model
    try:
        return _inlined(model, chosen)
    except Exception:  # the operators then stay, and are named as what has no kernel
        return model


def is_static(value: ir.Value | None) -> bool:
    """Whether a value follows from constants and sizes alone."""
    if value is None or constant(value) is not None:
        return True
    maker = value.producer()
    return maker is not None and (maker.op_type in SIZES or all(map(is_static, maker.inputs)))


def _is_chosen(node: ir.Node) -> bool:
    if any(is_chosen(node) for is_chosen, _ in WRITTEN):
        return True
    known = node.op_type in BY_ONNX or node.op_type in DEFINITIONS
    return not node.domain and (SOMETIMES[node.op_type](node) if node.op_type in SOMETIMES else known)


def _written(node: ir.Node) -> str | None:
    if recurrent.is_recurrent(node):
        return recurrent.definition(node)
    return next((definition(node) for is_chosen, definition in WRITTEN if is_chosen(node)), None)


def _inlined(model: ir.Model, chosen: Sequence[ir.Node]) -> ir.Model:
    proto = whole_message(model)
    opset = next(entry.version for entry in proto.opset_import if not entry.domain)
    own = {output_name(node): _written(node) for node in chosen}
    nodes = [node for node in proto.graph.node if _first(node.output) in own]
    used = sorted({node.op_type for node in nodes if node.op_type in DEFINITIONS})
    definitions = {name: _definition(name, DEFINITIONS[name], opset) for name in used}
    for node in nodes:
        if (text := own[_first(node.output)]) is not None:
            definition = _definition(f"{node.op_type}_{len(definitions)}", text, opset)
            definitions[definition.name] = definition
            _call(node, definition)
        elif node.op_type in definitions:
            node.domain = OURS
            _give(node, definitions[node.op_type].attribute_proto)
        else:
            schema = onnx.defs.get_schema(node.op_type, opset)
            _give(node, [attribute.default_value for attribute in schema.attributes.values()])
    proto.functions.extend(definitions.values())
    proto.opset_import.append(onnx.helper.make_opsetid(OURS, 1))
    inlined = [*((OURS, name) for name in definitions), *(("", name) for name in sorted(BY_ONNX))]
    typed = onnx.shape_inference.infer_shapes(proto)  # some definitions depend on types
    result = onnx.inliner.inline_selected_functions(typed, inlined, inline_schema_functions=True)
    del result.functions[:]
    remaining = [entry for entry in result.opset_import if entry.domain != OURS]
    del result.opset_import[:]
    result.opset_import.extend(remaining)
    return ir.from_proto(result)


def _first(names: Iterable[str]) -> str:
    return next(filter(None, names), "")


def _give(node: onnx.NodeProto, defaults: Iterable[onnx.AttributeProto]) -> None:
    """Write out attributes that the node leaves to their defaults, which inlining leaves out."""
    inputs = {attribute.name for attribute in node.attribute}
    node.attribute.extend(default for default in defaults if default.name and default.name not in inputs)


def _call(node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Make a node call a function of the inputs that it has, which has its attributes and its first outputs."""
    inputs = [name for name in node.input if name]
    del node.input[:], node.output[len(function.output) :], node.attribute[:]
    node.input.extend(inputs)
    node.domain, node.op_type = OURS, function.name


def _definition(name: str, text: str, opset: int) -> onnx.FunctionProto:
    head = f'<domain: "{OURS}", opset_import: ["": {opset}]> {name} '
    result: onnx.FunctionProto = onnx.parser.parse_function(head + text)
    return result
