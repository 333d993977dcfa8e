"""QDQ models for Hexagon NPUs in which what the plan leaves in real values has codes of 16 bits.

Each node has one type of activations: codes of 8 bits that a node on 16 reads are converted, which loses nothing. A
layer whose weight has no codes stays in float.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from ptqc.calibration.ranges import affine_params
from ptqc.codegen.qdq.edits import copied, drop_unread, raise_opset, set_nodes
from ptqc.codegen.qdq.rules import LAYERS, TO_CODES, TO_REAL, WIDE, QdqGraph
from ptqc.formats import Affine, QuantParams
from ptqc.ir.integer_arithmetic import quantize
from ptqc.ir.operators import OPERATORS, Trait, named
from ptqc.ir.protos import value_names

UINT16, INT16 = Affine(16), Affine(16, signed=True)
#: Of two activations, HTP multiplies the second in full digits only where its codes are signed, around 0.
SECOND = ("MatMul", 1)
#: A code of 8 bits as one of 16.
STEPS = 256
#: Values up to LEAST are those of a mask, which a Softmax makes 0, where all others are nearer to 0 than FAR; MASKED
#: below the others they still are.
LEAST, FAR, MASKED = -5e3, 1e3, 100.0
#: How much further than on the samples a range goes: less on many, and half of it on FEW. What is cut off is lost; but
#: where channels differ much in size, the small ones need every digit.
MARGIN, FEW = 0.05, 16
NORMALIZATIONS = named(Trait.NORMALIZATION)
BIAS = 2


@dataclass
class ValueRange:
    """The least and the most of a value, and the least but for what looks like a mask."""

    low: float = 0.0
    high: float = 0.0
    unmasked: float = 0.0
    samples: int = 0

    def update(self, x: np.ndarray) -> None:
        """Show it an array."""
        self.samples += 1
        low, high = _ends(x)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.unmasked = min(self.unmasked, float(x.min(initial=0.0, where=x > LEAST)))

    @property
    def is_masked(self) -> bool:
        """Whether it has values that a Softmax makes 0."""
        return self.low <= LEAST and max(self.high, -self.unmasked) < FAR

    def params(self) -> QuantParams:
        """Codes of 16 bits for it; what is masked counts as a number that a Softmax makes 0."""
        low = self.unmasked if self.is_masked else self.low
        wider = 1 + max(MARGIN, FEW / max(self.samples, FEW) / 2)
        return _params(low * wider - MASKED * self.is_masked, self.high * wider)


def _ends(array: np.ndarray) -> tuple[float, float]:
    return float(array.min(initial=0.0)), float(array.max(initial=0.0))


def _params(low: float, high: float) -> QuantParams:
    scale, zero = affine_params(low, high, UINT16.bits)
    return QuantParams(UINT16, float(scale), int(zero))


@dataclass(frozen=True)
class WideGraph:
    """A QDQ model, and which of its nodes compute on codes of 16 bits."""

    graph: QdqGraph

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "WideGraph":
        """Types of values are inferred."""
        return cls(QdqGraph(shape_inference.infer_shapes(model)))

    @cached_property
    def activations(self) -> frozenset[str]:
        """The real values that follow from inputs."""
        graph = self.graph.model.graph
        values = (*graph.input, *graph.value_info, *graph.output)
        fixed = set(self.graph.constants)
        for node in self.graph.nodes:
            if fixed.issuperset(filter(None, node.input)):
                fixed.update(node.output)
        real = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
        return frozenset(real - fixed)

    @cached_property
    def wide(self) -> Sequence[onnx.NodeProto]:
        """The nodes on codes of 16 bits: all that read or give real values, but for those that stay in float."""
        return [node for node in self.graph.operators() if self._is_wide(node)]

    @cached_property
    def unrounded(self) -> Sequence[str]:
        """Values that nodes on 16 bits read or give and that have no codes of 8."""
        names = (name for node in self.wide for name in (*self.read(node), *node.output))
        return [name for name in dict.fromkeys(names) if name in self.activations and self.conversion(name) is None]

    def read(self, node: onnx.NodeProto) -> list[str]:
        """The activations that a node reads."""
        return [node.input[place] for place in self.operands(node) if node.input[place] in self.activations]

    def operands(self, node: onnx.NodeProto) -> Sequence[int]:
        """The inputs of a node that carry numbers, by place."""
        known = OPERATORS.get(node.op_type)
        if known is None or known.operands is None:
            return range(len(node.input))
        others = range(len(node.input)) if node.op_type in LAYERS else ()
        activations = {place for place in others if node.input[place] in self.activations}
        return sorted(activations.union(place for place in known.operands if place < len(node.input)))

    def conversion(self, name: str) -> onnx.NodeProto | None:
        """What makes a real value of codes."""
        maker = self.graph.makers.get(name)
        return maker if maker is not None and self.graph.is_real(maker) else None

    def _is_wide(self, node: onnx.NodeProto) -> bool:
        outputs, read = self.activations.intersection(node.output), self.read(node)
        if not outputs or not read or node.domain or self._has_real_weight(node):
            return False
        is_open = not outputs.isdisjoint(value.name for value in self.graph.model.graph.output)
        readers = [reader for name in outputs for reader in self.graph.readers.get(name, ())]
        is_rounded = not is_open and all(reader.op_type == TO_CODES for reader in readers)
        return not is_rounded or any(self.conversion(name) is None for name in read)

    def _has_real_weight(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in LAYERS or node.input[1] in self.activations:
            return False
        maker = self.graph.makers.get(node.input[1])
        return maker is None or not self.graph.is_weight(maker)


def with_16_bits(graph: WideGraph, ranges: Mapping[str, ValueRange]) -> onnx.ModelProto:
    """The model with codes of 16 bits. ranges: of `graph.unrounded`."""
    return _Writer(graph, ranges).model()


@dataclass
class _Writer:
    """Writes a model anew. real: by activation, its real value behind codes of 16 bits."""

    of: WideGraph
    ranges: Mapping[str, ValueRange]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[bytes, onnx.TensorProto] = field(default_factory=dict)
    own: list[onnx.TensorProto] = field(default_factory=list)
    real: dict[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> set[str]:
        """Names that are taken."""
        return set(value_names(self.of.graph.model.graph))

    def model(self) -> onnx.ModelProto:
        wide = {node.output[0] for node in self.of.wide}
        for node in self.of.graph.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            if node.output[0] in wide:
                self._widen(copy)
            else:
                self.nodes.append(copy)
        result = copied(self.of.graph.model)
        del result.graph.value_info[:]
        set_nodes(result, self.nodes)
        result.graph.initializer.extend((*self.constants.values(), *self.own))
        drop_unread(result)
        raise_opset(result)
        return result

    def _widen(self, node: onnx.NodeProto) -> None:
        read = self.of.read(node)
        if node.op_type in LAYERS and node.input[1] not in read and len(node.input) > BIAS:
            self._write_bias(node, self._params(read[0]))
        places = (*self.of.operands(node), *((1, BIAS) if node.op_type in NORMALIZATIONS else ()))
        for place in dict.fromkeys(place for place in places if place < len(node.input)):
            name = node.input[place]
            if name in read:
                node.input[place] = self._signed(name) if (node.op_type, place) == SECOND else self._converted(name)
            else:
                node.input[place] = self._constant_operand(name, node)
        self.nodes.append(node)
        for place, name in enumerate(node.output):
            if name in self.of.activations:
                node.output[place] = self._fresh(f"{name}/float")
                self._convert(node.output[place], name, self._params(name))
                self.real[name] = name

    def _converted(self, name: str) -> str:
        """An activation behind codes of 16 bits."""
        if name not in self.real:
            self.real[name] = self._fresh(f"{name}/wide")
            self._convert(name, self.real[name], self._params(name))
        return self.real[name]

    def _signed(self, name: str) -> str:
        """An activation behind signed codes of 16 bits around 0."""
        signed = f"{name}/signed"
        if signed not in self.real:
            params = self._params(name)
            scale = max(-params.low, params.high) / INT16.high
            self.real[signed] = self._fresh(signed)
            self._convert(self._converted(name), self.real[signed], QuantParams(INT16, scale, 0))
        return self.real[signed]

    def _convert(self, name: str, real: str, params: QuantParams) -> None:
        numbers, codes = self._numbers(params), self._fresh(f"{real}/codes16")
        self.nodes.append(helper.make_node(TO_CODES, [name, *numbers], [codes]))
        self.nodes.append(helper.make_node(TO_REAL, [codes, *numbers], [real]))

    def _params(self, name: str) -> QuantParams:
        """Of an activation; codes of 8 bits have the same values on 16."""
        conversion = self.of.conversion(name)
        if conversion is None:
            return self.ranges[name].params()
        scale, zero = (np.asarray(self.of.graph.array(each)) for each in conversion.input[1:])
        return QuantParams(UINT16, float(scale) / STEPS, int(zero) * STEPS)

    def _constant_operand(self, name: str, node: onnx.NodeProto) -> str:
        """A constant that stands beside activations, behind codes of 16 bits; others as they are."""
        array = self.of.graph.array(name)
        if array is None or array.dtype != np.float32:
            return name
        result = self.ranges.get(node.output[0])
        is_mask = result is not None and result.is_masked and array.min(initial=0.0) <= LEAST
        real = f"{name}/mask" if is_mask else name
        if real not in self.real:
            params = result.params() if result is not None and is_mask else _params(*_ends(array))
            self.real[real] = self._fresh(f"{name}/wide")
            codes = self._own_constant(quantize(array, params))
            self.nodes.append(helper.make_node(TO_REAL, [codes, *self._numbers(params)], [self.real[real]]))
        return self.real[real]

    def _write_bias(self, node: onnx.NodeProto, params: QuantParams) -> None:
        """Write the bias of a layer in int32, at the product of the scales of its input and its weight."""
        graph = self.of.graph
        weight, bias = graph.makers[node.input[1]], graph.makers.get(node.input[BIAS])
        if bias is None:
            real = np.asarray(graph.array(node.input[BIAS]), np.float64)
        else:
            codes, scale = (np.asarray(graph.array(each)) for each in bias.input[:2])
            real = codes.astype(np.float64) * scale
        products = np.asarray(graph.array(weight.input[1]), np.float32) * np.float32(params.scale)
        limits = np.iinfo(np.int32)
        codes = np.clip(np.rint(real / products), limits.min, limits.max).astype(np.int32)
        zeros = np.zeros(products.shape, np.int32)
        name = self._fresh(f"{node.output[0]}/bias16")
        constants = [self._own_constant(codes), self._constant(products), self._constant(zeros)]
        self.nodes.append(helper.make_node(TO_REAL, constants, [name], axis=0))
        node.input[BIAS] = name

    def _numbers(self, params: QuantParams) -> list[str]:
        kind = np.int16 if params.format.signed else np.uint16
        return [self._constant(np.float32(params.scale)), self._constant(kind(params.zero_point))]

    def _constant(self, array: np.ndarray | np.generic) -> str:
        """The name of a constant; equal ones are one."""
        tensor = numpy_helper.from_array(np.asarray(array))
        key = tensor.SerializeToString(deterministic=True)
        if key not in self.constants:
            tensor.name = self._fresh(f"wide/{len(self.constants)}")
            self.constants[key] = tensor
        return self.constants[key].name

    def _own_constant(self, codes: np.ndarray) -> str:
        """The name of a constant that nothing else reads: Qualcomm's compiler gives equal names one scale."""
        name = self._fresh("wide/codes")
        self.own.append(numpy_helper.from_array(codes, name))
        return name

    def _fresh(self, name: str) -> str:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name


