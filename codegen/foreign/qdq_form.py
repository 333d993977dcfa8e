"""The lowered graph in the form that every consumer of QDQ models reads.

Operators stand between DequantizeLinear and QuantizeLinear, those that only move codes too; outputs that a layer gives
in float are rounded to 8 bits, so that it is a whole QDQ unit; weights are int8 with a scale per channel, whatever
their packed format was, biases int32; zero points are written out; shapes are fixed; there are no functions. The codes
are those of the packed file.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ptqc.codegen.onnxruntime.export import (
    PRODUCER,
    Exported,
    array_of,
    newest_operator,
    point_at,
    shared_constants,
)
from ptqc.codegen.onnxruntime.float_layers import with_float_layers, with_products_apart
from ptqc.codegen.onnxruntime.names import short_names
from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import QuantParams
from ptqc.formats.base import LOWEST_OPSET
from ptqc.ir.external import tensor
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import constant
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import value_names

Part = TypeVar("Part", ir.Value, ir.Node)

ROUNDING, CONVERSIONS = "QuantizeLinear", named(Trait.CONVERTS)
RECURRENT, LAYERS = named(Trait.RECURRENT), named(Trait.LAYER)
MOVED = "moved"  # what a value is called in front of its codes, where an operator moved them


def open_outputs(lowered: Lowered) -> list[str]:
    """The outputs of the graph that an integer layer gives in float, by name."""
    names = [str(value.name) for value in lowered.model.graph.outputs]
    return [name for name in names if name in lowered.integer and name not in lowered.codes]


def qdq_model(
    lowered: Lowered,
    exported: Exported,
    feeds: Feeds,
    results: Feeds,
    rounded: Mapping[str, QuantParams],
    *,
    wide: bool = False,
) -> onnx.ModelProto:
    """The QDQ form of a lowered graph.

    feeds, results: a sample and the outputs of the file on it, whose shapes inputs and outputs get. rounded: parameters
    of the outputs that layers give in float, by name. wide: layers in float keep the codes of their
    weights, since they will read codes of 16 bits.
    """
    model = lowered.model.clone()
    builder = _Builder(model, lowered.mark)
    stored_as_codes = {*lowered.layer_constants, *filter(None, lowered.layer_constants.values())}
    builder.multiply_scales(stored_as_codes | (_weights(model) if wide else set()))
    builder.wrap_moves()
    for name, params in rounded.items():
        builder.round_output(name, params)
    nodes = list(with_products_apart(lowered, with_float_layers(lowered, map(ir.to_proto, model.graph))))
    return _assembled(model, nodes, exported.delivered, {**feeds, **results})


@dataclass
class _Builder:
    """Changes to a copy of a lowered graph."""

    model: ir.Model
    mark: str

    def wrap_moves(self) -> None:
        """Let operators that move codes move real values, between a DequantizeLinear and a QuantizeLinear."""
        graph = self.model.graph
        params: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for node in list(graph):
            if node.op_type == ROUNDING:
                params[node.outputs[0]] = (_required(node.inputs[1]), _required(node.inputs[2]))
            elif node.op_type not in CONVERSIONS and (codes := [v for v in node.inputs if v in params]):
                scale, zero = params[_required(codes[0])]
                for index, value in enumerate(node.inputs):
                    if value in params:
                        node.replace_input_with(index, self._real(_required(value), params[_required(value)]))
                    elif value is not None and value.dtype == ir.DataType.UINT8:
                        node.replace_input_with(index, self._real_constant(value, scale, zero))
                for value in node.outputs:
                    if value.dtype == ir.DataType.UINT8:
                        params[self._round(value, scale, zero)] = (scale, zero)

    def multiply_scales(self, stored_as_codes: Set[str]) -> None:
        """Make weights of layers in float, and tables, by Cast and Mul: codes · scale, as DequantizeLinear makes them.

        In front of a product in float, ONNX Runtime makes of DequantizeLinear and MatMul an operator that rounds
        activations to 8 bits. stored_as_codes: weights and biases that stay codes.
        """
        graph = self.model.graph
        for node in list(graph):
            codes = constant(node.inputs[0]) if node.op_type in CONVERSIONS and node.op_type != ROUNDING else None
            real = node.outputs[0]
            if codes is None or real.name in stored_as_codes or codes.dtype != np.int8:
                continue
            scale = np.asarray(constant(node.inputs[1]))
            axis = node.attributes.get_int("axis", 1)
            shape = [-1 if place == axis else 1 for place in range(codes.ndim)] if scale.ndim else []
            cast = ir.node("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT})
            cast.outputs[0].name = f"{real.name}{self.mark}cast"
            steps = [cast]
            # OpenVINO keeps Cast and Mul for each run, and its recurrent operators take constants alone: it folds this.
            if any(reader.op_type in RECURRENT for reader in real.consumers()):
                steps.append(ir.node("Neg", cast.outputs))
                steps[-1].outputs[0].name, scale = f"{real.name}{self.mark}negative", -scale
            product = ir.node("Mul", [steps[-1].outputs[0], self._constant(scale.reshape(shape))])
            graph.insert_before(node, [*steps, product])
            ir.convenience.replace_nodes_and_values(graph, node, [node], [], [real], product.outputs)
            product.outputs[0].name, real.name = real.name, None

    def round_output(self, name: str, params: QuantParams) -> None:
        """Round a float output of the graph to codes."""
        graph = self.model.graph
        (place,) = (index for index, value in enumerate(graph.outputs) if value.name == name)
        value = graph.outputs[place]
        scale, zero = self._constant(np.float32(params.scale)), self._constant(np.uint8(params.zero_point))
        value.name = f"{name}{self.mark}float"
        rounded = ir.node(ROUNDING, [value, scale, zero])
        real = ir.node("DequantizeLinear", [rounded.outputs[0], scale, zero])
        rounded.outputs[0].name, real.outputs[0].name = f"{name}{self.mark}codes", name
        real.outputs[0].type, real.outputs[0].shape = value.type, value.shape
        for reader, index in tuple(value.uses()):
            if reader is not rounded:
                reader.replace_input_with(index, real.outputs[0])
        graph.insert_after(_required(value.producer()), [rounded, real])
        graph.outputs[place] = real.outputs[0]

    def _real(self, codes: ir.Value, params: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The real value of codes."""
        for reader in codes.consumers():
            if reader.op_type in CONVERSIONS:
                return reader.outputs[0]
        node = ir.node("DequantizeLinear", [codes, *params])
        node.outputs[0].name = f"{str(codes.name).removesuffix('codes')}real"
        self.model.graph.insert_after(_required(codes.producer()), [node])
        return node.outputs[0]

    def _round(self, value: ir.Value, scale: ir.Value, zero: ir.Value) -> ir.Value:
        """The codes of what is a real value from now on."""
        node = ir.node(ROUNDING, [value, scale, zero])
        codes = node.outputs[0]
        codes.name, codes.type, codes.shape = value.name, value.type, value.shape
        value.name = f"{str(value.name).removesuffix('codes')}{MOVED}"
        value.type = ir.TensorType(ir.DataType.FLOAT)  # the old one is that of the graph that this is a copy of
        for reader, index in tuple(value.uses()):
            if reader is not node:
                reader.replace_input_with(index, codes)
        self.model.graph.insert_after(_required(value.producer()), [node])
        return codes

    def _real_constant(self, value: ir.Value, scale: ir.Value, zero: ir.Value) -> ir.Value:
        """What a code means that is a constant: the bound of a Clip, or what a Pad adds."""
        code, step, lowest = (np.asarray(constant(each)) for each in (value, scale, zero))
        return self._constant((code.astype(np.float32) - lowest.astype(np.float32)) * step)

    def _constant(self, array: np.ndarray | np.generic) -> ir.Value:
        array = np.asarray(array)
        name = f"const/{array.dtype}/{array.shape}/{array.tobytes().hex()}"
        present = self.model.graph.initializers.get(name)
        if present is None:
            present = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            self.model.graph.register_initializer(present)
        return present


