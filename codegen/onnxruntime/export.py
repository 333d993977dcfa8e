"""Packing the lowered graph into the file that is delivered.

Each weight becomes its bit planes and one call that rebuilds it; equal initializers are stored once; attributes that
say what is the default anyway, names and inner shapes go; opset and IR version are the lowest the operators allow.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime import constants, matmul_nbits, names, unpack_functions
from ptqc.codegen.onnxruntime.float_layers import with_float_layers, with_products_apart
from ptqc.codegen.onnxruntime.float_pools import with_float_pools
from ptqc.codegen.onnxruntime.lookup import with_lookups
from ptqc.codegen.onnxruntime.matmul_nbits import BlockProduct, block_products, picked_in_blocks, picks_in_blocks
from ptqc.codegen.onnxruntime.unpack import inlined
from ptqc.codegen.onnxruntime.unpack_functions import Pick, picks
from ptqc.formats.base import LOWEST_OPSET
from ptqc.ir import protos, recorded, zipmaps
from ptqc.ir.external import SpilledTensors, content, is_in_files, is_in_two, message_of, size_of, tensor, write_split
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import subgraphs
from ptqc.ir.quantized_weight import QuantizedWeight

PRODUCER = "ptqc"
FILE = "model.onnx"
UNNAMED = "g"  # a graph must have a name
SPELLED_OUT = named(Trait.SPELLED_OUT)
CONVERSIONS, WITHOUT_ZERO_POINTS = named(Trait.CONVERTS), named(Trait.IMPLIED_ZERO)


@dataclass(frozen=True)
class Exported:
    """The file as a proto, and how each inner value of the lowered graph is called in it.

    The proto of a model beyond memory refers to its large tensors, which are in a file as long as this object is.

    packed: the same with calls of the functions, which the file itself has only where they are not inlined. picks: by
    table, by its name in the lowered graph, what picks rows of it where the file has no more of it than these. blocks:
    by weight, by its name in the lowered graph, a product that reads it in blocks. own: by a value's name in the file,
    the model's name of what it holds, for those that nodes make and that are called otherwise there. spilled: holds the
    large tensors that the proto refers to. recorded: inputs of the proto that the delivered file does not have: it
    computes itself what they stand for.
    """

    proto: onnx.ModelProto
    functions: tuple[unpack_functions.UnpackFunction, ...]
    renamed: Mapping[str, str]
    packed: onnx.ModelProto
    picks: Mapping[str, Pick] = field(default_factory=dict)
    blocks: Mapping[str, BlockProduct] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    spilled: SpilledTensors | None = None
    recorded: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _released(self) -> tuple[onnx.ModelProto, Mapping[str, str]]:
        return recorded.release(self.proto, self.recorded) if self.recorded else (self.proto, {})

    @property
    def delivered(self) -> onnx.ModelProto:
        """What is delivered of the proto."""
        return self._released[0]

    @property
    def recorded_values(self) -> Mapping[str, str]:
        """What each recorded input stands for, by its name in the delivered file."""
        return self._released[1]

    @property
    def data(self) -> bytes:
        """The bytes of the file as one; the same graph always gives the same bytes."""
        return message_of(self.delivered)

    @cached_property
    def size(self) -> int:
        """Bytes of the file, with those of the one of its tensors where it is in two."""
        return size_of(self.delivered, FILE)

    def files(self, folder: Path) -> dict[str, bytes | Path]:
        """What is delivered, by name. folder: takes what is in two files."""
        if not is_in_two(self.proto):
            return {FILE: self.data}
        return {path.name: path for path in write_split(self.delivered, folder / FILE)}


def export(
    lowered: Lowered,
    interface: ir.Model,
    name_length: int = 1,
    *,
    inline: bool = False,
    is_fast: bool = True,
    in_blocks: type[BlockProduct] | None = None,
    pack: constants.Pack = constants.packed,
) -> Exported:
    """Pack a lowered graph.

    interface: the model as the user gave it: inputs, outputs, names, version, doc strings and metadata are kept as
    there. name_length: of inner names at least, so that plans of one model have names of one length. inline: without
    model-local functions. is_fast: with tables for operators without an integer kernel, and pools in float where those
    of codes are slow. in_blocks: what products in float become whose weights stay packed; tables may, too. pack:
    `constants.sized` where only the size of the file matters.
    """
    graph = protos.interface(lowered.model)
    graph.node.extend(map(ir.serde.serialize_node, lowered.model.graph))
    packer = _Packer(graph, lowered, in_blocks, SpilledTensors() if is_in_files(interface) else None, pack)
    nodes = list(with_float_layers(lowered, with_products_apart(lowered, packer.nodes())))
    if is_fast:
        nodes = list(with_float_pools(lowered, with_lookups(lowered, nodes, packer.share)))
    used = packer.used
    _leave_out_zeros(nodes, packer)
    merged = shared_constants(graph, nodes, packer.tensor, packer.own)  # renames inputs of the nodes, so it comes first
    model = onnx.ModelProto(producer_name=PRODUCER)
    graph = model.graph  # filled where it is, as a copy would be one of all weights
    _describe(model, interface)
    graph.node.extend(nodes)
    graph.initializer.extend(merged)
    del merged
    original = protos.interface(interface)
    graph.input.extend(original.input)
    maps = zipmaps.remembered(interface)
    graph.output.extend(value for value in original.output if value.name not in maps)
    _strip(graph)
    before, own = _value_names(graph), _own_names(graph, lowered)
    length = max(name_length, names.name_length(len(before)))
    names.shorten(graph, length, taken=maps, varying=packer.added.keys())
    renamed = dict(zip(before, _value_names(graph), strict=True))
    zipmaps.put_back(graph, original.output, maps, renamed)
    needed = [product.opset for product in packer.blocks.values()]
    packed = _model(model, used, interface, lowered.model.opset_imports[""], needed)
    picked = {pick.table: pick for pick in packer.picks.values()}
    products = {product.weight: product for product in packer.blocks.values()}
    own = {renamed[name]: called for name, called in own.items() if renamed[name] != called}
    file, calls = inlined(packed) if inline else packed, _sorted(used)
    stand_ins = recorded.remembered(interface)
    return Exported(file, calls, renamed, packed, picked, products, own, packer.spilled, stand_ins)


def _describe(model: onnx.ModelProto, interface: ir.Model) -> None:
    """Take over what the model and its graph say of themselves: name, domain, version and doc strings."""
    model.graph.name = interface.graph.name or UNNAMED
    for message, source in ((model, interface), (model.graph, interface.graph)):
        if source.doc_string:
            message.doc_string = source.doc_string
    if interface.domain:
        model.domain = interface.domain
    if interface.model_version:
        model.model_version = interface.model_version


def _own_names(graph: onnx.GraphProto, lowered: Lowered) -> dict[str, str]:
    """What the model calls the values that nodes make; those between codes and a result are called like that."""
    known = {value.name for node in lowered.model.graph for value in node.outputs}
    outputs = [name for node in graph.node for name in node.output if name]
    return {name: lowered.own_name(name if name in known else name.rpartition("/")[0] or name) for name in outputs}


def _model(
    model: onnx.ModelProto,
    used: Set[unpack_functions.UnpackFunction],
    interface: ir.Model,
    known: int,
    needed: Sequence[int],
) -> onnx.ModelProto:
    """The model with what its graph needs. known: the opset that its operators are from; needed: opsets beside it."""
    newest = newest_operator(model.graph, known)
    opset = max(LOWEST_OPSET, newest, *(function.opset for function in used), *needed)
    imports = [helper.make_opsetid("", opset)]
    outputs = [function.to_proto(opset) for function in _sorted(used)]
    maps = {zipmaps.DOMAIN: zipmaps.VERSION} if zipmaps.remembered(interface) else {}
    own = (
        {matmul_nbits.DOMAIN: matmul_nbits.VERSION}
        if any(node.domain == matmul_nbits.DOMAIN for node in model.graph.node)
        else {}
    )
    foreign = sorted(item for item in {**own, **maps, **interface.opset_imports}.items() if item[0])
    imports += [helper.make_opsetid(*item) for item in foreign]
    if outputs:
        imports.append(helper.make_opsetid(unpack_functions.DOMAIN, 1))
    version = helper.find_min_ir_version_for(imports[:1])
    model.ir_version = max(version, 8)
    model.opset_import.extend(imports)
    model.functions.extend(outputs)
    for key, value in interface.metadata_props.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _sorted(used: Set[unpack_functions.UnpackFunction]) -> tuple[unpack_functions.UnpackFunction, ...]:
    return tuple(sorted(used, key=lambda function: function.name))


def newest_operator(graph: onnx.GraphProto, opset: int) -> int:
    """The opset in which the newest of the graph's operators got its present meaning."""
    newest = LOWEST_OPSET
    for node in graph.node:
        if not node.domain:
            newest = max(newest, onnx.defs.get_schema(node.op_type, max(opset, LOWEST_OPSET), "").since_version)
        for inner in subgraphs(node):
            newest = max(newest, newest_operator(inner, opset))
    return newest


