"""Constant tensors: dimensions that fit the data, and external data that stays inside the model's folder."""

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.ir.model_file import OWN
from ptqc.ir.proto_walk import every_graph, every_node

REDO = "export or download the model again"


def check_tensors(model: onnx.ModelProto, path: Path) -> None:
    """Refuse tensors whose dimensions, type and data contradict each other, and unsafe external data.

    path: of the model's file.
    """
    for tensor in _tensors(model):
        size = _expected_bytes(tensor)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, size, path)
        else:
            _check_inline(tensor, size)


def external_files(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """Location -> path of every external data file, each file once; not the model's own file."""
    external = (tensor for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    given = {_entries(tensor)["location"] for tensor in external}
    locations = {str(PurePosixPath(location)) for location in given - {OWN}}
    return {location: folder / location for location in locations}


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in every_graph(model):
        yield from graph.initializer
    for node in every_node(model):
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(f"a {node.op_type} node holds a sparse tensor; expected dense ones: {REDO}")
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _expected_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes that the dimensions and the type call for; for strings the number of elements."""
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


def _check_inline(tensor: onnx.TensorProto, size: int) -> None:
    found = _inline_bytes(tensor)
    if found is not None and found != size:
        raise _wrong_size(tensor, size, found)


def _wrong_size(tensor: onnx.TensorProto, size: int, found: int) -> ModelError:
    dims = list(tensor.dims)
    return ModelError(f"tensor {tensor.name!r} of dimensions {dims} needs {size} bytes of data, it has {found}: {REDO}")


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
    for flavour in (PurePosixPath(location), PureWindowsPath(location)):
        if flavour.is_absolute() or flavour.drive or ".." in flavour.parts:
            raise ModelError(f"{where} at {location!r}; expected a path inside the model's folder")
    if "\0" in location:
        raise ModelError(f"{where} at {location!r}, which is no path: {REDO}")
    file = folder / location
    if not file.exists():
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