def widths_of(model: onnx.ModelProto) -> str:
    """How many layers of a model are on codes of 16 bits, and their share of the products; "" where none is."""
    graph = QdqGraph(shape_inference.infer_shapes(model))
    values = (*graph.model.graph.value_info, *graph.model.graph.output)
    sizes = {value.name: prod(axis.dim_value for axis in value.type.tensor_type.shape.dim) for value in values}
    products = dict[str, int]()
    wide = list[str]()
    for node, x, weight in graph.layers():
        shape = graph.constants[weight.input[0]].dims
        products[node.output[0]] = sizes.get(node.output[0], 0) * prod(shape) // max(_channels(node, shape), 1)
        wide += [node.output[0]] if graph.code_type(x) in WIDE else []
    share = sum(products[name] for name in wide) / max(sum(products.values()), 1)
    return (
        f"{len(wide)} of {len(products)} layers with 16-bit activations, {share:.0%} of the multiplications"
        if wide
        else ""
    )


def _channels(node: onnx.NodeProto, shape: Sequence[int]) -> int:
    """The outputs of a layer."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Gemm" and attributes.get("transB"):
        return shape[0]
    groups: int = attributes.get("group", 1) if node.op_type == "ConvTranspose" else 1
    return shape[LAYERS[node.op_type]] * groups
