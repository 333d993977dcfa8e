"""What runtimes demand of a QDQ model, as a list of rules; a violation names the node and the rule.

Each was found by running models that break it, in OpenVINO 2026.4 and in the HTP compiler of QAIRT 2.51, or is in
ONNX's specification. Of three of them the runtimes say nothing and compute garbage: one type of activations for each
node and one scale for each constant (HTP), and activations of 8 bits (OpenVINO).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EVERY = frozenset({"onnxruntime", "openvino", "qnn", "tensorrt", "xdna"})
QNN, OPENVINO, TENSORRT, XDNA = (frozenset({name}) for name in ("qnn", "openvino", "tensorrt", "xdna"))
ORT, SYMMETRIC = frozenset({"onnxruntime"}), TENSORRT | XDNA
TO_CODES, TO_REAL = "QuantizeLinear", "DequantizeLinear"
#: Operators with a weight, and the axis of the weight along which their outputs lie.
LAYERS: Mapping[str, int] = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
#: Operators both inputs of which TensorRT quantizes.
SUMS = ("Add", "Sub")
WIDE = (np.dtype(np.uint16), np.dtype(np.int16))
FLOAT8 = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)
CONTROL_FLOW = "no control flow"
EIGHT_BITS = "activations of 8 bits"
STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Violation:
    """A node that breaks a rule. detail: how."""

    rule: str
    node: str
    detail: str

    def __str__(self) -> str:
        return f"{self.node}: {self.detail} (rule: {self.rule})"


@dataclass(frozen=True)
class QdqGraph:
    """A QDQ model as rules read it."""

    model: onnx.ModelProto

    @cached_property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """Nodes of the main graph."""
        return list(self.model.graph.node)

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        """The nodes that read each value."""
        result = defaultdict[str, list[onnx.NodeProto]](list)
        for node in self.nodes:
            for name in node.input:
                result[name].append(node)
        return result

    @cached_property
    def constants(self) -> Mapping[str, onnx.TensorProto]:
        """Initializers by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    def array(self, name: str) -> np.ndarray | None:
        """The values of an initializer."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def conversions(self) -> Iterator[onnx.NodeProto]:
        """Nodes between real values and codes of activations."""
        for node in self.nodes:
            if node.op_type in (TO_CODES, TO_REAL) and node.input[0] not in self.constants:
                yield node

    def operators(self) -> Iterator[onnx.NodeProto]:
        """All other nodes."""
        return (node for node in self.nodes if node.op_type not in (TO_CODES, TO_REAL))

    def layers(self) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto]]:
        """Layers on integers: each with what dequantizes its input, and its weight."""
        for node in self.nodes:
            if node.op_type in LAYERS and not node.domain:
                x, weight = self.makers.get(node.input[0]), self.makers.get(node.input[1])
                if x is not None and weight is not None and self.is_real(x) and self.is_weight(weight):
                    yield node, x, weight

    def is_real(self, node: onnx.NodeProto) -> bool:
        """Whether a node dequantizes activations."""
        return node.op_type == TO_REAL and node.input[0] not in self.constants

    def is_weight(self, node: onnx.NodeProto) -> bool:
        """Whether a node dequantizes a constant."""
        return node.op_type == TO_REAL and node.input[0] in self.constants

    def code_type(self, node: onnx.NodeProto) -> np.dtype | None:
        """The type of the codes of a conversion, from its zero point."""
        zero = self.constants.get(node.input[2]) if len(node.input) > 2 else None
        return None if zero is None else np.dtype(helper.tensor_dtype_to_np_dtype(zero.data_type))


def _name(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.output[0] if node.output else ''}"


@dataclass(frozen=True)
class Rule:
    """What some runtimes demand. violations: of a graph, as nodes with what is wrong."""

    name: str
    runtimes: frozenset[str]
    violations: Callable[[QdqGraph], Iterator[tuple[str, str]]]


def _functions(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for function in graph.model.functions:
        yield f"function {function.name}", "the model has functions of its own"


def _free_axes(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        free = [d.dim_param or "?" for d in value.type.tensor_type.shape.dim if not d.HasField("dim_value")]
        if free:
            yield value.name, f"has free axes: {', '.join(free)}"


def _implied_zeros(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        implied = node.op_type in (TO_CODES, TO_REAL) and (len(node.input) < 3 or not node.input[2])
        if implied and not (graph.is_weight(node) and graph.constants[node.input[0]].data_type in FLOAT8):
            yield _name(node), "has no zero point"


def _vector_parameters(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.conversions():
        for name in node.input[1:3]:
            tensor = graph.constants.get(name)
            if tensor is None:
                yield _name(node), f"has a parameter that is not constant: {name!r}"
            elif tensor.dims:
                yield _name(node), f"has a parameter of the shape {list(tensor.dims)}, not a scalar"


def _mixed_types(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    """Activations that a node reads and gives, by the type of their codes."""
    for node in graph.operators():
        makers = [graph.makers.get(name) for name in node.input]
        if node.op_type == "MatMul" and makers[1] is not None and graph.code_type(makers[1]) == np.int16:
            makers = makers[:1]  # beside uint16, which HTP multiplies it by
        read = [maker for maker in makers if maker is not None and graph.is_real(maker)]
        rounded = [each for name in node.output for each in graph.readers.get(name, ()) if each.op_type == TO_CODES]
        types = {str(graph.code_type(each)) for each in (*read, *rounded)}
        if len(types) > 1:
            yield _name(node), f"reads and gives activations of several types: {', '.join(sorted(types))}"


def _wide_activations(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.conversions():
        if graph.code_type(node) in WIDE:
            yield _name(node), f"has codes of the type {graph.code_type(node)}"


def _operators_on_codes(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    codes = {node.output[0] for node in graph.nodes if node.op_type == TO_CODES}
    for node in graph.operators():
        for name in codes.intersection(node.input):
            yield _name(node), f"reads the codes {name!r} without a DequantizeLinear"


def _asymmetric_weights(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, _, weight in graph.layers():
        zero = graph.array(weight.input[2]) if len(weight.input) > 2 else None
        if zero is not None and zero.any():
            yield _name(node), "has a weight with zero points other than 0"


def _unsigned_weights(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, _, weight in graph.layers():
        if graph.constants[weight.input[0]].data_type not in (TensorProto.INT8, TensorProto.INT4):
            kind = TensorProto.DataType.Name(graph.constants[weight.input[0]].data_type)
            yield _name(node), f"has a weight of the type {kind}"


def _scales_along_inputs(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, _, weight in graph.layers():
        scale, codes = graph.constants[weight.input[1]], graph.constants[weight.input[0]]
        attributes = {each.name: helper.get_attribute_value(each) for each in (*weight.attribute, *node.attribute)}
        axis = LAYERS[node.op_type] % len(codes.dims)
        if node.op_type == "Gemm" and attributes.get("transB"):
            axis = 0
        if np.prod(scale.dims or [1]) > 1 and attributes.get("axis", 1) % len(codes.dims) != axis:
            yield _name(node), f"has weight scales along axis {attributes.get('axis', 1)}; its outputs are axis {axis}"


def _other_biases(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, x, weight in graph.layers():
        if len(node.input) < 3 or not node.input[2]:
            continue
        bias = graph.makers.get(node.input[2])
        if bias is None or not graph.is_weight(bias):
            yield _name(node), "has a bias in float"
        elif graph.constants[bias.input[0]].data_type != TensorProto.INT32:
            yield _name(node), "has a bias of another type than int32"
        else:
            of_x, of_weight, of_bias = (np.asarray(graph.array(each.input[1])) for each in (x, weight, bias))
            if not np.allclose(of_x.astype(np.float64) * of_weight, of_bias, rtol=1e-6, atol=0.0):
                yield _name(node), "has a bias whose scale is not that of its input times that of its weight"


def _shared_codes(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    """Constants that several nodes dequantize: the HTP compiler takes the numbers of one of these nodes for all."""
    first = dict[str, onnx.NodeProto]()
    for node in filter(graph.is_weight, graph.nodes):
        if first.setdefault(node.input[0], node).input[1:] != node.input[1:]:
            yield _name(node), f"dequantizes the codes {node.input[0]!r} by another scale than another node"


def _open_layers(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, _, _ in graph.layers():
        if not any(reader.op_type == TO_CODES for reader in graph.readers.get(node.output[0], ())):
            yield _name(node), "gives real values: nothing rounds its output to codes"


def _float8(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for name, tensor in graph.constants.items():
        if tensor.data_type in FLOAT8:
            yield name, f"is a constant of the type {TensorProto.DataType.Name(tensor.data_type)}"


def _packed_convolutions(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node, _, weight in graph.layers():
        if node.op_type != "MatMul" and graph.constants[weight.input[0]].data_type == TensorProto.INT4:
            yield _name(node), "has a weight of INT4, which is computed in float"


def _bad_scales(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        scale = graph.array(node.input[1]) if node.op_type in (TO_CODES, TO_REAL) else None
        if scale is not None and not (np.isfinite(scale) & (scale > 0)).all():
            yield _name(node), "has a scale that is not a positive number"


def _asymmetric_activations(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.conversions():
        zero = graph.array(node.input[2]) if len(node.input) > 2 else None
        if zero is not None and (zero.dtype != np.int8 or zero.any()):
            yield _name(node), f"has the zero point {zero} of the type {zero.dtype}"


def _integer_biases(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if graph.is_weight(node) and graph.constants[node.input[0]].data_type == TensorProto.INT32:
            yield _name(node), "dequantizes int32"


def _rounded_before_relu(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.operators():
        maker = graph.makers.get(node.input[0]) if node.op_type in ("Relu", "Clip") else None
        if maker is not None and graph.is_real(maker):
            source = graph.makers.get(graph.makers[maker.input[0]].input[0]) if maker.input[0] in graph.makers else None
            if source is not None and source.op_type in LAYERS:
                yield _name(node), f"reads what is rounded after {_name(source)}"


def _needless_conversions(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if node.op_type == TO_CODES:
            reals = graph.readers.get(node.output[0], ())
            readers = [reader for real in reals for reader in graph.readers.get(real.output[0], ())]
            if not any(reader.op_type in (*LAYERS, *SUMS) for reader in readers):
                yield _name(node), "rounds what neither a layer nor a sum reads"


def _scales_of_powers(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        scale = graph.array(node.input[1]) if node.op_type in (TO_CODES, TO_REAL) else None
        if scale is not None and (np.frexp(scale)[0] != 0.5).any():
            yield _name(node), "has a scale that is not a power of two"


def _foreign_operators(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if node.domain not in STANDARD:
            yield _name(node), f"is an operator of the domain {node.domain!r}"


def _control_flow(graph: QdqGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if any(
            attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute
        ):
            yield _name(node), "runs a graph of its own"


RULES: tuple[Rule, ...] = (
    Rule("no functions", EVERY - ORT, _functions),
    Rule("fixed shapes", QNN | SYMMETRIC, _free_axes),
    Rule("zero points written out", EVERY, _implied_zeros),
    Rule("scalar parameters of activations", EVERY, _vector_parameters),
    Rule("one type of activations for each node", EVERY, _mixed_types),
    Rule(EIGHT_BITS, OPENVINO | SYMMETRIC, _wide_activations),
    Rule("operators between DequantizeLinear and QuantizeLinear", QNN | OPENVINO, _operators_on_codes),
    Rule("zero points of weights are 0", EVERY - ORT, _asymmetric_weights),
    Rule("signed weights", EVERY - ORT, _unsigned_weights),
    Rule("scales of weights along the outputs", EVERY - ORT, _scales_along_inputs),
    Rule("int32 biases at the product of scales", OPENVINO | QNN | XDNA, _other_biases),
    Rule("one scale for each constant", QNN, _shared_codes),
    Rule("outputs of layers rounded", QNN | XDNA, _open_layers),
    Rule("no float8", EVERY - ORT, _float8),
    Rule("INT4 in matmuls alone", OPENVINO, _packed_convolutions),
    Rule("positive scales", EVERY, _bad_scales),
    Rule("standard operators", EVERY - ORT, _foreign_operators),
    Rule(CONTROL_FLOW, QNN | TENSORRT, _control_flow),
    Rule("int8 activations with zero points 0", SYMMETRIC, _asymmetric_activations),
    Rule("real biases", TENSORRT, _integer_biases),
    Rule("nothing rounded between a layer and its Relu", TENSORRT, _rounded_before_relu),
    Rule("conversions at the inputs of layers and sums alone", TENSORRT, _needless_conversions),
    Rule("scales are powers of two", XDNA, _scales_of_powers),
)


def violations(model: onnx.ModelProto, runtime: str) -> list[Violation]:
    """What a runtime would not take of a model, or would compute in float."""
    graph = QdqGraph(model)
    return [
        Violation(rule.name, node, detail)
        for rule in RULES
        if runtime in rule.runtimes
        for node, detail in rule.violations(graph)
    ]
