"""Tensors whose data lie in files: taken into memory, or left there and referred to.

Small models are in memory as a whole. In larger ones, tensors stay in the file that they came in, or go to one of the
compile's own where a rewrite made them, and the model has references, so that nothing holds it as a whole: an array is
mapped where it is looked at, and the system may let go of its pages again.
"""

import hashlib
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ptqc.utils.scratch import Scratch

# Tensors of a message whose values lie in files, which it names by their whole paths.

# Locations are relative to this folder, so that one model can refer to files anywhere.
ROOT = Path(os.sep).absolute().anchor  # does not ask for the working folder, which may be gone


def refers(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is a reference."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def has_references(model: onnx.ModelProto) -> bool:
    """Whether values of a model are in files."""
    return any(refers(tensor) for tensor in model.graph.initializer)


def refer(tensor: onnx.TensorProto, location: str, start: int, length: int) -> None:
    """Let a tensor without values refer to some bytes of a file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", str(start)), ("length", str(length))):
        tensor.external_data.add(key=key, value=entry)


def place_of(tensor: onnx.TensorProto) -> tuple[Path, int, int]:
    """The file that a reference names, where its values begin there, and how many bytes they are."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    return Path(ROOT, place["location"]), int(place["offset"]), int(place["length"])


def bytes_of(tensor: onnx.TensorProto) -> int:
    """Bytes of the raw values of a tensor, wherever they are."""
    return place_of(tensor)[2] if refers(tensor) else len(tensor.raw_data)


def raw_values(tensor: onnx.TensorProto) -> memoryview | bytes:
    """The raw values; those of a reference are mapped."""
    if not refers(tensor):
        return bytes(tensor.raw_data)
    path, start, length = place_of(tensor)
    return np.memmap(path, np.uint8, "r", start, (length,)).data


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The values of a tensor; those of a reference are mapped."""
    if not refers(tensor):
        return np.asarray(numpy_helper.to_array(tensor))
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if _is_packed(dtype):
        whole = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(raw_values(tensor)))
        return np.asarray(numpy_helper.to_array(whole))
    return np.frombuffer(raw_values(tensor), dtype).reshape(tuple(tensor.dims))


def _is_packed(dtype: np.dtype) -> bool:
    """Whether ONNX stores several numbers of a type in a byte, of which NumPy has one in each."""
    return ir.DataType.from_numpy(dtype).bitwidth < 8


def held(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that has the values of all references."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if refers(tensor):
            tensor.raw_data = bytes(raw_values(tensor))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return copy


# A model file's protobuf without its large tensors, which stay where they are in the file.
#
# Protobuf writes a message as fields, each a tag (number and wire type) and a value; messages and bytes are a length
# and so many bytes (https://protobuf.dev/programming-guides/encoding/). So the values of a tensor are one stretch of
# the file, and the graph around them can be read without them: each becomes a reference, as ONNX writes external
# data.

# Stands for the model file itself where a tensor says in which file its values are. No path is called so.
OWN = "\0"
# Tensors of fewer bytes stay in the graph: shapes, axes and scalars are read by the libraries that look at it.
SMALL = 4096
# Field numbers of onnx.proto.
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
DELIMITED = 2  # the wire type of messages and bytes
LONGEST_VARINT = 10


@dataclass(frozen=True)
class _Field:
    """A field of a message: its number and wire type, where its tag begins, and where its value begins and ends."""

    number: int
    wire: int
    start: int
    first: int
    end: int


def skeleton(data: memoryview) -> onnx.ModelProto:
    """The model in the bytes, in which the values of the main graph's large initializers are OWN's, by place.

    Raises ValueError, or protobuf's DecodeError, where the bytes are no model.
    """
    parts = bytearray()
    for field in _fields(data, 0, len(data)):
        if field.number == GRAPH and field.wire == DELIMITED:
            parts += _delimited(GRAPH, _graph(data, field.first, field.end))
        else:
            parts += data[field.start : field.end]
    model = onnx.ModelProto()
    model.ParseFromString(bytes(parts))
    return model


def _graph(data: memoryview, first: int, end: int) -> bytes:
    parts = bytearray()
    for field in _fields(data, first, end):
        if field.number == INITIALIZER and field.end - field.first >= SMALL and field.wire == DELIMITED:
            parts += _delimited(INITIALIZER, _tensor(data, field.first, field.end))
        else:
            parts += data[field.start : field.end]
    return bytes(parts)


def _tensor(data: memoryview, first: int, end: int) -> bytes:
    """A tensor whose values are left where they are; as it is where they are elsewhere or in several pieces."""
    fields = list(_fields(data, first, end))
    values = [field for field in fields if field.number == RAW_DATA and field.wire == DELIMITED]
    tensor = onnx.TensorProto()
    tensor.ParseFromString(b"".join(data[field.start : field.end] for field in fields if field not in values))
    if len(values) != 1 or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return bytes(data[first:end])
    (raw,) = values
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", OWN), ("offset", str(raw.first)), ("length", str(raw.end - raw.first))):
        tensor.external_data.add(key=key, value=value)
    return bytes(tensor.SerializeToString())


def _fields(data: memoryview, first: int, end: int) -> Iterator[_Field]:
    place = first
    while place < end:
        start = place
        tag, place = _varint(data, place, end)
        match tag & 7:
            case 0:  # a number
                _, stop = _varint(data, place, end)
            case 1:  # eight bytes
                stop = place + 8
            case 2:  # a length, and as many bytes
                length, place = _varint(data, place, end)
                stop = place + length
            case 5:  # four bytes
                stop = place + 4
            case wire:
                raise ValueError(f"byte {start} begins a field of the unknown wire type {wire}")
        if stop > end:
            raise ValueError(f"the field at byte {start} ends at {stop}, past its message's end at {end}")
        yield _Field(tag >> 3, tag & 7, start, place, stop)
        place = stop


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """A number of seven bits in each byte, the lowest first, and the place behind it."""
    number = 0
    for index, byte in enumerate(data[place : min(place + LONGEST_VARINT, end)]):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number, place + index + 1
    raise ValueError(f"the number at byte {place} has no end")


def field_bytes(length: int) -> int:
    """Bytes of a message or of bytes of this length as a field of a number below 16: tag, length, content."""
    return 1 + len(_written(length)) + length


def _delimited(number: int, value: bytes) -> bytes:
    return _written(number << 3 | DELIMITED) + _written(len(value)) + value


def _written(number: int) -> bytes:
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    return bytes([*result, number])


# Models of more bytes are not in memory as a whole. Sessions of these do not have their weights rearranged, which would
# be a copy, and are a little slower for that. protobuf itself refuses messages of 2 GiB.
IN_MEMORY_LIMIT = 256 * 2**20
# Where each tensor of a file begins, so that it can be mapped by itself.
ALIGNED = 4096


def fits_in_memory(size: int) -> bool:
    """Whether a model of this many bytes is held in memory, not referred to in files."""
    return size < IN_MEMORY_LIMIT


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers of the main graph."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def is_in_files(model: ir.Model) -> bool:
    """Whether the model is beyond memory."""
    return not fits_in_memory(weight_bytes(model))


def hold_external(model: ir.Model, folder: Path, *, mapped: bool, own: Path | None = None) -> None:
    """Let every tensor with external data hold them, functions and subgraphs included, or refer to them by whole path.

    folder: what their locations are relative to. mapped: map the files into memory instead of copying them; the files
    must then stay as they are. Models that do not fit into memory are always mapped, and large initializers of their
    main graph become references. own: the model file, where a skeleton's tensors are in it.
    """
    large = is_in_files(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                tensor = _located(value.const_value, folder, own)
                refers = large and graph is model.graph and tensor.nbytes >= SMALL
                value.const_value = tensor if refers else _held(tensor, mapped or large)
    for node, attribute in _tensor_attributes(model):
        if isinstance(attribute.value, ir.ExternalTensor):
            held = _held(_located(attribute.value, folder, own), mapped or large)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, held)


def take_in(model: onnx.ModelProto, path: Path) -> None:
    """Let a model that was read from a file hold all of its tensors, also those of a skeleton."""
    with path.open("rb") as file:
        for tensor in model.graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place.get("location") == OWN:
                file.seek(int(place["offset"]))
                tensor.raw_data = file.read(int(place["length"]))
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
    onnx.load_external_data_for_model(model, str(path.parent))


def refer_to_files(model: onnx.ModelProto, path: Path) -> None:
    """Let a model that was read from a file refer by whole paths to initializers that it does not hold.

    Those of a skeleton are in the file itself.
    """
    for tensor in filter(refers, model.graph.initializer):
        place = {entry.key: entry.value for entry in tensor.external_data}
        file = path if place["location"] == OWN else path.parent / place["location"]
        length = -(-math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)
        tensor.ClearField("external_data")
        refer(tensor, file.resolve().relative_to(ROOT).as_posix(), int(place.get("offset", 0)), int(length))


def whole_message(model: ir.Model) -> onnx.ModelProto:
    """The model as a message that holds all of its tensors."""
    proto = ir.to_proto(model)
    for tensor, value in zip(proto.graph.initializer, model.graph.initializers.values(), strict=True):
        if isinstance(value.const_value, ir.ExternalTensor):
            held = ir.to_proto(_held(value.const_value, mapped=True))
            held.name = tensor.name  # the tensor has that of one of its values
            tensor.CopyFrom(held)
    return proto


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    bodies: Iterable[ir.Graph | ir.Function] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in body.all_nodes()):
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.TENSOR:
                yield node, attribute


def _located(tensor: ir.ExternalTensor, folder: Path, own: Path | None) -> ir.ExternalTensor:
    """The tensor by the whole path of its file. What is in the model file lies where links say that this lies."""
    if tensor.location == OWN:
        assert own is not None
        path = own.resolve()
    else:
        path = Path(folder.absolute(), tensor.location)
    return _mapped(
        ir.ExternalTensor(path, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or "")
    )


def _mapped(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """The tensor with its file mapped, which two threads must not try at the same time."""
    tensor.numpy()
    return tensor


def _held(tensor: ir.ExternalTensor, mapped: bool) -> ir.TensorProtocol:
    array = tensor.numpy()
    return ir.Tensor(array if mapped else array.copy(), dtype=tensor.dtype, name=tensor.name)


class _Spilled(ir.ExternalTensor):
    """A tensor in a file of the compile's own, which is removed with the last tensor that is in it."""

    __slots__ = ("_scratch",)

    def __init__(self, scratch: Scratch, *place: Any, **described: Any) -> None:
        super().__init__(*place, **described)
        self._scratch = scratch


def spill(model: ir.Model) -> None:
    """Write what is large of a model that does not fit into memory to a file, and refer to it there.

    Tensors are made and written one after the other. Those that are in files already stay where they are.
    """
    if not is_in_files(model):
        return
    values = [value for value in model.graph.initializers.values() if _is_to_spill(value.const_value)]
    if not values:
        return
    scratch = Scratch()
    path = scratch.folder / "tensors"
    with path.open("wb") as file:
        for value in values:
            tensor = value.const_value
            assert tensor is not None
            file.seek(-(-file.tell() // ALIGNED) * ALIGNED)
            place = path, file.tell(), tensor.nbytes, tensor.dtype
            file.write(tensor.tobytes())
            file.flush()
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = _mapped(_Spilled(scratch, *place, shape=shape, name=value.name or ""))


def _is_to_spill(tensor: ir.TensorProtocol | None) -> bool:
    if tensor is None or tensor.nbytes < SMALL or tensor.dtype == ir.DataType.STRING:
        return False
    return not isinstance(tensor, ir.ExternalTensor)


# Tensors of a message that go to a file of the compile's own as they are made.

FILE = "tensors"


class SpilledTensors:
    """Makes initializers: small ones hold their values, large ones refer to the file, which goes with this object.

    No more than one large one is in memory at a time; equal ones are written once. What is mapped stays readable.
    """

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0

    def make(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """An initializer with the values of an array."""
        if array.nbytes < SMALL or array.dtype.hasobject:
            return tensor(name, array)
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        result = onnx.TensorProto(name=name, data_type=number, dims=list(array.shape))
        if _is_packed(array.dtype):
            array = np.frombuffer(tensor(name, array).raw_data, np.uint8)
            if array.nbytes < SMALL:
                result.raw_data = array.tobytes()
                return result
        path = self._file()
        with path.open("ab") as file:
            start, length = self._place(np.ascontiguousarray(array), file)
        refer(result, path.relative_to(ROOT).as_posix(), start, length)
        return result

    def _file(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.folder / FILE

    def _place(self, array: np.ndarray, file: BinaryIO) -> tuple[int, int]:
        values = array.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(values).digest()
        if digest not in self._places:
            start = -(-self._end // ALIGNED) * ALIGNED
            file.write(bytes(start - self._end))
            file.write(values)
            self._end = start + len(values)
            self._places[digest] = start, len(values)
        return self._places[digest]


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer with raw data."""
    return numpy_helper.from_array(np.asarray(array, order="C"), name)


def content(tensor_proto: onnx.TensorProto) -> Hashable:
    """The same for initializers of equal type, shape and values, of one maker."""
    place = tuple(entry.value for entry in tensor_proto.external_data) if refers(tensor_proto) else ()
    return (
        tensor_proto.data_type,
        tuple(tensor_proto.dims),
        tensor_proto.raw_data,
        tuple(tensor_proto.string_data),
        place,
    )


# A model in a file, or where that would be too large for one message, in a file and one of its tensors beside it.

# protobuf takes no messages of 2 GiB; some of that is for the graph.
MESSAGE_LIMIT = 2**31 - 2**27
# Where tensors of the second file begin: as vector instructions like it.
ALIGNED_IN_FILE = 64
SUFFIX = ".data"


def is_split(model: onnx.ModelProto) -> bool:
    """Whether the large tensors of the model are too much for one message."""
    return _large_bytes(model) >= MESSAGE_LIMIT


def is_in_two(model: onnx.ModelProto) -> bool:
    """Whether the model is delivered in two files.

    ONNX Runtime maps what lies beside a message, where it would have to copy what is in it.
    """
    return not fits_in_memory(_large_bytes(model))


def _large_bytes(model: onnx.ModelProto) -> int:
    sizes = map(bytes_of, model.graph.initializer)
    return sum(size for size in sizes if size >= SMALL)


def size_of(model: onnx.ModelProto, name: str) -> int:
    """Bytes of the model as it is delivered, in one file or in both. name: of the first, which names the second."""
    if is_in_two(model):
        return int(_referring(model, Path(name)).ByteSize()) + max(end for _, end in _places(model).values())
    return _held_bytes(model) if has_references(model) else int(model.ByteSize())


def _held_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the message that holds what this one refers to."""
    graph = onnx.GraphProto()
    _copy_others(graph, model.graph, "initializer")
    inside = graph.ByteSize() + sum(field_bytes(_held_tensor_bytes(tensor)) for tensor in model.graph.initializer)
    around = onnx.ModelProto()
    _copy_others(around, model, "graph")
    return int(around.ByteSize()) + field_bytes(inside)


def _held_tensor_bytes(tensor: onnx.TensorProto) -> int:
    if not refers(tensor):
        return int(tensor.ByteSize())
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return int(bare.ByteSize()) + field_bytes(bytes_of(tensor))


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in one file, or in two where that has to be."""
    if is_split(model):
        write_split(model, path)
    else:
        path.write_bytes(message_of(model))


def message_of(model: onnx.ModelProto) -> bytes:
    """The bytes of a message, which holds all values; the same model always gives the same."""
    whole = held(model) if has_references(model) else model
    return bytes(whole.SerializeToString(deterministic=True))


def write_split(model: onnx.ModelProto, path: Path) -> tuple[Path, Path]:
    """Write a model with its large tensors beside it; the paths of both files."""
    data = path.with_suffix(SUFFIX)
    places = _places(model)
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.name in places:
                file.seek(places[tensor.name][0])
                file.write(raw_values(tensor))
    path.write_bytes(bytes(_referring(model, path).SerializeToString(deterministic=True)))
    return path, data


def _places(model: onnx.ModelProto) -> Mapping[str, tuple[int, int]]:
    """Where the large tensors begin and end in the second file."""
    return dict(_placed(model))


def _placed(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, int]]]:
    end = 0
    for tensor in model.graph.initializer:
        if (size := bytes_of(tensor)) >= SMALL:
            start = -(-end // ALIGNED_IN_FILE) * ALIGNED_IN_FILE
            end = start + size
            yield tensor.name, (start, end)


def _referring(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with references in the place of large tensors."""
    places = _places(model)
    referring = onnx.ModelProto()
    _copy_others(referring, model, "graph")
    _copy_others(referring.graph, model.graph, "initializer")
    for tensor in model.graph.initializer:
        if tensor.name not in places:
            referring.graph.initializer.append(tensor)
            continue
        start, end = places[tensor.name]
        reference = referring.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        refer(reference, path.with_suffix(SUFFIX).name, start, end - start)
    return referring


def _copy_others(to: onnx.ModelProto | onnx.GraphProto, source: onnx.ModelProto | onnx.GraphProto, but: str) -> None:
    """Copy all fields but one."""
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, str | int | bytes):
            setattr(to, field.name, value)
        else:
            getattr(to, field.name).MergeFrom(value)
