"""Packing the lowered graph into the file that is delivered.

Each weight becomes its bit planes and one call that rebuilds it; equal initializers are stored once; attributes that
say what is the default anyway, names and inner shapes go; opset and IR version are the lowest the operators allow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ptqc import zipmaps
from ptqc.codegen.onnxruntime import constants, functions, names
from ptqc.codegen.onnxruntime.inline import inlined
from ptqc.formats import Family, Format
from ptqc.lowered import Lowered
from ptqc.protos import subgraphs

LOWEST_OPSET = 18  # model-local functions with the bit operators
PRODUCER = "ptqc"


@dataclass(frozen=True)
class Exported:
    """The file as a proto, and how each inner value of the lowered graph is called in it.

    packed: the same with calls of the functions, which the file itself has only where they are not inlined.
    """

    proto: onnx.ModelProto
    functions: tuple[functions.Function, ...]
    renamed: Mapping[str, str]
    packed: onnx.ModelProto

    @property
    def data(self) -> bytes:
        """The bytes of the file; the same graph always gives the same bytes."""
        return bytes(self.proto.SerializeToString(deterministic=True))


def export(lowered: Lowered, interface: ir.Model, name_length: int = 1, *, inline: bool = False) -> Exported:
    """Pack a lowered graph.

    interface: the model as the user gave it: inputs, outputs and metadata are kept as there. name_length: of inner
    names at least, so that plans of one model have names of one length. inline: without model-local functions.
    """
    proto = ir.to_proto(lowered.model)
    packer = _Packer(proto.graph, lowered)
    nodes = packer.nodes()
    used = packer.used
    merged = _merged(proto.graph, nodes, packer)  # renames inputs of the nodes, so it comes first
    graph = onnx.GraphProto(name="g", node=nodes, initializer=merged)
    original = ir.to_proto(interface).graph
    graph.input.extend(original.input)
    maps = zipmaps.remembered(interface)
    graph.output.extend(value for value in original.output if value.name not in maps)
    _strip(graph)
    before = _value_names(graph)
    names.shorten(graph, max(name_length, names.name_length(len(before))), taken=maps)
    renamed = dict(zip(before, _value_names(graph), strict=True))
    zipmaps.put_back(graph, original.output, maps, renamed)
    packed = _model(graph, used, interface)
    return Exported(inlined(packed) if inline else packed, tuple(sorted(used)), renamed, packed)


def _model(graph: onnx.GraphProto, used: Iterable[functions.Function], interface: ir.Model) -> onnx.ModelProto:
    opset = max(LOWEST_OPSET, _newest_operator(graph, interface.opset_imports[""]))
    imports = [helper.make_opsetid("", opset)]
    protos = [function.to_proto(opset) for function in sorted(used)]
    maps = {zipmaps.DOMAIN: zipmaps.VERSION} if zipmaps.remembered(interface) else {}
    foreign = sorted(item for item in {**maps, **interface.opset_imports}.items() if item[0])
    imports += [helper.make_opsetid(*item) for item in foreign]
    if protos:
        imports.append(helper.make_opsetid(functions.DOMAIN, 1))
    version = helper.find_min_ir_version_for(imports[:1])
    model = onnx.ModelProto(ir_version=max(version, 8), producer_name=PRODUCER, graph=graph, opset_import=imports)
    model.functions.extend(protos)
    for key, value in interface.metadata_props.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _newest_operator(graph: onnx.GraphProto, opset: int) -> int:
    """The opset in which the newest of the graph's operators got its present meaning."""
    newest = LOWEST_OPSET
    for node in graph.node:
        if not node.domain:
            newest = max(newest, onnx.defs.get_schema(node.op_type, max(opset, LOWEST_OPSET), "").since_version)
        for inner in subgraphs(node):
            newest = max(newest, _newest_operator(inner, opset))
    return newest


