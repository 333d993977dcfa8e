"""Reading a model: cheap checks first, so that no library sees a file that hangs or crashes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.errors import ModelError
from ptqc.execution import sandboxed
from ptqc.execution.onnxruntime import without_tensors
from ptqc.frontend.classical import check_classical
from ptqc.frontend.model_files import NOTHING, FileStates, check_inference, digest_of, parse, read_bytes, translating
from ptqc.frontend.operators import (
    INTEGER,
    check_attributes,
    check_constants,
    check_functions,
    check_operators,
    check_versions,
    drop_annotations,
    name_free_axes,
    write_out_normalizations,
)
from ptqc.frontend.tensors import (
    check_interface,
    check_names,
    check_no_cycles,
    check_no_double,
    check_no_double_layers,
    check_sizes,
    check_tensors,
    check_texts,
    check_values,
    check_weights_finite,
    external_files,
    is_sorted,
)
from ptqc.ir import modules, recorded, zipmaps
from ptqc.ir.external import fits_in_memory, hold_external
from ptqc.ir.protos import every_node
from ptqc.notes import Level, Note

STEP = "read"
FILE = "file"

# ONNX Runtime 1.31 refuses models that declare a higher version; nothing that opset 26 can say needs one.
MAX_IR_VERSION = 13
# Bytes of what the exporter wrote beside the network; fewer are not worth a remark.
WORTH_TELLING = 1000
# The first in which an initializer need not be listed as an input as well.
SEPARATE_INITIALIZERS = 4
# Of models that use no operator of ONNX's main domain.
LOWEST_OPSET = 18

# In this order: each may rely on what the ones before it found; one writes operators in the form that ONNX defines.
PROTO_CHECKS: tuple[Callable[[onnx.ModelProto], None], ...] = (
    check_versions,
    check_functions,
    write_out_normalizations,
    check_operators,
    check_classical,
    check_attributes,
    check_constants,
    check_names,
    check_texts,
    check_values,
    check_no_cycles,
    check_interface,
)


@dataclass(frozen=True)
class ModelSource:
    """A model as it was given.

    size: bytes of the .onnx file and of every external data file.
    digest: SHA-256 over the same bytes, hexadecimal.
    type_name: what it was before: "file", or the type of a model in memory.
    cast_double: whether float64 is to become float32 inside.
    files: those that the model refers to, as they were before they were read; none of a model that is in memory.
    """

    model: ir.Model
    path: Path
    size: int
    digest: str
    notes: tuple[Note, ...]
    cast_double: bool = False
    type_name: str = FILE
    files: FileStates = NOTHING

    @property
    def called(self) -> str:
        """The name of the model in messages."""
        return _called(self.path, self.type_name)


def _called(path: Path, type_name: str) -> str:
    return str(path) if type_name == FILE else f"the {type_name}"


def read_model(path: Path | str, *, cast_double: bool = False, type_name: str = FILE) -> ModelSource:
    """Read and check an ONNX model; the file is never changed.

    cast_double: take float64, which is refused otherwise. type_name: see `Source`. Nodes come out sorted. Raises
    ModelError, which names the file, the tensor or node, the rule and a remedy.
    """
    path = Path(path)
    try:
        return replace(_read(path, cast_double), type_name=type_name)
    except ModelError as error:
        raise ModelError(f"{_called(path, type_name)}: {error}") from error


def _read(path: Path, cast_double: bool) -> ModelSource:
    states = FileStates.of([path])
    data = read_bytes(path)
    proto = parse(data)
    for check in PROTO_CHECKS:
        check(proto)
    if not cast_double:
        check_no_double(proto)
    check_tensors(proto, path)
    files = external_files(proto, path.parent)
    states |= FileStates.of(files.values())
    size = len(data) + sum(file.stat().st_size for file in files.values())
    if fits_in_memory(size):
        sandboxed.check(path, size)
    else:
        sandboxed.check_bytes(without_tensors(proto).SerializeToString())
    maps = zipmaps.take_off(proto.graph)
    name_free_axes(proto)
    check_sizes(proto)
    chosen = recorded.record(proto)
    notes = [
        *_remarks(proto),
        *_recorded(chosen),
        *(Note(STEP, name, "the ZipMap that makes this output stays as it is") for name in maps),
    ]
    named = modules.read(proto.graph)
    if (dropped := drop_annotations(proto)) >= WORTH_TELLING:
        notes.append(Note(STEP, "", f"{dropped:,} bytes of metadata and doc strings of the exporter left out"))
    for node in every_node(proto):
        node.name = ""  # need not be unique, and ONNX Runtime refuses two of one name; values are the keys
    model = _to_ir(proto)
    zipmaps.remember(model, maps)
    recorded.remember(model, chosen)
    modules.remember(model, named)
    hold_external(model, path.parent, mapped=not fits_in_memory(size), own=path)
    check_weights_finite(model)
    check_inference(model)
    _check_with_onnx(model)
    if not cast_double:
        check_no_double_layers(model)
    watched = NOTHING if fits_in_memory(size) else states
    return ModelSource(model, path, size, digest_of(data, files), tuple(notes), cast_double, files=watched)


def _remarks(proto: onnx.ModelProto) -> list[Note]:
    notes = []
    if not is_sorted(proto.graph):
        notes.append(Note(STEP, "", "nodes were not in topological order: sorted", Level.WARNING))
    if proto.ir_version < SEPARATE_INITIALIZERS:
        message = f"IR version {proto.ir_version} lists constants as inputs: left out of the inputs"
        notes.append(Note(STEP, "", message))
    if proto.ir_version > MAX_IR_VERSION:
        message = f"IR version {proto.ir_version} lowered to {MAX_IR_VERSION}, the highest that ONNX Runtime loads"
        notes.append(Note(STEP, "", message))
    for node in proto.graph.node:
        subject = node.output[0] if node.output else ""
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            notes.append(Note(STEP, subject, f"the graphs inside this {node.op_type} compute in float", Level.SKIPPED))
        if node.op_type in INTEGER:
            notes.append(Note(STEP, subject, f"this {node.op_type} of computed integers stays as it is", Level.SKIPPED))
    return notes


def _recorded(chosen: recorded.Recorded) -> list[Note]:
    """What is different about values that inputs stand for while compiling."""
    notes = []
    for source, operator in chosen.items():
        value = source.rpartition(".")[0]
        if operator in recorded.DRAWING:
            message = (
                f"this {operator} draws new random numbers in every run: while compiling, each sample has those of one "
                "run, for the float model and for all that is compared with it; the delivered file draws anew"
            )
        else:
            message = (
                f"layers compute the size that this {operator} gives: while compiling, each sample has that of the "
                "float model; the delivered file computes its own"
            )
        notes.append(Note(STEP, value, message))
    return notes


def _to_ir(proto: onnx.ModelProto) -> ir.Model:
    with translating():
        model = ir.serde.deserialize_model(proto)
        model.graph.sort()
        model.graph.opset_imports.setdefault("", LOWEST_OPSET)
    if model.ir_version < SEPARATE_INITIALIZERS:
        _separate_initializers(model)
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    return model


def _separate_initializers(model: ir.Model) -> None:
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)
    model.ir_version = SEPARATE_INITIALIZERS


def _check_with_onnx(model: ir.Model) -> None:
    try:
        common.CheckerPass()(model)
    except Exception as error:  # the checker and the pass around it have error types of their own
        reason = error.__cause__ or error
        raise ModelError(f"the ONNX checker refuses the model: {reason}; export the model again") from error
