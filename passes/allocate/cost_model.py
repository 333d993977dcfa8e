"""Predicted latency of a choice of quantized activations, from times of operators and of conversions between them.

t = Σ_o (on codes: integer_o, else float_o) + Σ_t quantize_t [made in float] + dequantize_t [read in float]
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import onnx_ir as ir

from ptqc.errors import UsageError
from ptqc.ir.layers import Layer
from ptqc.ir.operators import OPERATORS, data_inputs, keeps_codes
from ptqc.ir.plan import Plan
from ptqc.ir.sites import QuantizableOp

COLUMNS = ("floats", "integers", "quantize", "dequantize")


@dataclass(frozen=True)
class OpLatencies:
    """Nanoseconds in one run of one sample on one thread.

    floats, integers: of operators by `Operator.node`, computing in float and on codes. quantize, dequantize: from real
    values to codes and back, by tensor. What is not named takes no time of its own. target: whose library these are of;
    "": of ONNX Runtime. is_measured: else they are predicted. in_blocks: whether products in float kept their
    weights packed.
    """

    runtime: str
    floats: Mapping[str, float]
    integers: Mapping[str, float]
    quantize: Mapping[str, float]
    dequantize: Mapping[str, float]
    target: str = field(default="", kw_only=True)
    is_measured: bool = field(default=True, kw_only=True)
    in_blocks: bool = field(default=False, kw_only=True)

    def scaled(self, factor: float) -> "OpLatencies":
        """All of them times a factor."""
        columns = ((name, getattr(self, name)) for name in COLUMNS)
        scaled: Any = {name: {key: ns * factor for key, ns in column.items()} for name, column in columns}
        return replace(self, **scaled)

    def to_json(self) -> dict[str, Any]:
        """The document for the artifact."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "OpLatencies":
        """Inverse of `to_json`. Raises UsageError for anything else."""
        try:
            read = {name: {str(key): float(ns) for key, ns in document[name].items()} for name in COLUMNS}
            target, is_measured = str(document.get("target", "")), bool(document.get("is_measured", True))
            in_blocks = bool(document.get("in_blocks", False))
            runtime = str(document["runtime"])
            return cls(runtime=runtime, target=target, is_measured=is_measured, in_blocks=in_blocks, **read)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the times of operators cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class TimedOperator:
    """A node, with the Relu or Clip that it absorbs.

    node: name of its first output. tensors: it runs on codes where all of these are quantized; none: never. moves:
    whether it only moves codes.
    """

    node: str
    op_type: str
    tensors: tuple[str, ...]
    moves: bool = False


@dataclass(frozen=True)
class Edge:
    """A tensor that may be quantized.

    maker: the operator that writes its codes where it runs on codes. readers: operators that then read them.
    real: whether something reads its real values whatever is chosen.
    """

    tensor: str
    maker: str | None
    readers: tuple[str, ...]
    real: bool


@dataclass(frozen=True)
class Network:
    """What the latency of a choice depends on."""

    operators: tuple[TimedOperator, ...]
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, model: ir.Model, everything: Plan) -> "Network":
        """The operators of a float model in normal form. everything: a plan that quantizes every site."""
        owner = owners(everything.kernels)
        operators = tuple(_operator(node, everything) for node in model.graph if str(node.outputs[0].name) not in owner)
        by_node = {operator.node: operator for operator in operators}
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        edges = tuple(_edge(value, by_node, owner) for value in values if value.name in everything.params)
        return cls(operators, edges)

    def on_codes(self, quantized: Collection[str]) -> set[str]:
        """The operators that run on codes when these tensors are quantized."""
        return {o.node for o in self.operators if o.tensors and all(tensor in quantized for tensor in o.tensors)}

    def operator_times(self, times: OpLatencies, quantized: Collection[str]) -> dict[str, float]:
        """Nanoseconds of each operator itself."""
        codes = self.on_codes(quantized)
        return {o.node: (times.integers if o.node in codes else times.floats).get(o.node, 0.0) for o in self.operators}

    def conversion_times(self, times: OpLatencies, quantized: Collection[str]) -> dict[str, float]:
        """Nanoseconds of the conversions of each tensor that has any."""
        codes = self.on_codes(quantized)
        result: dict[str, float] = {}
        for edge in self.edges:
            if edge.tensor not in quantized:
                continue
            is_quantized = edge.maker not in codes
            is_dequantized = edge.real or any(reader not in codes for reader in edge.readers)
            if is_quantized or is_dequantized:
                taken = (times.quantize, is_quantized), (times.dequantize, is_dequantized)
                result[edge.tensor] = sum(column.get(edge.tensor, 0.0) for column, there in taken if there)
        return result

    def predict(self, times: OpLatencies, quantized: Collection[str]) -> float:
        """Nanoseconds of a whole run."""
        parts = self.operator_times(times, quantized), self.conversion_times(times, quantized)
        return sum(sum(part.values()) for part in parts)