@dataclass
class _Packer:
    """Replaces the constants of a lowered graph by calls. `added`: new initializers by name."""

    graph: onnx.GraphProto
    lowered: Lowered
    in_blocks: type[BlockProduct] | None
    spilled: SpilledTensors | None
    pack: constants.Pack
    used: set[unpack_functions.UnpackFunction] = field(default_factory=set)
    added: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = self.lowered.model.graph.initializers
        self.initializers = {name: value.const_value for name, value in held.items() if value.const_value is not None}
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.readers: dict[str, onnx.NodeProto] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, node)
        self.picks = {pick.rows: pick for pick in picks(self.lowered)}
        takes_tables = self.in_blocks is not None and self.in_blocks.takes_tables
        self.tables = {pick.codes for pick in self.picks.values() if takes_tables and picks_in_blocks(pick)}
        products = block_products(self.lowered, self.in_blocks, self.tables) if self.in_blocks is not None else ()
        self.blocks = {one.output: one for one in products}
        self.own = set[str]()
        self.multiplied = {self.lowered.tied.get(block.codes, "") for block in self.blocks.values()}

    def share(self, array: np.ndarray) -> str:
        """The name of an initializer with this content."""
        name = f"packed/{len(self.added)}"
        self.added[name] = self.initializer(name, array)
        return name

    def unshared(self, array: np.ndarray) -> str:
        """The name of an initializer with this content that no other node reads."""
        name = self.share(array)
        self.own.add(name)
        return name

    def initializer(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """An initializer with the values of an array."""
        return tensor(name, array) if self.spilled is None else self.spilled.make(name, array)

    def tensor(self, name: str) -> onnx.TensorProto | None:
        """The initializer of a name, of the lowered graph or a new one."""
        if name in self.added or name not in self.initializers:
            return self.added.get(name)
        return self.initializer(name, array_of(self.initializers[name]))

    def is_zero(self, name: str) -> bool:
        """Whether it is the zero point 0 of bytes."""
        array = array_of(self.initializers[name]) if name in self.initializers else None
        return array is not None and array.dtype == np.uint8 and not array.any()

    def nodes(self) -> list[onnx.NodeProto]:
        """The graph's nodes with packed constants."""
        dropped = {bias for bias in self.lowered.layer_constants.values() if bias is not None}
        makers = {value: list(self._makers_of(value)) for value in self.lowered.weights}
        codes = {value: name for value, nodes in makers.items() for name in self._codes_of(nodes)}
        dropped |= {name for value in codes for node in makers[value][1:] for name in node.output}
        dropped |= {pick.table for pick in self.picks.values()} | {block.weight for block in self.blocks.values()}
        remaining = []
        for node in self.graph.node:
            output = node.output[0] if node.output else ""
            if output in self.blocks:
                remaining += self.blocks[output].nodes(self.share, self.unshared)
            elif output in self.picks and self.picks[output].codes in self.tables:
                pick = self.picks[output]
                remaining += picked_in_blocks(pick, self.share, is_multiplied=pick.codes in self.multiplied)
            elif output in self.picks:
                remaining.append(self._take(constants.picked(self.picks[output], self.share, pack=self.pack)))
            elif output in codes.keys() - dropped:
                remaining.append(self._take(self._packed(node, codes[output], makers[output])))
            elif output not in dropped:
                remaining.append(node)
        return remaining

    def _makers_of(self, value: str) -> Iterator[onnx.NodeProto]:
        """The nodes that make a weight, the last one first."""
        if value in self.makers:
            yield self.makers[value]
            for name in self.makers[value].input:
                yield from self._makers_of(name)

    def _codes_of(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
        """The name of the codes that these nodes read, if they are to be packed."""
        return (name for node in nodes for name in node.input if name in self.lowered.formats)

    def _take(self, constant: constants.UnpackedConstant) -> onnx.NodeProto:
        self.used.add(constant.function)
        return constant.call

    def _array(self, name: str) -> np.ndarray:
        return array_of(self.initializers[name])

    def _packed(self, node: onnx.NodeProto, name: str, makers: Sequence[onnx.NodeProto]) -> constants.UnpackedConstant:
        """A weight from its codes. node: the last of those that make it."""
        codes, form, output = self._array(name), self.lowered.formats[name], node.output[0]
        tied, pack = name in self.lowered.tied, self.pack
        if node.op_type != "DequantizeLinear":
            tables = [read for maker in makers for read in maker.input if read in self.initializers and read != name]
            scale = self._array(tables[0]) if tables else np.empty(0, np.float32)
            solution = QuantizedWeight(form, codes, scale, 0)
            return constants.weight(solution, output, self.share, as_float=True, tied=tied, pack=pack)
        solution = QuantizedWeight(form, codes, self._array(node.input[1]), int(node.attribute[0].i))
        if output not in self.lowered.layer_constants:
            return constants.weight(solution, output, self.share, as_float=True, tied=tied, pack=pack)
        bias = self.lowered.layer_constants[output]
        if bias is None:
            return constants.weight(solution, output, self.share, as_float=False, tied=tied, pack=pack)
        integers, step = (self._array(name) for name in self.makers[bias].input[:2])
        x = self.makers[self.readers[output].input[0]].input[1]
        operand = constants.Bias(integers, step)
        return constants.layer(solution, operand, x, [output, bias], self.share, tied=tied, pack=pack)


def array_of(tensor: ir.TensorProtocol) -> np.ndarray:
    """The values of a constant; those of types that NumPy has are not copied."""
    array = tensor.numpy()
    if array.dtype.isbuiltin == 1 or isinstance(tensor, ir.ExternalTensor):
        return array
    return np.asarray(numpy_helper.to_array(ir.to_proto(tensor)))


def shared_constants(
    graph: onnx.GraphProto,
    nodes: Sequence[onnx.NodeProto],
    tensor_of: Callable[[str], onnx.TensorProto | None],
    unshared: Set[str] = frozenset(),
) -> list[onnx.TensorProto]:
    """The initializers that nodes read, equal ones once; the nodes are pointed at the survivors.

    tensor_of: the initializer of a name; None for other names. unshared: names of those that stay as they are.
    """
    first: dict[Hashable, str] = {}
    alias: dict[str, str] = {}
    remaining = []
    outputs = unshared | {value.name for value in graph.output}
    for name in dict.fromkeys(_reads(nodes)):
        raw = tensor_of(name)
        if raw is None:
            continue
        alias[name] = first.setdefault(content(raw), name) if name not in outputs else name
        if alias[name] == name:
            remaining.append(raw)
    point_at(nodes, alias)
    return remaining


def _reads(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield from node.input
        for inner in subgraphs(node):
            yield from _reads(inner.node)
            yield from (value.name for value in inner.output)


def point_at(nodes: Iterable[onnx.NodeProto], alias: Mapping[str, str]) -> None:
    for node in nodes:
        node.input[:] = [alias.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            point_at(inner.node, alias)


def _strip(graph: onnx.GraphProto) -> None:
    """Leave out attributes that equal their default."""
    for node in graph.node:
        for inner in subgraphs(node):
            _strip(inner)
        if node.op_type not in SPELLED_OUT:
            continue
        remaining = [attribute for attribute in node.attribute if not _is_default(node.op_type, attribute)]
        del node.attribute[:]
        node.attribute.extend(remaining)


def _leave_out_zeros(nodes: Sequence[onnx.NodeProto], packer: _Packer) -> None:
    """Leave out zero points that are 0, which is the default, in front of and behind convolutions and means.

    ONNX Runtime makes integer kernels of these without; of Gemm only where the zero point is there.
    """
    makers = {name: node for node in nodes for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in nodes:
        if node.op_type not in CONVERSIONS or len(node.input) < 3:
            continue
        if not packer.is_zero(node.input[2]):
            continue
        is_first = node.op_type == "QuantizeLinear"
        around = [makers.get(node.input[0])] if is_first else readers.get(node.output[0], [])
        if around and all(other is not None and other.op_type in WITHOUT_ZERO_POINTS for other in around):
            del node.input[2]


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
    results = [t.name for t in graph.initializer]
    results += [value.name for value in graph.input]
    results += [name for node in graph.node for name in (*node.input, *node.output) if name]
    return list(dict.fromkeys(results))
