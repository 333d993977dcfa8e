"""Lowering: the float model and a plan become the one quantized graph that every target starts from.

Canonical form: a quantized tensor exists as codes (uint8) behind its QuantizeLinear and is read by float operators
through one DequantizeLinear. Layers and element-wise operators stand between DequantizeLinear and QuantizeLinear;
operators that only move codes work on the codes. Weights are int8 codes behind a DequantizeLinear along the channel
axis (bit widths are in `formats`), biases int32 codes at scale s_x · s_w. A Relu or Clip(0, …) in front of a
QuantizeLinear whose zero point is 0 disappears: saturation does its work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.errors import InternalError
from ptqc.formats import FLOAT8, FloatActivation, FloatRounding, Format, QuantParams
from ptqc.formats.base import Stated
from ptqc.ir.integer_arithmetic import accumulator_scale, bias_codes, bits_for, quantize, usable_scale
from ptqc.ir.layers import Layer
from ptqc.ir.lowered import PARTS, STEPS, Lowered
from ptqc.ir.nodes import constant
from ptqc.ir.operators import absorbs, clip_bounds, data_inputs, keeps_codes
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import PlanWithParameters

Insert = Callable[[Sequence[ir.Node]], None]


@dataclass(frozen=True)
class Lower:
    """Builds the quantized graph; the float model is left as it is."""

    name: ClassVar[str] = "lower"
    effect: ClassVar[Effect] = Effect.LOWER

    def apply(self, numbered: PlanWithParameters) -> Result[Lowered]:
        """The lowered graph of a plan with its tuned numbers."""
        plan = numbered.plan
        builder = _Builder(numbered.model.clone(), plan, numbered.tuned)
        builder.build()
        integer = {name: kernel.op_type for name, kernel in plan.integer.items()}
        codes = {tensor: str(value.name) for tensor, value in builder.codes.items()}
        constants, weights, cast = builder.layer_constants, builder.weights, builder.cast
        pairs = [(f"{one}{builder.mark}codes", f"{other}{builder.mark}codes") for one, other in builder.tied.items()]
        tied = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
        lowered = Lowered(builder.model, builder.formats, integer, codes, constants, weights, cast, builder.mark, tied)
        return Result(lowered, True)


@dataclass
class _Builder:
    """One lowering in progress.

    params: the plan's, and those of outputs in front of an activation that runs on codes. codes: quantized tensor ->
    its codes. tensor_of: dequantized value -> its tensor. real: weight -> its float value. tied: weight -> the table
    with its numbers.
    """

    model: ir.Model
    plan: Plan
    tuned: QuantizedParameters
    params: dict[str, QuantParams] = field(default_factory=dict)
    codes: dict[str, ir.Value] = field(default_factory=dict)
    tensor_of: dict[ir.Value, str] = field(default_factory=dict)
    real: dict[str, ir.Value] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    layer_constants: dict[str, str | None] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    cast: dict[str, FloatActivation] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    mark: str = "/"  # separates a name of the model from a part; grows until no name of the model ends in both

    def __post_init__(self) -> None:
        names = _names(self.model.graph)
        while any(name.endswith(f"{self.mark}{part}") for name in names for part in PARTS):
            self.mark += "/"
        self.params |= self.plan.params
        self.tied |= {weight.name: weight.table for weight in self.plan.weights if weight.table is not None}
        for node in self.model.graph:
            absorbed = absorbs(node) if node.outputs[0].name in self.plan.integer else None
            is_rounded = absorbed is not None and absorbed.outputs[0].name in self.params
            if absorbed is not None and is_rounded and not self._saturates(absorbed):
                # Saturation does not do its work, so it runs on codes of the same scale.
                self.params[str(node.outputs[0].name)] = self.plan.params[str(absorbed.outputs[0].name)]

    def build(self) -> None:
        graph = self.model.graph
        layers = {layer.name: layer for layer in self.plan.layers}
        nodes = list(graph)
        for weight in self.plan.weights:
            if (table := weight.table or (None if weight.layers else weight.name)) is not None:
                self._store_table(table, self.tuned.weights[table])
        first = graph[0]
        for value in graph.inputs:
            self._round(value, lambda added: graph.insert_before(first, added))
        for node in nodes:
            name = str(node.outputs[0].name)
            if name in layers:
                self._rewrite_layer(node, layers[name])
            if self._moves_codes(node):
                self._move_codes(node)
            else:
                self._settle(node)
        _drop_unused(self.model)
        opsets = [self.plan.formats[weight.name].opset for weight in self.plan.weights]
        opset = max([*opsets, *(form.opset for form in self.cast.values())], default=0)
        graph.opset_imports[""] = max(graph.opset_imports[""], opset)

    # Activations

    def _settle(self, node: ir.Node) -> None:
        """Round the node's outputs that are sites; an absorbed Relu or Clip goes."""
        graph = self.model.graph
        for value in node.outputs:
            self._round(value, lambda added: graph.insert_after(node, added))
        absorbed = absorbs(node)
        if absorbed is None or not self._saturates(absorbed):
            return
        value, tensor = node.outputs[0], str(absorbed.outputs[0].name)
        activated = absorbed.outputs[0]
        ir.convenience.replace_all_uses_with(activated, value, replace_graph_outputs=True)
        graph.remove(absorbed, safe=True)
        value.name, activated.name = tensor, None
        self._quantize(value, tensor, lambda added: graph.insert_after(node, added))

    def _saturates(self, activation: ir.Node) -> bool:
        params = self.params.get(str(activation.outputs[0].name))
        bounds = clip_bounds(activation)
        return params is not None and bounds is not None and params.zero_point == 0 and _reaches(bounds[1], params)

    def _round(self, value: ir.Value, insert: Insert) -> None:
        """Insert what the plan makes of a value behind it."""
        if value.name in self.params:
            self._quantize(value, str(value.name), insert)
        elif isinstance(params := self.plan.rounded.get(str(value.name)), FloatRounding):
            self._cast(value, str(value.name), params, insert)

    def _cast(self, value: ir.Value, tensor: str, params: FloatRounding, insert: Insert) -> None:
        """All that reads `value` in the graph reads it rounded."""
        there, back = params.nodes(value, self._constant)
        for node, part in ((there, "cast"), (back, "real")):
            node.outputs[0].name, node.outputs[0].shape = f"{tensor}{self.mark}{part}", value.shape
        for reader, index in tuple(value.uses()):  # a graph output stays as it is
            if reader is not there:
                reader.replace_input_with(index, back.outputs[0])
        insert([there, back])
        self.cast[tensor] = params.format

    def _quantize(self, value: ir.Value, tensor: str, insert: Insert) -> None:
        """Codes and their real value behind `value`; all readers move to the real value."""
        params = self.params[tensor]
        is_output = value.is_graph_output()
        scale, zero = self._parameters(params)
        to_codes = ir.node("QuantizeLinear", [value, scale, zero])
        codes = to_codes.outputs[0]
        codes.name, codes.dtype, codes.shape = f"{tensor}{self.mark}codes", ir.DataType.UINT8, value.shape
        self._dequantize(codes, value, tensor, keep=to_codes, insert=lambda added: insert([to_codes, *added]))
        if is_output:
            value.name = f"{tensor}{self.mark}float"
            self._restore_output(tensor)

    def _dequantize(
        self, codes: ir.Value, readers_of: ir.Value, tensor: str, keep: ir.Node | None, insert: Insert
    ) -> None:
        scale, zero = self._parameters(self.params[tensor])
        to_real = ir.node("DequantizeLinear", [codes, scale, zero])
        real = to_real.outputs[0]
        real.name, real.dtype, real.shape = f"{tensor}{self.mark}real", ir.DataType.FLOAT, readers_of.shape
        ir.convenience.replace_all_uses_with(readers_of, real, replace_graph_outputs=True)
        for node in (keep, to_real):
            if node is not None:
                node.replace_input_with(0, readers_of if node is keep else codes)
        insert([to_real])
        self.codes[tensor], self.tensor_of[real] = codes, tensor

    def _restore_output(self, tensor: str) -> None:
        """The graph output keeps its name."""
        for value in self.model.graph.outputs:
            if value.name == f"{tensor}{self.mark}real":
                value.name = tensor

    def _moves_codes(self, node: ir.Node) -> bool:
        outputs = [str(value.name) for value in node.outputs]
        if not keeps_codes(node) or any(name not in self.params for name in outputs):
            return False
        inputs = [self.tensor_of.get(value, "") for value in data_inputs(node)]
        if any(name not in self.codes for name in inputs):
            return False
        return len({self.params[name] for name in (*inputs, *outputs)}) == 1

    def _move_codes(self, node: ir.Node) -> None:
        """Run a node on the codes of its inputs."""
        tensor = str(node.outputs[0].name)
        params = self.params[tensor]
        data = set(data_inputs(node))
        for index, value in enumerate(node.inputs):
            if value in data:
                node.replace_input_with(index, self.codes[self.tensor_of[value]])
        node = self._on_codes(node, params)
        for value in node.outputs:
            tensor, is_output = str(value.name), value.is_graph_output()
            value.name, value.type = f"{tensor}{self.mark}codes", ir.TensorType(ir.DataType.UINT8)
            self._dequantize(
                value, value, tensor, keep=None, insert=lambda added: self.model.graph.insert_after(node, added)
            )
            if is_output:
                self._restore_output(tensor)

    def _on_codes(self, node: ir.Node, params: QuantParams) -> ir.Node:
        """The operator that does to codes what `node` does to real values."""
        graph = self.model.graph
        if (bounds := clip_bounds(node)) is not None:
            low, high = (quantize(np.asarray(np.clip(b, -3e38, 3e38)), params) for b in bounds)
            clip = ir.node("Clip", [node.inputs[0], self._constant(low), self._constant(high)])
            clip.outputs[0].name, clip.outputs[0].shape = node.outputs[0].name, node.outputs[0].shape
            ir.convenience.replace_nodes_and_values(graph, node, [node], [clip], node.outputs, clip.outputs)
            return clip
        if node.op_type == "Pad":
            zero = self._constant(np.uint8(params.zero_point))
            inputs = [*node.inputs[:2], zero, *node.inputs[3:]]
            pad = ir.node("Pad", inputs, attributes=node.attributes)
            pad.outputs[0].name, pad.outputs[0].shape = node.outputs[0].name, node.outputs[0].shape
            ir.convenience.replace_nodes_and_values(graph, node, [node], [pad], node.outputs, pad.outputs)
            return pad
        return node

    # Constants

    def _parameters(self, params: QuantParams) -> tuple[ir.Value, ir.Value]:
        return self._constant(np.float32(params.scale)), self._constant(np.uint8(params.zero_point))

    def _constant(self, array: np.ndarray | np.generic, name: str | None = None) -> ir.Value:
        """An initializer; equal nameless ones are one."""
        array = np.asarray(array)
        name = name or f"const/{array.dtype}/{array.shape}/{array.tobytes().hex()}"
        present = self.model.graph.initializers.get(name)
        if present is not None:
            return present
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)  # type: ignore[union-attr]
        self.model.graph.register_initializer(value)
        return value

    # Weights

    def _rewrite_layer(self, node: ir.Node, layer: Layer) -> None:
        solution = self.tuned.weights[layer.weight]
        bias = self.tuned.biases.get(layer.name)
        if layer.name in self.plan.integer:
            x = self.plan.params[layer.input]
            y = self.plan.params.get(layer.output)
            self._integer_layer(node, layer, solution, bias, x, y)
            return
        node.replace_input_with(1, self._weight(layer.weight, solution))
        if bias is not None:
            result = _in_steps(bias.astype(np.float32), node, solution)
            self._set_bias(node, self._constant(result, f"{layer.name}{self.mark}bias"))

    def _integer_layer(
        self,
        node: ir.Node,
        layer: Layer,
        solution: QuantizedWeight,
        bias: np.ndarray | None,
        x: QuantParams,
        y: QuantParams | None,
    ) -> None:
        scale = solution.scale if bias is None else usable_scale(solution.scale, bias, x)
        codes = self._constant(solution.codes, f"{layer.weight}{self.mark}codes")
        self.formats[str(codes.name)] = solution.form
        weight = self._dequantized(codes, scale, layer.channel_axis, f"{layer.name}{self.mark}weight", node)
        node.replace_input_with(1, weight)
        self.layer_constants[str(weight.name)] = None if bias is None else f"{layer.name}{self.mark}bias"
        self.weights[str(weight.name)] = layer.name
        if bias is not None:
            products = accumulator_scale(x, scale)
            integers = bias_codes(bias, products, bits_for(solution.form, bias, y))
            biases = self._constant(integers, f"{layer.name}{self.mark}bias_codes")
            self._set_bias(node, self._dequantized(biases, products, 0, f"{layer.name}{self.mark}bias", node))

    def _dequantized(self, codes: ir.Value, scale: np.ndarray, axis: int, name: str, before: ir.Node) -> ir.Value:
        scales = self._constant(scale.astype(np.float32), f"{name}{self.mark}scale")
        kind = ir.DataType.INT8 if codes.dtype is None else codes.dtype
        zeros = [self._constant(np.zeros(scale.shape, kind.numpy()))] if kind.is_integer() else []
        node = ir.node("DequantizeLinear", [codes, scales, *zeros], attributes={"axis": axis})
        node.outputs[0].name = name
        self.model.graph.insert_before(before, [node])
        return node.outputs[0]

    def _set_bias(self, node: ir.Node, bias: ir.Value) -> None:
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, bias)

    def _store_table(self, name: str, solution: QuantizedWeight) -> None:
        value = self.model.graph.initializers[name]
        if solution.form.is_given:
            return
        packed = self._weight(name, solution)
        ir.convenience.replace_all_uses_with(value, packed)

    def _weight(self, name: str, solution: QuantizedWeight) -> ir.Value:
        """A weight for operators that compute in float, made once in front of all nodes."""
        if name not in self.real:
            self.real[name] = self._real_weight(name, solution, self.model.graph[0])
            self.weights[str(self.real[name].name)] = name
        return self.real[name]

    def _turned(self, name: str, solution: QuantizedWeight, before: ir.Node) -> ir.Value:
        """A weight that is stored as it is, of the table that has its numbers."""
        table = self._weight(self.tied[name], solution.by_channel())
        if solution.axis == 0:
            return table
        node = ir.node("Transpose", [table], attributes={"perm": [1, 0]})
        node.outputs[0].name = f"{name}{self.mark}real"
        if (maker := table.producer()) is None:
            self.model.graph.insert_before(before, [node])
        else:
            self.model.graph.insert_after(maker, [node])
        return node.outputs[0]

    def _real_weight(self, name: str, solution: QuantizedWeight, before: ir.Node) -> ir.Value:
        form = solution.form
        if form.is_plain and name in self.tied:
            return self._turned(name, solution, before)
        if form.is_given:
            return self.model.graph.initializers[name]
        codes = self._constant(solution.codes, f"{name}{self.mark}codes")
        if not form.is_plain:
            self.formats[str(codes.name)] = form
        if form.is_scaled:
            return self._dequantized(codes, solution.scale, solution.axis, f"{name}{self.mark}real", before)
        builder = _Unpacked(codes, lambda: self._constant(solution.scale, f"{name}{self.mark}values"))
        real_weight = form.unpack(builder, ir.DataType.FLOAT)
        for place, node in enumerate(builder.nodes):
            node.outputs[0].name = f"{name}{self.mark}{'real' if node.outputs[0] is real_weight else STEPS[place]}"
        self.model.graph.insert_before(before, builder.nodes)
        return real_weight


