"""The TFLite form of a QDQ model: int8 tensors, channels last where operators want them so.

QuantizeLinear and DequantizeLinear become parameters of tensors: codes are those of the QDQ model less 128. An operator
between them is one on int8; any other one is computed on real values, with DEQUANTIZE and QUANTIZE around it. A value
lies in memory in an order of axes of its own, so that operators for images find channels last, and a Transpose is
often nothing but another order. Inputs and outputs keep names, types and order of the ONNX model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ptqc.codegen.litert.writer import REAL, SHIFT, Operand, Params, TfliteGraph, TfliteTensor, TfliteWriter, plain
from ptqc.errors import TargetError
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import subgraphs

IMAGE = (0, 2, 3, 1)  # channels last
CONVERSIONS = named(Trait.CONVERTS)

Rule = Callable[["RuleCall"], Operand | Sequence[Operand]]


def without_rule(operator: str, name: str, why: str = "") -> TargetError:
    """The error for a node that cannot be written."""
    return TargetError(f"litert has no rule for {operator} {name!r}{f' {why}' if why else ''}")


def tflite_graph(model: onnx.ModelProto, rules: Mapping[str, Rule]) -> TfliteGraph:
    """The graph of a QDQ model. rules: by operator. Raises TargetError for a node that none can be applied to."""
    return _Walk(model, rules).graph


@dataclass(frozen=True)
class RuleCall:
    """A node that a rule turns into operators.

    inputs: None where one is left out. params: of the codes that its output becomes; None where real values are read.
    shapes: of its outputs.
    """

    node: onnx.NodeProto
    writer: TfliteWriter
    inputs: Sequence[Operand | None]
    params: Params | None
    shapes: Sequence[tuple[int, ...]]

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        for each in self.node.attribute:
            if each.name == name:
                value = helper.get_attribute_value(each)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def value(self, index: int) -> Operand:
        """An input that has to be there."""
        value = self.inputs[index]
        assert value is not None
        return value

    def first(self) -> Operand:
        """The first input: as codes where the output becomes codes, else as real values."""
        value = self.value(0)
        return value if self.params is not None else self.writer.real(value)

    def array(self, index: int) -> np.ndarray | None:
        """A constant that says how to compute; None where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            return None
        if (data := self.writer.real(value).data if value.tensor.data is not None else None) is None:
            self.refuse(f"whose input {index} is not constant")
        return data

    def operands(self) -> tuple[list[Operand], Params | None]:
        """The inputs, all as codes or all as real values, and the parameters of the output."""
        values = [self.value(index) for index in range(len(self.inputs))]
        if self.params is not None and all(value.params is not None for value in values):
            return values, self.params
        return [self.writer.real(value) for value in values], None

    def like(self, order: tuple[int, ...], shape: tuple[int, ...] | None = None, index: int = 0) -> Operand:
        """An output in this order, for `TfliteWriter.emit`. shape: another one than the node's."""
        shape = self.shapes[index] if shape is None else shape
        return Operand(TfliteTensor(self.node.output[index], tuple(shape[axis] for axis in order), REAL), order)

    def refuse(self, why: str = "") -> NoReturn:
        """Raise TargetError for the node."""
        raise without_rule(self.node.op_type, self.node.name or self.node.output[0], why)