@dataclass(frozen=True)
class Timed:
    """A limit on the latency, in nanoseconds, with what it is predicted from.

    load: load average of this machine when the operators were timed; None where nothing was timed now.
    """

    limit: float
    network: Network
    times: OpLatencies
    load: float | None = None


def owners(kernels: Collection[QuantizableOp]) -> dict[str, str]:
    """Output of an absorbed Relu or Clip -> the node that absorbs it."""
    return {kernel.output: kernel.node for kernel in kernels if kernel.output != kernel.node}


def _operator(node: ir.Node, everything: Plan) -> TimedOperator:
    name = str(node.outputs[0].name)
    kernel, tensors = everything.integer.get(name), tuple[str, ...]()
    moves = kernel is None and keeps_codes(node)
    if kernel is not None:
        tensors = (*kernel.inputs, *(() if kernel.float_output else (kernel.output,)))
    elif moves:
        moved = tuple(str(value.name) for value in (*data_inputs(node), *node.outputs))
        tensors = moved if all(tensor in everything.params for tensor in moved) else ()
    return TimedOperator(name, node.op_type, tensors, moves)


def _edge(value: ir.Value, operators: Mapping[str, TimedOperator], owner: Mapping[str, str]) -> Edge:
    name = str(value.name)
    producer = value.producer()
    maker = operators.get(_owner(producer, owner)) if producer is not None else None
    result = [operators.get(_owner(reader, owner)) for reader in value.consumers()]
    readers = tuple(dict.fromkeys(reader.node for reader in result if reader is not None and reader.tensors))
    # What reads it from within a subgraph is no operator here, and reads real values.
    real = value.is_graph_output() or any(reader is None or not reader.tensors for reader in result)
    return Edge(name, maker.node if maker is not None and maker.tensors else None, readers, real)


def _owner(node: ir.Node, owner: Mapping[str, str]) -> str:
    name = str(node.outputs[0].name)
    return owner.get(name, name)


# About how long ONNX Runtime takes for operators and conversions, from their sizes alone.
#
# For choices that nobody gave a budget of time for: nothing is timed, so that the same model gives the same file on
# every machine. Every figure is what ONNX Runtime 1.32 takes on one thread of an x86-64 processor without VNNI; with
# it, layers on codes save more.

RUNTIME = "usual times of ONNX Runtime, one thread"
# Nanoseconds of a multiply-accumulate in float and on codes: of layers; of depthwise ones; of those with groups that
# are too narrow for the blocked layout of float kernels, in float.
DENSE, DEPTHWISE, NARROW = (0.02, 0.01), (0.05, 0.06), 0.16
# Of an element that a layer makes, and of a number of the weight that a product reads.
LAYER_ELEMENT, WEIGHT_ELEMENT = (0.1, 0.3), (0.06, 0.02)
# Of the windows of one group at one place, which convolutions on codes gather unless they are depthwise.
GATHERED = 45.0
# Channels of a group that float kernels take together.
BLOCK = 8
# Of an element that any other operator makes, and that one makes that only moves codes.
ELEMENT, MOVED = (0.24, 0.24), (0.16, 0.06)
# Of an element of a function that codes look up in a table.
LOOKED_UP = (12.0, 1.0)
# Of an element that is rounded to a code, of one that is made real again, and of its move to another place in images,
# where kernels on codes have the channels last.
QUANTIZED, REAL, TURNED = 0.32, 0.16, 0.22
# Of running one more operator, and of what a product on codes does before it multiplies.
STARTED, PRODUCT_STARTED = 1000.0, 2000.0
IMAGE_AXES = 4
# Of an element on an NPU that has codes of 16 bits, beside DENSE of its layers.
NPU_ELEMENT = 0.08


@dataclass(frozen=True)
class OperatorSizes:
    """What the times follow from, for one sample. macs: by kernel. shapes: of tensors, by name."""

    macs: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    def elements(self, tensor: str) -> int:
        """Of a tensor; 0 where its shape is not known."""
        return math.prod(self.shapes.get(tensor, (0,)))