@dataclass
class _Unpacked:
    """Where a format writes the nodes that make a weight of codes which have its shape already."""

    codes: ir.Value
    values: Callable[[], ir.Value]
    nodes: list[ir.Node] = field(default_factory=list)

    def add(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        self.nodes.append(ir.node(op_type, inputs, attributes=attributes))
        return self.nodes[-1].outputs[0]

    def constant(self, value: object, dtype: type) -> ir.Value:
        return self.add("Constant", [], value=ir.tensor(np.array(value, dtype)))

    def array(self, name: str) -> ir.Value:
        raise InternalError(f"{name!r} is asked for of a weight that is not packed")

    def indices(self, name: str, bits: int) -> ir.Value:
        raise InternalError(f"indices {name!r} of {bits} bits are asked for of a weight that is not packed")

    def bits(self, name: str, shape: Stated) -> ir.Value:
        raise InternalError(f"bits {name!r} of the shape {shape.name!r} are asked for of a weight that is not packed")

    def single_bits(self, name: str) -> ir.Value:
        raise InternalError(f"single bits {name!r} are asked for of a weight that is not packed")

    def entries(self, name: str, index: ir.Value) -> ir.Value:
        raise InternalError(f"{index.name!r} of {name!r} is asked for of a weight that is not packed")

    def stored(self) -> ir.Value:
        return self.codes

    def trimmed(self, values: ir.Value) -> ir.Value:
        return values

    def reshaped(self, values: ir.Value) -> ir.Value:
        return values

    def shaped(self, flat: ir.Value) -> ir.Value:
        return flat

    def affine(self, step: int, lowest: int, to: ir.DataType) -> ir.Value:
        stepped = self.add("Mul", [self.add("Cast", [self.codes], to=to), self.constant(step, to.numpy().type)])
        return self.add("Add", [stepped, self.constant(lowest, to.numpy().type)])

    def looked_up(self) -> ir.Value:
        return self.add("Gather", [self.values(), self.add("Cast", [self.codes], to=ir.DataType.INT32)])


def _reaches(bound: float, params: QuantParams) -> bool:
    """Whether codes saturate at or below the activation's upper bound (or within half a step of it)."""
    return params.high <= bound + params.scale / 2


def _names(graph: ir.Graph) -> set[str]:
    nodes = ir.traversal.RecursiveGraphIterator(graph)
    return {*graph.initializers, *(str(v.name) for v in graph.inputs), *(str(v.name) for n in nodes for v in n.outputs)}


def _in_steps(bias: np.ndarray, layer: ir.Node, solution: QuantizedWeight) -> np.ndarray:
    """The bias of a layer in float. Of one that multiplies FP8 it is in steps of both scales.

    ONNX Runtime rounds it to these where it stands behind a DequantizeLinear on either side; rounded already, it is the
    same to whoever runs the file.
    """
    maker = layer.inputs[0].producer() if layer.inputs[0] is not None else None
    if solution.form != FLOAT8 or maker is None or maker.op_type != "DequantizeLinear":
        return bias
    scale = constant(maker.inputs[1])
    assert scale is not None
    steps = scale * solution.scale.reshape(-1).astype(np.float32)
    return np.asarray(np.rint(bias / steps) * steps, np.float32)


def _drop_unused(model: ir.Model) -> None:
    common.RemoveUnusedNodesPass()(model)