@dataclass
class _Packer:
    """Replaces the constants of a lowered graph by calls. `arrays`: new initializers by name."""

    graph: onnx.GraphProto
    lowered: Lowered
    used: set[functions.Function] = field(default_factory=set)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.readers: dict[str, onnx.NodeProto] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, node)

    def share(self, array: np.ndarray) -> str:
        """The name of an initializer with this content."""
        name = f"packed/{len(self.arrays)}"
        self.arrays[name] = array
        return name

    def nodes(self) -> list[onnx.NodeProto]:
        """The graph's nodes with packed constants."""
        biases = {bias for bias in self.lowered.layer_constants.values() if bias is not None}
        kept = []
        for node in self.graph.node:
            form = self.lowered.formats.get(node.input[0]) if len(node.input) else None
            if node.output and node.output[0] in biases:
                continue
            if form is not None and node.op_type == "DequantizeLinear":
                kept.append(self._take(self._weight(node, form)))
            elif form is not None and form.family == Family.PALETTE:
                continue  # the Cast in front of the Gather below
            elif (source := self._palette_of(node)) is not None:
                kept.append(self._take(self._palette(node, source)))
            else:
                kept.append(node)
        return kept

    def _take(self, constant: constants.Constant) -> onnx.NodeProto:
        self.used.add(constant.function)
        return constant.call

    def _array(self, name: str) -> np.ndarray:
        return np.asarray(numpy_helper.to_array(self.initializers[name]))

    def _weight(self, node: onnx.NodeProto, form: Format) -> constants.Constant:
        codes, scale = self._array(node.input[0]), self._array(node.input[1])
        axis, output = int(node.attribute[0].i), node.output[0]
        if output not in self.lowered.layer_constants:
            return constants.weight(codes, form, scale, axis, output, self.share, as_float=True)
        bias = self.lowered.layer_constants[output]
        if bias is None:
            return constants.weight(codes, form, scale, axis, output, self.share, as_float=False)
        integers = self._array(self.makers[bias].input[0])
        step = self.makers[self.readers[output].input[0]].input[1]
        return constants.layer(codes, form, scale, integers, step, axis, [output, bias], self.share)

    def _palette_of(self, node: onnx.NodeProto) -> str | None:
        """Name of the palette codes that a Gather looks up, if it is one of ours."""
        if node.op_type != "Gather" or node.input[1] not in self.makers:
            return None
        cast = self.makers[node.input[1]]
        return cast.input[0] if cast.op_type == "Cast" and cast.input[0] in self.lowered.formats else None

    def _palette(self, node: onnx.NodeProto, source: str) -> constants.Constant:
        values = self._array(node.input[0])
        return constants.palette(self._array(source), self.lowered.formats[source], values, node.output[0], self.share)


def _merged(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], packer: _Packer) -> list[onnx.TensorProto]:
    """The initializers still read, equal ones once; the nodes are pointed at the survivors."""
    tensors = {t.name: t for t in graph.initializer}
    tensors |= {name: constants.tensor(name, array) for name, array in packer.arrays.items()}
    first: dict[tuple[object, ...], str] = {}
    alias: dict[str, str] = {}
    kept = []
    outputs = {value.name for value in graph.output}
    for name in dict.fromkeys(_reads(nodes)):
        if name not in tensors:
            continue
        raw = constants.tensor(name, numpy_helper.to_array(tensors[name]))
        key = (raw.data_type, tuple(raw.dims), raw.raw_data, tuple(raw.string_data))
        alias[name] = first.setdefault(key, name) if name not in outputs else name
        if alias[name] == name:
            kept.append(raw)
    _point_at(nodes, alias)
    return kept


def _reads(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield from node.input
        for inner in subgraphs(node):
            yield from _reads(inner.node)
            yield from (value.name for value in inner.output)


def _point_at(nodes: Iterable[onnx.NodeProto], alias: Mapping[str, str]) -> None:
    for node in nodes:
        node.input[:] = [alias.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            _point_at(inner.node, alias)


def _strip(graph: onnx.GraphProto) -> None:
    """Attributes of convolutions and pools that equal their default."""
    for node in graph.node:
        for inner in subgraphs(node):
            _strip(inner)
        if node.op_type not in ("Conv", "MaxPool", "AveragePool", "Gemm", "Flatten", "Concat", "Softmax", "Cast"):
            continue
        kept = [attribute for attribute in node.attribute if not _is_default(node.op_type, attribute)]
        del node.attribute[:]
        node.attribute.extend(kept)


def _is_default(op_type: str, attribute: onnx.AttributeProto) -> bool:
    value = helper.get_attribute_value(attribute)
    match attribute.name:
        case "dilations" | "strides":
            return all(v == 1 for v in value)
        case "pads":
            return all(v == 0 for v in value)
        case "kernel_shape":
            return op_type == "Conv"  # the weight has it
        case "group":
            return bool(value == 1)
        case "auto_pad":
            return bool(value in (b"NOTSET", b""))
        case "ceil_mode" | "storage_order" | "count_include_pad" | "transA" | "transB":
            return bool(value == 0)
        case "alpha" | "beta":
            return op_type == "Gemm" and bool(value == 1.0)
        case "saturate":
            return op_type == "Cast"
    return False


def _value_names(graph: onnx.GraphProto) -> list[str]:
    """Every value name in order of appearance."""
    found = [t.name for t in graph.initializer]
    found += [value.name for value in graph.input]
    found += [name for node in graph.node for name in (*node.input, *node.output) if name]
    return list(dict.fromkeys(found))
