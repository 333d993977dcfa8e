"""Constant tensors: dimensions that fit the data, and external data that stays inside the model's folder."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.frontend.operators import check_text
from ptqc.ir.external import OWN
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import every_graph, every_node, inferring, label, reads, subgraphs

REDO = "export or download the model again"


def check_tensors(model: onnx.ModelProto, path: Path) -> None:
    """Refuse tensors whose dimensions, type and data contradict each other, and unsafe external data.

    path: of the model's file.
    """
    _check_defaults(model)
    for tensor in _tensors(model):
        size = _expected_bytes(tensor)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, size, path)
        else:
            _check_inline(tensor, size)


def external_files(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """Location -> path of every external data file, each file once; not the model's own file."""
    external = (tensor for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    result = {_entries(tensor).get("location", "") for tensor in external}
    locations = {str(PurePosixPath(location)) for location in result - {OWN, ""} if isinstance(location, str)}
    return {location: folder / location for location in locations}


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in every_graph(model):
        yield from graph.initializer
    for node in every_node(model):
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(f"a {node.op_type} node holds a sparse tensor; expected dense ones: {REDO}")
            yield from _held(attribute)
    for function in model.functions:
        for default in function.attribute_proto:
            yield from _held(default)


def _held(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _check_defaults(model: onnx.ModelProto) -> None:
    """Refuse defaults of functions' attributes that nothing else looks into, or that lie in other files."""
    for function in model.functions:
        for default in function.attribute_proto:
            where = f"attribute {default.name!r} of function {function.name!r}"
            if default.HasField("g") or default.graphs or default.HasField("sparse_tensor") or default.sparse_tensors:
                raise ModelError(f"{where} has a graph or a sparse tensor as its default: give it in each call")
            if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _held(default)):
                raise ModelError(f"{where} has a default in external data: store it in the model's file")


def _expected_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes that the dimensions and the type call for; for strings the number of elements."""
    _check_axes(tensor.name, len(tensor.dims))
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"tensor {tensor.name!r} has negative dimensions {list(tensor.dims)}: {REDO}")
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise ModelError(f"tensor {tensor.name!r} has the unknown type {tensor.data_type}: {REDO}") from error
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"tensor {tensor.name!r} has no type: {REDO}")
    count: int = math.prod(tensor.dims)
    return count if dtype == ir.DataType.STRING else -(-count * int(dtype.bitwidth) // 8)


# NumPy has no more; and products of more sizes are numbers that take long to compute, or to show.
MAX_AXES = 64


def _check_axes(name: str, number: int) -> None:
    if number > MAX_AXES:
        raise ModelError(f"{name!r} has {number:,} axes; at most {MAX_AXES} are accepted: {REDO}")


def _check_inline(tensor: onnx.TensorProto, size: int) -> None:
    result = _inline_bytes(tensor)
    if result is not None and result != size:
        raise _wrong_size(tensor, size, result)


def _wrong_size(tensor: onnx.TensorProto, size: int, number: int) -> ModelError:
    dims = list(tensor.dims)
    return ModelError(
        f"tensor {tensor.name!r} of dimensions {dims} needs {size} bytes of data, it has {number}: {REDO}"
    )


def _inline_bytes(tensor: onnx.TensorProto) -> int | None:
    """Bytes of data that the tensor holds; None where the typed fields pack values in ways of their own."""
    dtype = ir.DataType(tensor.data_type)
    if dtype == ir.DataType.STRING:
        return len(tensor.string_data)
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    if dtype.bitwidth < 8:
        return None
    fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    entries = sum(len(field) for field in fields)
    parts = 2 if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) else 1
    return entries * int(dtype.bitwidth) // 8 // parts


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _check_external(tensor: onnx.TensorProto, size: int, path: Path) -> None:
    entries = _entries(tensor)
    where = f"tensor {tensor.name!r} has external data"
    location = entries.get("location", "")
    file = path if location == OWN else _resolve(location, path.parent, where)
    offset, length = (_number(entries, key, where) for key in ("offset", "length"))
    if location == OWN and length != size:
        raise _wrong_size(tensor, size, length or 0)
    if length is not None and length != size:
        raise ModelError(f"{where} of length {length}; its dimensions {list(tensor.dims)} need {size}: {REDO}")
    end = (offset or 0) + size
    available = file.stat().st_size
    if end > available:
        raise ModelError(f"{where} up to byte {end} of {location!r}, which has {available}: {REDO}")


def _resolve(location: str, folder: Path, where: str) -> Path:
    if not location or location == ".":
        raise ModelError(f"{where} without a location: {REDO}")
    if not isinstance(location, str) or "\0" in location:  # protobuf gives bytes where they are no UTF-8
        raise ModelError(f"{where} at {location!r}, which is not a path: {REDO}")
    for flavour in (PurePosixPath(location), PureWindowsPath(location)):
        if flavour.is_absolute() or flavour.drive or ".." in flavour.parts:
            raise ModelError(f"{where} at {location!r}; expected a path inside the model's folder")
    file = folder / location
    if not os.path.exists(file):  # noqa: PTH110 - False for a name too long for any file, for which pathlib raises
        raise ModelError(f"{where} at {location!r}, which is missing; put the file beside the model")
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{where} at {location!r}, a link that leaves the model's folder; copy the file there")
    if not file.is_file():
        raise ModelError(f"{where} at {location!r}, which is not a regular file")
    return file


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ModelError(f"{where} with {key} {text!r}; expected a number of bytes, 0 or more: {REDO}")
    return number


# Tensors that a few bytes of model blow up: a ConstantOfShape, Expand, Range or Tile of constant, absurd size.

MAX_ELEMENTS = 1 << 30  # 4 GiB of float32 in one inner value


def check_sizes(model: onnx.ModelProto) -> None:
    """Refuse models with a value of known shape that memory could not hold.

    Without data propagation: with it, shape inference itself runs out of memory on such models.
    """
    with inferring():
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    for graph in every_graph(inferred):
        for value in (*graph.input, *graph.value_info, *graph.output):
            dims = value.type.tensor_type.shape.dim
            _check_axes(value.name, len(dims))
            count = math.prod(max(dim.dim_value, 1) for dim in dims)
            if count > MAX_ELEMENTS:
                raise ModelError(f"{value.name!r} would have {count:,} elements; at most {MAX_ELEMENTS:,} are accepted")


# Names of values: each defined once, defined at all, and not in terms of itself.

Names = set[str]


def check_values(model: onnx.ModelProto) -> None:
    """Refuse values that are defined twice or not at all, outputs that no node makes, and sparse initializers."""
    _check_graph(model.graph, [])
    _check_graph_outputs(model.graph)
    for function in model.functions:
        defined: Names = set()
        for name in function.input:
            _define(name, "input", defined)
        _check_nodes(function.node, defined, [])
        _check_outputs(function.output, [defined])


# Of a name; files that keep arrays by name have no room for long ones.
MAX_BYTES = 4096


def check_names(model: onnx.ModelProto) -> None:
    """Refuse names of values that files of arrays cannot hold."""
    for graph in every_graph(model):
        for value in (*graph.input, *graph.initializer):
            check_name(value.name)
    for node in every_node(model):
        for name in node.output:
            check_name(name)


def check_name(name: str) -> None:
    """Refuse the name of a value that is no text, long, or has a NUL, at which it would end."""
    check_text("a value", name)
    if "\0" in name:
        raise ModelError(f"the name {name!r:.80} has a NUL in it; give the value another one")
    if (count := len(name.encode())) > MAX_BYTES:
        raise ModelError(f"the name {name[:60] + '...'!r} has {count:,} bytes; at most {MAX_BYTES:,} are accepted")


def check_texts(model: onnx.ModelProto) -> None:
    """Refuse tensors of strings that are no text."""
    for tensor in _tensors(model):
        for text in tensor.string_data:
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise ModelError(f"tensor {tensor.name!r} holds {text!r:.80}, which is not UTF-8: {REDO}") from error


def check_no_cycles(model: onnx.ModelProto) -> None:
    """Refuse graphs in which a value depends on itself."""
    bodies = [graph.node for graph in every_graph(model)] + [function.node for function in model.functions]
    for nodes in bodies:
        try:
            TopologicalSorter(_dependencies(nodes)).prepare()
        except CycleError as error:
            first = nodes[error.args[1][0]]
            raise ModelError(f"the {label(first)} depends on its own result; ONNX graphs have no cycles") from error


def is_sorted(graph: onnx.GraphProto) -> bool:
    """Whether every node of the graph comes after the nodes that it depends on."""
    return all(user > source for user, sources in _dependencies(graph.node).items() for source in sources)


def _dependencies(nodes: Sequence[onnx.NodeProto]) -> dict[int, set[int]]:
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    return {index: {producer[name] for name in reads(node) if name in producer} for index, node in enumerate(nodes)}


def _check_graph(graph: onnx.GraphProto, outer: list[Names]) -> None:
    if graph.sparse_initializer:
        raise ModelError("has sparse initializers; expected dense ones: export the model again without sparsity")
    defined: Names = set()
    for value in graph.input:
        _define(value.name, "input", defined)
    constants: Names = set()
    for tensor in graph.initializer:
        _define(tensor.name, "initializer", constants)
    defined |= constants  # an initializer may be an input's default
    _check_nodes(graph.node, defined, outer)
    _check_outputs([value.name for value in graph.output], [*outer, defined])


def _check_nodes(nodes: Sequence[onnx.NodeProto], defined: Names, outer: list[Names]) -> None:
    for node in nodes:
        for name in node.output:
            if name:
                _define(name, "output of a node", defined)
    scopes = [*outer, defined]
    for node in nodes:
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                raise ModelError(f"the {label(node)} reads {name!r}, which nothing defines")
        for graph in subgraphs(node):
            _check_graph(graph, scopes)


def _check_outputs(names: Iterable[str], scopes: list[Names]) -> None:
    listed: Names = set()
    for name in names:
        if not any(name in scope for scope in scopes):
            raise ModelError(f"output {name!r} is computed by no node")
        if name in listed:
            raise ModelError(f"output {name!r} is listed twice; give each output a name of its own")
        listed.add(name)


def _check_graph_outputs(graph: onnx.GraphProto) -> None:
    computed = {name for node in graph.node for name in node.output}
    for value in graph.output:
        if value.name not in computed:
            raise ModelError(
                f"output {value.name!r} is an input or a constant: leave it out, or put an Identity before it"
            )


def _define(name: str, kind: str, defined: Names) -> None:
    if not name:
        raise ModelError(f"has an {kind} without a name; export the model again")
    if name in defined:
        raise ModelError(f"{name!r} is defined twice (the second time as {kind}); each value has one definition")
    defined.add(name)


# Precision: an interface of NumPy's own types, no float64 unless that is meant, and weights that are finite.

# Infinities in other places (an attention mask) are meant.
COMPUTE = named(Trait.WEIGHTED)
CAST = "export it in float32, or give --cast-double (cast_double=True), which computes in float32 inside"


def check_interface(model: onnx.ModelProto) -> None:
    """Refuse models that take or give what NumPy has no type for."""
    for value in (*model.graph.input, *model.graph.output):
        _check_type(value)


def check_no_double(model: onnx.ModelProto) -> None:
    """Refuse float64 inputs and weights. float64 constants elsewhere (exporters write them) are fine."""
    double = onnx.TensorProto.DOUBLE
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == double:
            raise ModelError(f"{value.name!r} is float64; float32 is expected: {CAST}")
    weights = {name for node in every_node(model) if node.op_type in COMPUTE for name in node.input}
    for graph in every_graph(model):
        for tensor in graph.initializer:
            if tensor.data_type == double and tensor.name in weights:
                raise ModelError(f"weight {tensor.name!r} is float64; float32 is expected: {CAST}")


def check_no_double_layers(model: ir.Model) -> None:
    """Refuse float64 outputs of layers that compute in float64. Where it begins behind them it stays: it costs nothing.

    Values without a type count as float64 where something that the node reads is.
    """
    if all(value.dtype != ir.DataType.DOUBLE for value in model.graph.outputs):
        return
    doubles = {value for value in model.graph.initializers.values() if value.dtype == ir.DataType.DOUBLE}
    for node in model.graph.all_nodes():
        reads_double = not doubles.isdisjoint(node.inputs)
        if reads_double and node.op_type in COMPUTE:
            name = node.outputs[0].name
            raise ModelError(f"the {node.op_type} that gives {name!r} computes in float64; float32 is expected: {CAST}")
        makes_double = _makes_double(node, reads_double)
        doubles |= {v for v in node.outputs if v.dtype == ir.DataType.DOUBLE or (v.dtype is None and makes_double)}


def _makes_double(node: ir.Node, reads_double: bool) -> bool:
    """Whether a node gives float64: as a Cast or a Constant says, any other where it reads some."""
    if node.op_type == "Cast":
        return node.attributes["to"].as_int() == ir.DataType.DOUBLE.value
    if node.op_type == "Constant":
        value = node.attributes.get("value")
        return value is not None and value.as_tensor().dtype == ir.DataType.DOUBLE
    return reads_double


def _check_type(value: onnx.ValueInfoProto) -> None:
    number = value.type.tensor_type.elem_type
    if number not in (entry.value for entry in ir.DataType):
        raise ModelError(f"{value.name!r} has the unknown type {number}: export the model again")
    dtype = ir.DataType(number)
    if dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return
    if dtype.numpy().isbuiltin != 1:
        raise ModelError(
            f"{value.name!r} is {dtype.name.lower()}, which NumPy has no type for; export the model with float32 or "
            "float16 inputs and outputs (in PyTorch, .float() of what it gives). Weights may stay as they are"
        )


def check_weights_finite(model: ir.Model) -> None:
    """Refuse NaN and infinities in the constants that the compute operators read."""
    seen: set[ir.Value] = set()
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in ir.traversal.RecursiveGraphIterator(body)):
        if node.op_type not in COMPUTE or node.domain != "":
            continue
        for value in node.inputs:
            if value is not None and value not in seen:
                seen.add(value)
                _check_finite(value)


def _check_finite(value: ir.Value) -> None:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return
    array = tensor.numpy()
    if not array.size:
        raise ModelError(f"weight {value.name!r} has no elements (shape {list(array.shape)}): export the model again")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise ModelError(
            f"weight {value.name!r} holds {bad} of {array.size} values that are NaN or infinite; "
            "expected finite ones: train or export the model again"
        )
