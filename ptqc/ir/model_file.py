"""A model file's protobuf without its large tensors, which stay where they are in the file.

Protobuf writes a message as fields, each a tag (number and wire type) and a value; messages and bytes are a length and
so many bytes (https://protobuf.dev/programming-guides/encoding/). So the values of a tensor are one stretch of the
file, and the graph around them can be read without them: each becomes a reference, as ONNX writes external data.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

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
            raise ValueError(f"the field at byte {start} ends at {stop}, behind its message's end at {end}")
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
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