def _weights(model: ir.Model) -> set[str]:
    """What layers alone read as their weights."""
    uses = {value: value.uses() for node in model.graph for value in node.outputs}
    return {
        str(value.name)
        for value, readers in uses.items()
        if readers and all(reader.op_type in LAYERS and place == 1 for reader, place in readers)
    }


def _required(part: Part | None) -> Part:
    assert part is not None
    return part


def _assembled(
    model: ir.Model, nodes: list[onnx.NodeProto], packed: onnx.ModelProto, arrays: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """The file: what the packed one says of itself, the nodes, and each constant once."""
    result = onnx.ModelProto(producer_name=PRODUCER, domain=packed.domain, model_version=packed.model_version)
    result.doc_string, result.graph.doc_string = packed.doc_string, packed.graph.doc_string
    result.graph.name = packed.graph.name
    result.metadata_props.extend(packed.metadata_props)
    result.graph.input.extend(_fixed(packed.graph.input, arrays))
    result.graph.output.extend(_fixed(packed.graph.output, arrays))
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(_constants(model, result.graph))
    opset = max(LOWEST_OPSET, newest_operator(result.graph, model.graph.opset_imports[""]))
    result.opset_import.append(helper.make_opsetid("", opset))
    result.opset_import.extend(
        helper.make_opsetid(*item) for item in sorted(model.graph.opset_imports.items()) if item[0]
    )
    result.ir_version = max(helper.find_min_ir_version_for(result.opset_import[:1]), 8)
    return result


def _fixed(values: Iterable[onnx.ValueInfoProto], arrays: Mapping[str, np.ndarray]) -> Iterator[onnx.ValueInfoProto]:
    """Inputs or outputs with the sizes that these arrays have."""
    for value in values:
        kind = value.type.tensor_type.elem_type
        yield helper.make_tensor_value_info(value.name, kind, arrays[value.name].shape, value.doc_string)


def _constants(model: ir.Model, graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """The constants that the nodes read, equal ones once and with short names; the nodes are pointed at these."""

    def tensor_of(name: str) -> onnx.TensorProto | None:
        value = model.graph.initializers.get(name)
        return None if value is None or value.const_value is None else tensor(name, array_of(value.const_value))

    constants = shared_constants(graph, graph.node, tensor_of)
    outputs = {value.name for value in graph.output}
    fresh = short_names(1, frozenset(value_names(graph)))
    short = {each.name: next(fresh) for each in constants if each.name not in outputs}
    for each in constants:
        each.name = short.get(each.name, each.name)
    point_at(graph.node, short)
    return constants
