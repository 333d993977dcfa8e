"""Operators without a kernel are replaced by others: by ONNX's own definition of them, or by one that is given here."""

from collections.abc import Callable, Mapping
from itertools import chain

import onnx
import onnx.inliner
import onnx.parser
import onnx_ir as ir

from ptqc.nodes import constant

# Domains of nodes that are to be replaced, and of those that are not; while the replacing goes on.
OURS, KEPT = "ptqc.definitions", "ptqc.kept"
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
        "CastLike",
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
    return not is_turned and len(node.inputs) > 2 and not is_settled(node.inputs[1])


def _is_more_than_rows(node: ir.Node) -> bool:
    return not is_settled(node.inputs[1]) or any(value.name for value in node.outputs[1:])


# Operators that have kernels for some nodes, and which are replaced.
SOMETIMES: Mapping[str, Callable[[ir.Node], bool]] = {
    "Gemm": _is_plain_gemm_of_two,
    "LayerNormalization": _is_more_than_rows,
}


def expanded(model: ir.Model) -> ir.Model:
    """The model with definitions in the place of nodes without a kernel; the same one where there are none."""
    chosen = [node for node in model.graph if _is_chosen(node)]
    if not chosen:
        return model
    try:
        return _inlined(model, {str(node.outputs[0].name) for node in chosen})
    except Exception:  # the operators then stay, and are named as what has no kernel
        return model


def is_settled(value: ir.Value | None) -> bool:
    """Whether a value follows from constants and sizes alone."""
    if value is None or constant(value) is not None:
        return True
    maker = value.producer()
    return maker is not None and (maker.op_type in ("Shape", "Size") or all(map(is_settled, maker.inputs)))


def _is_chosen(node: ir.Node) -> bool:
    if node.domain:
        return False
    known = node.op_type in BY_ONNX or node.op_type in DEFINITIONS
    return SOMETIMES[node.op_type](node) if node.op_type in SOMETIMES else known


def _inlined(model: ir.Model, chosen: set[str]) -> ir.Model:
    proto = ir.to_proto(model)
    opset = next(entry.version for entry in proto.opset_import if not entry.domain)
    for node in proto.graph.node:
        if node.output[0] in chosen:
            node.domain = OURS if node.op_type in DEFINITIONS else ""
        elif node.op_type in SOMETIMES and not node.domain:
            node.domain = KEPT
    used = sorted({node.op_type for node in proto.graph.node if node.domain == OURS})
    definitions = {name: _definition(name, opset) for name in used}
    for node in proto.graph.node:
        if node.domain == OURS:
            _give_defaults(node, definitions[node.op_type])
    proto.functions.extend(definitions.values())
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in (OURS, KEPT))
    names = chain(((OURS, name) for name in used), (("", name) for name in (*BY_ONNX, *SOMETIMES)))
    made = onnx.inliner.inline_selected_functions(proto, list(names), inline_schema_functions=True)
    for node in made.graph.node:
        node.domain = "" if node.domain == KEPT else node.domain
    del made.functions[:]
    kept = [entry for entry in made.opset_import if entry.domain not in (OURS, KEPT)]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return ir.from_proto(made)


def _give_defaults(node: onnx.NodeProto, definition: onnx.FunctionProto) -> None:
    """Write out attributes that the node leaves to their defaults, which inlining leaves out."""
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(default for default in definition.attribute_proto if default.name not in given)


def _definition(name: str, opset: int) -> onnx.FunctionProto:
    head = f'<domain: "{OURS}", opset_import: ["": {opset}]> {name} '
    found: onnx.FunctionProto = onnx.parser.parse_function(head + DEFINITIONS[name])
    return found