class _Walk:
    """Goes through the nodes of a QDQ model."""

    def __init__(self, model: onnx.ModelProto, rules: Mapping[str, Rule]) -> None:
        self.rules, self.writer = rules, TfliteWriter()
        self.graph = self.writer.graph
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
        self.types = {value.name: value.type.tensor_type for value in (*inferred.value_info, *inferred.output)}
        self.outputs = [value.name for value in model.graph.output]
        self.opsets = {each.domain: each.version for each in model.opset_import}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.values: dict[str, Operand] = {}
        for each in model.graph.initializer:
            self.values[each.name] = self._constant(each.name, numpy_helper.to_array(each))
        for value in model.graph.input:
            self._input(value)
        for node in model.graph.node:
            self._node(node)
        self.graph.outputs |= {name: self._output(name) for name in self.outputs}

    def _constant(self, name: str, array: np.ndarray) -> Operand:
        return Operand(TfliteTensor(name, array.shape, array.dtype, data=array), plain(array.ndim))

    def _input(self, value: onnx.ValueInfoProto) -> None:
        kind = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if dtype != REAL:
            raise TargetError(f"litert takes no input of the type {dtype}: {value.name!r}")
        tensor = TfliteTensor(value.name, _sizes(kind), dtype)
        self.graph.inputs.append(tensor)
        self.values[value.name] = Operand(tensor, plain(len(tensor.shape)))

    def _output(self, name: str) -> TfliteTensor:
        value = self.values[name]
        tensor = self.writer.real(self.writer.in_order(value, plain(len(value.order)))).tensor
        if tensor.data is not None or tensor in (*self.graph.inputs, *self.graph.outputs.values()):
            raise TargetError(f"litert has no rule for the output {name!r}, which is another value of the model")
        tensor.name = name
        return tensor

    def _node(self, node: onnx.NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        if node.op_type == "QuantizeLinear":
            self.values[node.output[0]] = self.writer.rounded(self.values[node.input[0]], self._params(node))
        elif node.op_type == "DequantizeLinear":
            value = self.values[node.input[0]]
            self.values[node.output[0]] = value if value.tensor.data is None else self._dequantized(node, value)
        elif not subgraphs(node) and all(value is None or value.tensor.data is not None for value in inputs):
            self._fold(node)
        else:
            self._convert(node, inputs)

    def _convert(self, node: onnx.NodeProto, inputs: Sequence[Operand | None]) -> None:
        shapes = [_sizes(self.types[name]) for name in node.output if name]
        call = RuleCall(node, self.writer, inputs, self._wanted(node.output[0]), shapes)
        if node.op_type not in self.rules or node.domain:
            call.refuse()
        if any(0 in shape for shape in shapes):
            call.refuse("whose output has no fixed shape")
        result = self.rules[node.op_type](call)
        results = [result] if isinstance(result, Operand) else result
        self.values.update(zip(node.output, results, strict=True))

    def _fold(self, node: onnx.NodeProto) -> None:
        """Compute what depends on constants alone, such as a weight in float that is stored in codes."""
        arrays = {name: self.writer.real(self.values[name]).data for name in node.input if name}
        imports = [helper.make_opsetid(*each) for each in self.opsets.items()]
        names = [name for name in node.output if name]
        graph = helper.make_graph(
            [node],
            "constant",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in arrays.items()
                if array is not None
            ],
            [helper.make_tensor_value_info(name, self.types[name].elem_type, None) for name in names],
        )
        results = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(None, arrays)
        for name, array in zip(names, results, strict=True):
            self.values[name] = self._constant(name, np.asarray(array))

    def _wanted(self, name: str) -> Params | None:
        """The parameters of the codes that a value becomes; None where it is read as it is."""
        readers = self.readers.get(name, ())
        wanted = {self._params(node) for node in readers if node.op_type == "QuantizeLinear"}
        only = len(wanted) == 1 and name not in self.outputs and {node.op_type for node in readers} <= {*CONVERSIONS}
        return wanted.pop() if only else None

    def _params(self, node: onnx.NodeProto) -> Params:
        """Of a conversion of activations."""
        scale, zero = (np.asarray(self.values[name].tensor.data) for name in node.input[1:3])
        if scale.size != 1 or zero.dtype not in (np.uint8, np.int8):
            raise TargetError(f"litert takes codes of 8 bits with one scale: {node.output[0]!r} has others")
        return Params(float(scale.item()), int(zero.item()) - (SHIFT if zero.dtype == np.uint8 else 0))

    def _dequantized(self, node: onnx.NodeProto, value: Operand) -> Operand:
        """A constant with its parameters."""
        codes, scale, zero = (np.asarray(self.values[name].tensor.data) for name in node.input)
        zero = np.broadcast_to(zero, scale.shape).astype(np.int64)
        if codes.dtype == np.uint8:
            codes, zero = (codes.astype(np.int16) - SHIFT).astype(np.int8), zero - SHIFT
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1) if scale.size > 1 else 0
        scales, zeros = tuple(map(float, scale.ravel())), tuple(map(int, zero.ravel()))
        name = node.output[0]
        return Operand(
            TfliteTensor(name, codes.shape, codes.dtype, scales, zeros, axis % max(codes.ndim, 1), codes), value.order
        )


def _sizes(kind: onnx.TypeProto.Tensor) -> tuple[int, ...]:
    return tuple(axis.dim_value for axis in kind.shape.dim)
