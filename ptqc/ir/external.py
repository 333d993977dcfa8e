"""Tensors whose data lie in files: taken into memory, or left there and referred to.

Small models are in memory as a whole. In larger ones, tensors stay in the file that they came in, or go to one of the
compile's own where a rewrite made them, and the model has references, so that nothing holds it as a whole: an array is
mapped where it is looked at, and the system may let go of its pages again.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.ir.model_file import OWN, SMALL
from ptqc.ir.references import ROOT, refer, refers
from ptqc.utils.scratch import Scratch

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
