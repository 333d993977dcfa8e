"""Outputs that are maps, one from class labels to scores for each sample: what a ZipMap of `ai.onnx.ml` makes.

skl2onnx ends classifiers so. A ZipMap computes nothing, and few libraries know maps: inside, the output is the tensor
of scores under the same name, and the metadata of the graph hold its labels. The written file has the ZipMap again.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto, helper

from ptqc.errors import ModelError
from ptqc.ir.protos import reads

DOMAIN, OPERATOR = "ai.onnx.ml", "ZipMap"
# Every version of the domain has it as in the first.
VERSION = 1
# Of the graph's metadata.
KEY = "ptqc.zipmaps"
INTEGERS, STRINGS = "classlabels_int64s", "classlabels_strings"

# In the order of the scores.
Labels = list[int] | list[str]
Maps = Mapping[str, Labels]


def labels(graph: onnx.GraphProto) -> dict[str, Labels]:
    """Class labels by output: of each ZipMap that makes an output which nothing else reads."""
    nodes = [node for node in graph.node if (node.domain, node.op_type) == (DOMAIN, OPERATOR)]
    read = set[str]().union(*(reads(node) for node in graph.node)) if nodes else set[str]()
    outputs = {value.name for value in graph.output if value.type.sequence_type.elem_type.HasField("map_type")} - read
    return {name: _labels(node) for node in nodes for name in node.output if name in outputs}


def _labels(node: onnx.NodeProto) -> Labels:
    attributes, absent = {(each.name, each.type): each for each in node.attribute}, AttributeProto()
    integers = attributes.get((INTEGERS, AttributeProto.INTS), absent).ints
    strings = attributes.get((STRINGS, AttributeProto.STRINGS), absent).strings
    try:
        result: Labels = list(integers) or [label.decode() for label in strings]
    except UnicodeDecodeError as error:
        raise ModelError(f"the ZipMap that gives {node.output[0]!r} has labels that are not text: {error}") from error
    if not result:
        raise ModelError(f"the ZipMap that gives {node.output[0]!r} has no class labels; export the model again")
    if not node.input:
        raise ModelError(f"the ZipMap that gives {node.output[0]!r} has no scores; export the model again")
    return result


def take_off(graph: onnx.GraphProto) -> dict[str, Labels]:
    """Let the outputs that are maps be the tensors of scores; what `labels` says."""
    result = labels(graph)
    known = (value for value in (*graph.value_info, *graph.input, *graph.output))
    types = {value.name: value.type for value in known if value.type.tensor_type.HasField("shape")}
    outputs = {value.name: value for value in graph.output}
    for node in graph.node:
        if node.output and node.output[0] in result:
            name = node.output[0]
            scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, len(result[name])])
            outputs[name].type.CopyFrom(types.get(node.input[0], scores))
            node.CopyFrom(helper.make_node("Identity", node.input, [name]))
    return result


def as_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model whose outputs that are maps are tensors; the model itself where it has none."""
    if not labels(model.graph):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    take_off(copy.graph)
    return copy


def load(path: Path) -> ir.Model:
    """A file, with tensors in place of maps; external data stay where they are."""
    return ir.from_proto(as_tensors(onnx.load(path, load_external_data=False)))


def remember(model: ir.Model, maps: Maps) -> None:
    """Keep what was taken off with the model."""
    if maps:
        model.graph.metadata_props[KEY] = json.dumps(maps)


def remembered(model: ir.Model) -> dict[str, Labels]:
    """What was taken off, by output; empty for a model without maps."""
    result: dict[str, Labels] = json.loads(model.graph.metadata_props.get(KEY, "{}"))
    return result


def put_back(
    graph: onnx.GraphProto, outputs: Iterable[onnx.ValueInfoProto], maps: Maps, names: Mapping[str, str]
) -> None:
    """Let a graph give these outputs, as maps where they were such. names: of the tensors of scores, by output."""
    del graph.output[:]
    graph.output.extend(original_output(value, maps) for value in outputs)
    for name, classes in maps.items():
        node = helper.make_node(OPERATOR, [names[name]], [name], domain=DOMAIN)
        node.attribute.append(helper.make_attribute(_kind(classes), classes))
        graph.node.append(node)


def original_output(value: onnx.ValueInfoProto, maps: Maps) -> onnx.ValueInfoProto:
    """An output as the original file declares it."""
    if value.name not in maps:
        return value
    key = TensorProto.INT64 if _kind(maps[value.name]) == INTEGERS else TensorProto.STRING
    one = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    return helper.make_value_info(value.name, helper.make_sequence_type_proto(one))


def _kind(classes: Labels) -> str:
    """The attribute of a ZipMap that holds such labels."""
    return INTEGERS if isinstance(classes[0], int) else STRINGS
