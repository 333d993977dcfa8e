"""A model in a file, or where that would be too large for one message, in a file and one of its tensors beside it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

from ptqc.graph.model_file import SMALL

# protobuf takes no messages of 2 GiB; some of that is for the graph.
MESSAGE_LIMIT = 2**31 - 2**27
# Where tensors of the second file begin: as vector instructions like it.
ALIGNED = 64
SUFFIX = ".data"


def is_split(model: onnx.ModelProto) -> bool:
    """Whether the large tensors of the model are too much for one message."""
    sizes = (len(tensor.raw_data) for tensor in model.graph.initializer)
    return sum(size for size in sizes if size >= SMALL) >= MESSAGE_LIMIT


def size_of(model: onnx.ModelProto, name: str) -> int:
    """Bytes of the model in one file, or of both files. name: of the first one, which the second is named after."""
    if not is_split(model):
        return len(message_of(model))
    return len(message_of(_referring(model, Path(name)))) + max(end for _, end in _places(model).values())


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in one file, or in two where that has to be."""
    if is_split(model):
        write_split(model, path)
    else:
        path.write_bytes(message_of(model))


def message_of(model: onnx.ModelProto) -> bytes:
    """The bytes of a message; the same model always gives the same."""
    return bytes(model.SerializeToString(deterministic=True))


def write_split(model: onnx.ModelProto, path: Path) -> tuple[Path, Path]:
    """Write a model that is too large for one message; the paths of both files."""
    data = path.with_suffix(SUFFIX)
    places = _places(model)
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.name in places:
                file.seek(places[tensor.name][0])
                file.write(tensor.raw_data)
    path.write_bytes(message_of(_referring(model, path)))
    return path, data


def _places(model: onnx.ModelProto) -> Mapping[str, tuple[int, int]]:
    """Where the large tensors begin and end in the second file."""
    return dict(_placed(model))


def _placed(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, int]]]:
    end = 0
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= SMALL:
            start = -(-end // ALIGNED) * ALIGNED
            end = start + len(tensor.raw_data)
            yield tensor.name, (start, end)


def _referring(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with references in the place of large tensors."""
    places = _places(model)
    made = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(made, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy(made.graph, field.name, value)
    for tensor in model.graph.initializer:
        if tensor.name not in places:
            made.graph.initializer.append(tensor)
            continue
        start, end = places[tensor.name]
        reference = made.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        reference.data_location = onnx.TensorProto.EXTERNAL
        location = path.with_suffix(SUFFIX).name
        for key, entry in (("location", location), ("offset", str(start)), ("length", str(end - start))):
            reference.external_data.add(key=key, value=entry)
    return made


def _copy(message: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    if isinstance(value, str | int | bytes):
        setattr(message, name, value)
    else:
        getattr(message, name).MergeFrom(value)
