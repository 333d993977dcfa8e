"""A model as a caller of the API has it: in a file, or in memory, from where it is written to a file first."""

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from ptqc.errors import UsageError
from ptqc.frontend import FILE, ModelSource, read_model
from ptqc.ir.external import MESSAGE_LIMIT, is_split, weight_bytes
from ptqc.ir.protos import every_graph
from ptqc.utils.arguments import path_of, shown

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
NAME, DATA = "model.onnx", "model.data"


def read_given(model: object, folder: Path, *, cast_double: bool = False) -> ModelSource:
    """Read a model, which is not changed; `folder` takes the file of one in memory, and has to stay.

    Size and digest of one in memory are those of its serialized bytes; what it has of external data, or has to have
    because it is too large for one message, counts as for a file. Raises UsageError, or ModelError as `read_model`.
    """
    path, given = file_of(model, folder)
    return read_model(path, cast_double=cast_double, given=given)


def file_of(model: object, folder: Path) -> tuple[Path, str]:
    """The file of a model, written into `folder` if it is in memory, and what it is: FILE, or the type in memory.

    Raises UsageError for what is no model.
    """
    if isinstance(model, str | os.PathLike):
        return path_of("model", model), FILE
    path = folder / NAME
    if isinstance(model, bytes):
        path.write_bytes(model)
        return path, "bytes"
    if isinstance(model, onnx.ModelProto):
        _write_proto(model, path)
        return path, "onnx.ModelProto"
    if isinstance(model, ir.Model):
        _write_ir(model, path)
        return path, "onnx_ir.Model"
    raise UsageError(
        f"model is {shown(model)}; give the path of an .onnx file, its bytes, an onnx.ModelProto, an onnx_ir.Model, or "
        "ptqc.from_torch(module, example)"
    )


def _write_proto(model: onnx.ModelProto, path: Path) -> None:
    if any(t.data_location == onnx.TensorProto.EXTERNAL for graph in every_graph(model) for t in graph.initializer):
        raise UsageError(
            "the onnx.ModelProto was loaded without its external data: give the path of its file, or onnx.load(path)"
        )
    if not is_split(model):
        path.write_bytes(model.SerializeToString())
    else:
        _write_ir(ir.from_proto(model), path)


def _write_ir(model: ir.Model, path: Path) -> None:
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    is_external = any(isinstance(value.const_value, ir.ExternalTensor) for value in values)
    if is_external or weight_bytes(model) >= MESSAGE_LIMIT:
        ir.save(model, path, external_data=DATA)
    else:
        ir.save(model, path)