def usual_times(network: Network, layers: Mapping[str, Layer], sizes: OperatorSizes) -> OpLatencies:
    """The times of a network. layers: by name."""
    floats, integers = dict[str, float](), dict[str, float]()
    for operator in network.operators:
        if not operator.tensors:
            continue
        layer = layers.get(operator.node)
        if layer is not None:
            real, codes = _layer(layer, sizes.macs.get(operator.node, 0))
            codes += 0.0 if layer.is_convolution else PRODUCT_STARTED
        else:
            real, codes = (ns * sizes.elements(operator.node) for ns in _each(operator))
        floats[operator.node], integers[operator.node] = real + STARTED, codes + STARTED
    quantize, dequantize = (
        {edge.tensor: _conversion(sizes.shapes.get(edge.tensor, ()), ns) for edge in network.edges}
        for ns in (QUANTIZED, REAL)
    )
    return OpLatencies(RUNTIME, floats, integers, quantize, dequantize, is_measured=False)


def arithmetic_times(network: Network, layers: Mapping[str, Layer], sizes: OperatorSizes) -> OpLatencies:
    """The times of the arithmetic alone: half as long on codes, and conversions take none.

    That is about what is left in large batches, with instructions for codes, and in native libraries.
    """
    floats = {o.node: DENSE[0] * sizes.macs.get(o.node, 0) for o in network.operators if o.tensors}
    integers = {node: ns * DENSE[1] / DENSE[0] for node, ns in floats.items()}
    for node in integers.keys() & layers.keys():
        integers[node] += _gathered(layers[node], sizes.macs.get(node, 0))
    return OpLatencies("arithmetic alone", floats, integers, {}, {}, is_measured=False)


def npu_times(network: Network, layers: Mapping[str, Layer], sizes: OperatorSizes) -> OpLatencies:
    """The times of an NPU that has codes of 16 bits where activations are not of 8: twice as long, as are their bytes.

    A conversion between both takes as long as an operator on its elements.
    """
    nodes = [operator.node for operator in network.operators if operator.tensors]
    integers = {node: NPU_ELEMENT * sizes.elements(node) for node in nodes}
    integers |= {node: DENSE[1] * sizes.macs.get(node, 0) for node in nodes if node in layers}
    floats = {node: 2 * ns for node, ns in integers.items()}
    converted = {edge.tensor: NPU_ELEMENT * sizes.elements(edge.tensor) for edge in network.edges}
    return OpLatencies("16 bits for twice the time", floats, integers, converted, converted, is_measured=False)


Clock = Literal["usual", "arithmetic", "npu"]
CLOCKS: Mapping[Clock, Callable[[Network, Mapping[str, Layer], OperatorSizes], OpLatencies]] = {
    "usual": usual_times,
    "arithmetic": arithmetic_times,
    "npu": npu_times,
}


def _each(operator: TimedOperator) -> tuple[float, float]:
    """Nanoseconds of an element that an operator makes which is no layer, in float and on codes."""
    known = OPERATORS.get(operator.op_type)
    if known is not None and known.is_looked_up:
        return LOOKED_UP
    return MOVED if operator.moves else ELEMENT


def _layer(layer: Layer, macs: int) -> tuple[float, float]:
    """Nanoseconds in float, and on codes."""
    elements = macs / layer.width
    real, codes = (dense * macs + each * elements for dense, each in zip(DENSE, LAYER_ELEMENT, strict=True))
    if not layer.is_convolution:
        numbers = math.prod(layer.shape)
        return real + WEIGHT_ELEMENT[0] * numbers, codes + WEIGHT_ELEMENT[1] * numbers
    inputs, outputs = layer.shape[1], layer.channels // layer.groups
    if layer.groups == 1:
        return real, codes
    if inputs == outputs == 1:
        result, on_codes = (
            dense * macs + each * elements for dense, each in zip(DEPTHWISE, LAYER_ELEMENT, strict=True)
        )
        return result, on_codes
    if inputs % BLOCK or outputs % BLOCK:
        real += (NARROW - DENSE[0]) * macs
    return real, codes + _gathered(layer, macs)


def _gathered(layer: Layer, macs: int) -> float:
    """Nanoseconds that a convolution on codes takes to gather the windows of its groups."""
    outputs = layer.channels // layer.groups
    if layer.groups == 1 or layer.shape[1] == outputs == 1:
        return 0.0
    return GATHERED * macs / layer.width / outputs


def _conversion(shape: tuple[int, ...], each: float) -> float:
    """Nanoseconds of a tensor's conversion, with the move of an image's channels."""
    is_image = len(shape) == IMAGE_AXES
    return (each + TURNED * is_image) * math.prod(shape) + STARTED * (1 + is_image)
