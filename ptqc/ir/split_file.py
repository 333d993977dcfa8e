"""A model in a file, or where that would be too large for one message, in a file and one of its tensors beside it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

from ptqc.ir.external import fits_in_memory
from ptqc.ir.model_file import SMALL, field_bytes
from ptqc.ir.references import bytes_of, has_references, held, raw_values, refer, refers

# protobuf takes no messages of 2 GiB; some of that is for the graph.
MESSAGE_LIMIT = 2**31 - 2**27
# Where tensors of the second file begin: as vector instructions like it.
ALIGNED = 64
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
            start = -(-end // ALIGNED) * ALIGNED
            end = start + size
            yield tensor.name, (start, end)


def _referring(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with references in the place of large tensors."""
    places = _places(model)
    made = onnx.ModelProto()
    _copy_others(made, model, "graph")
    _copy_others(made.graph, model.graph, "initializer")
    for tensor in model.graph.initializer:
        if tensor.name not in places:
            made.graph.initializer.append(tensor)
            continue
        start, end = places[tensor.name]
        reference = made.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        refer(reference, path.with_suffix(SUFFIX).name, start, end - start)
    return made


def _copy_others(made: onnx.ModelProto | onnx.GraphProto, given: onnx.ModelProto | onnx.GraphProto, but: str) -> None:
    """Copy all fields but one."""
    for field, value in given.ListFields():
        if field.name == but:
            continue
        if isinstance(value, str | int | bytes):
            setattr(made, field.name, value)
        else:
            getattr(made, field.name).MergeFrom(value)
