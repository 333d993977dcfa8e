"""QDQ models of symmetric activations, made of those of uint8 whose zero point is 128: codes of int8 around 0.

TensorRT quantizes the inputs of layers and of sums, and fuses what lies between in its own precision; its biases are
real values, which make up for other zero points.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime.names import short_names
from ptqc.codegen.qdq.edits import copied, drop_unread, set_nodes
from ptqc.codegen.qdq.rules import LAYERS, SUMS, TO_CODES, TO_REAL, QdqGraph
from ptqc.codegen.qdq.shifts import shift_values
from ptqc.ir.protos import value_names

MIDDLE = 128


def signed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same numbers as codes of int8: code − 128, with zero points less 128."""
    result = copied(model)
    graph = QdqGraph(result)
    zeros = {name: np.asarray(graph.array(name)) for node in graph.conversions() for name in node.input[2:3]}
    for name, zero in zeros.items():
        less = np.asarray(zero.astype(np.int16) - MIDDLE, np.int8)
        graph.constants[name].CopyFrom(numpy_helper.from_array(less, name))
    return result


def for_tensorrt(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with conversions at the inputs of layers and sums alone, Relu in front of them, and real biases."""
    result = signed(model)
    _drop_conversions(result)
    drop_unread(result)
    _write_relu(result)
    _write_real_biases(result)
    shift_values(result)
    drop_unread(result)
    return result


def _drop_conversions(model: onnx.ModelProto) -> None:
    graph = QdqGraph(model)
    outputs = {value.name for value in model.graph.output}
    sources: dict[str, str] = {}  # real value behind codes -> the value that was rounded to these
    for node in graph.nodes:
        if node.op_type != TO_CODES:
            continue
        reals = [reader.output[0] for reader in graph.readers.get(node.output[0], ())]
        readers = [reader for real in reals for reader in graph.readers.get(real, ())]
        if not any(map(_multiplies_or_adds, readers)):
            sources |= dict.fromkeys(reals, node.input[0])
    remaining = []
    for node in graph.nodes:
        if node.op_type == TO_REAL and node.output[0] in sources:
            if node.output[0] in outputs:
                remaining.append(helper.make_node("Identity", [_source(node.output[0], sources)], [node.output[0]]))
            continue
        node.input[:] = [_source(name, sources) for name in node.input]
        remaining.append(node)
    set_nodes(model, remaining)


def _multiplies_or_adds(node: onnx.NodeProto) -> bool:
    return not node.domain and (node.op_type in LAYERS or node.op_type in SUMS)


def _source(name: str, sources: Mapping[str, str]) -> str:
    while name in sources:
        name = sources[name]
    return name


def _write_relu(model: onnx.ModelProto) -> None:
    """Clip from 0 on to where codes end is Relu, since rounding to these does the rest."""
    graph = QdqGraph(model)
    outputs = {value.name for value in model.graph.output}
    for node in graph.nodes:
        readers = graph.readers.get(node.output[0], ())
        is_rounded = bool(readers) and all(reader.op_type == TO_CODES for reader in readers)
        if node.op_type != "Clip" or len(node.input) < 3 or not is_rounded or not outputs.isdisjoint(node.output):
            continue
        low, high = (graph.array(name) for name in node.input[1:])
        steps = [[np.asarray(graph.array(name), np.float32) for name in reader.input[1:]] for reader in readers]
        ends = [(np.iinfo(np.int8).max - zero) * scale for scale, zero in steps]
        if low == 0 and high is not None and all(high >= end * (1 - 1e-6) for end in ends):
            node.op_type = "Relu"
            del node.input[1:]


def _write_real_biases(model: onnx.ModelProto) -> None:
    graph, fresh = QdqGraph(model), short_names(1, frozenset(value_names(model.graph)))
    for node in graph.nodes:
        bias = graph.makers.get(node.input[2]) if node.op_type in LAYERS and len(node.input) > 2 else None
        if bias is None or not graph.is_weight(bias):
            continue
        codes, scale = (np.asarray(graph.array(name)) for name in bias.input[:2])
        real = np.asarray(codes.astype(np.float64) * scale, np.float32)
        node.input[2] = next(fresh)
        model.graph.initializer.append(numpy_helper.from_array(real, node.input[2]))
