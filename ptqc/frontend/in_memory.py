"""A model as a caller of the API has it: in a file, or in memory, from where it is written to a file first."""

import inspect
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.errors import ModelError, UsageError
from ptqc.frontend import FILE, ModelSource, read_model
from ptqc.ir.external import MESSAGE_LIMIT, is_split, weight_bytes
from ptqc.ir.protos import every_graph
from ptqc.utils.arguments import path_of, shown

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
NAME, DATA = "model.onnx", "model.data"


def read_source(model: object, folder: Path, *, cast_double: bool = False) -> ModelSource:
    """Read a model, which is not changed; `folder` takes the file of one in memory, and has to stay.

    Size and digest of one in memory are those of its serialized bytes; what it has of external data, or has to have
    because it is too large for one message, counts as for a file. Raises UsageError, or ModelError as `read_model`.
    """
    path, type_name = file_of(model, folder)
    return read_model(path, cast_double=cast_double, type_name=type_name)


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


# A PyTorch module as an ONNX model, by PyTorch's own exporter.

LOGGER = "torch"
NEEDS = "needs PyTorch and its exporter: pip install 'ptqc[torch]'"


def from_torch(module: Any, example: Any) -> ir.Model:
    """Export a PyTorch module to ONNX for `ptqc.compile`.

    The module is exported in evaluation mode and is not changed.

    Args:
        module: A `torch.nn.Module`.
        example: A tensor, or a tuple of the arguments of `forward`, with
            their shapes and dtypes. Axis 0 of each tensor is the batch, which
            stays free if the module allows it.

    Returns:
        The model, for every function that takes one.

    Raises:
        UsageError: Other arguments, or PyTorch or its exporter is missing.
        ModelError: PyTorch cannot export the module.

    Example:
        >>> model = ptqc.from_torch(network, torch.zeros(1, 3, 224, 224))
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"module is {shown(module)}; give a torch.nn.Module")
    result = example if isinstance(example, tuple) else (example,)
    if not result or not all(isinstance(value, torch.Tensor) for value in result):
        raise UsageError(f"example is {shown(example)}; give a tensor, or a tuple of tensors as forward takes them")
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        return _exported(torch, module, result)
    finally:
        for part, was_training in modes:
            part.training = was_training


def _torch() -> Any:
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError as error:
        raise UsageError(f"a PyTorch module {NEEDS} ({error})") from error
    return torch


def _exported(torch: Any, module: Any, example: Sequence[Any]) -> ir.Model:
    """With a free batch; with the example's own where that cannot be exported, as where `forward` fixes it."""
    if len({len(value) for value in example if value.ndim}) <= 1:  # else axis 0 of some is no batch
        with suppress(Exception):  # PyTorch raises many types of its own
            return _with_free_batch(torch, module, example)
    try:
        return _export(torch, module, tuple(example), None)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ModelError(f"PyTorch cannot export {type(module).__name__}: {reason}") from error


def _with_free_batch(torch: Any, module: Any, example: Sequence[Any]) -> ir.Model:
    """Of two samples, since PyTorch takes a size of one for a constant."""
    batch = torch.export.Dim("batch")
    rows = tuple(torch.cat([value, value]) if value.ndim and len(value) == 1 else value for value in example)
    free = [{0: batch} if value.ndim else None for value in rows]
    named = inspect.signature(module.forward).bind(*free).arguments  # of `*args` a tuple
    return _export(torch, module, rows, dict(named))


def _export(torch: Any, module: Any, example: tuple[Any, ...], shapes: Any) -> ir.Model:
    # PyTorch warns of its own deprecated parts, and of packages that this module does not need.
    with warnings.catch_warnings(), torch.no_grad(), _silent(LOGGER):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
    export: ir.Model = program.model
    return export


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """A logger and those below it tell nothing: what fails is raised, and may be tried in another way."""
    loggers = [
        logging.getLogger(name),
        *(logging.getLogger(each) for each in list(logging.Logger.manager.loggerDict) if each.startswith(f"{name}.")),
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled
