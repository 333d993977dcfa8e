"""Tensors of a message whose values lie in files, which it names by their whole paths."""

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

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
    return np.frombuffer(raw_values(tensor), dtype).reshape(tuple(tensor.dims))


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
