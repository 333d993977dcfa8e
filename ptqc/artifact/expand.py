"""`ptqc expand`: the delivered file once, where it is installed, to one whose weights are as kernels read them.

The packed file is unpacked whenever it is loaded. What comes out is a larger file with the same integers, which loads
like any int8 file. It is delivered only if it gives the golden samples of the artifact.
"""

from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from ptqc.artifact.expanded import EXPANDED, ExpandedModel, FileCost
from ptqc.artifact.folder import GOLDEN, MANIFEST, MODEL, Artifact, check_output, is_expanded, load, publish, reserved
from ptqc.artifact.verify import check_golden, checked_proto
from ptqc.codegen.onnxruntime.write_out import write_out
from ptqc.errors import ModelError, UsageError, VerificationError
from ptqc.execution.loading import LoadCost, measure_load
from ptqc.ir.external import SpilledTensors, bytes_of, message_of, write_split
from ptqc.utils.arguments import path_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.scratch import scratch
from ptqc.utils.version import __version__

# Bytes of tensors from which on they lie beside the file: loading then takes less time and memory.
MAPPED_FROM = 2**18
# What the manifest takes over of the artifact's: what its users need to run the file and to check it.
OF_FILE = ("opset", "ir_version", "oldest_onnxruntime", "runtime_operators")
TAKEN_OVER = ("source", "cpu", "golden", "preprocessing", "texts", "maps", "recorded")


@quiet_libraries()
def expand(folder: str | PathLike[str], *, output: str | PathLike[str], force: bool = False) -> ExpandedModel:
    """Unpack the weights of an artifact into a file that loads faster.

    Everything that depends on constants alone is computed once and stored:
    weights of integer layers as int8, others as float32, with the values that
    ONNX Runtime would compute at every load. Embeddings and weights that
    operators read packed (MatMulNBits) stay packed. Run it on the device, not
    before shipping: the file is larger.

    Args:
        folder: The artifact.
        output: The folder for model.onnx (with a model.data beside it from
            256 KiB on), the golden samples and a manifest.json with bytes,
            load time and memory of both files.
        force: Replace what an earlier `expand` wrote.

    Returns:
        The expanded model: its `path`, and bytes, seconds and memory.

    Raises:
        UsageError: The folder holds no artifact, or `output` exists.
        VerificationError: The new file does not give the golden outputs;
            nothing is delivered.
        ModelError: ONNX Runtime does not load the new file.
        Interrupted: The disk is full.

    Example:
        >>> ptqc.expand("out", output="expanded").path
    """
    artifact, place = load(folder), path_of("output", output)
    _check_place(artifact.folder.resolve(), place, force)
    with reserved(place), scratch() as temporary:
        spilled = SpilledTensors()
        model = write_out(checked_proto(artifact.path), spilled)
        golden = _checked(artifact, model)
        files = _write(model, Path(temporary))
        packed = FileCost(artifact.manifest["file"]["bytes"], _load_of_packed(artifact))
        expanded = FileCost(sum(file.stat().st_size for file in files.values()), measure_load(files[MODEL]))
        manifest = _manifest(artifact, model, packed, expanded, golden)
        publish(place, {**files, GOLDEN: artifact.folder / GOLDEN}, manifest, {}, force)
    return ExpandedModel(place, packed, expanded, golden)


def _check_place(source: Path, place: Path, force: bool) -> None:
    """Refuse a place within the artifact, and one that cannot be written or holds what expand did not write."""
    if place.resolve().is_relative_to(source):
        raise UsageError(f"the output {place} lies in the artifact {source}: give a folder outside of it with -o")
    if force and (place / MANIFEST).is_file() and not is_expanded(place):
        raise UsageError(
            f"the output folder {place} was not written by `ptqc expand`, and --force replaces nothing else here; "
            "give another one with -o"
        )
    check_output(place, force)


def _checked(artifact: Artifact, model: onnx.ModelProto) -> str:
    try:
        return check_golden(artifact, model, f"the expanded {MODEL}")
    except VerificationError as error:
        raise VerificationError(f"{error}; nothing was delivered: run the packed {artifact.path}") from error


def _load_of_packed(artifact: Artifact) -> LoadCost | None:
    """None where the packed file takes more memory than there is: the expanded one is for just that."""
    with suppress(ModelError):
        return measure_load(artifact.path)
    return None


def _write(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """The file by name, of larger models with the one of its tensors, which ONNX Runtime maps and does not copy."""
    path = folder / MODEL
    if sum(map(bytes_of, model.graph.initializer)) >= MAPPED_FROM:
        return {file.name: file for file in write_split(model, path)}
    path.write_bytes(message_of(model))
    return {MODEL: path}


def _manifest(
    artifact: Artifact, model: onnx.ModelProto, packed: FileCost, expanded: FileCost, golden: str
) -> dict[str, Any]:
    document = artifact.manifest
    return {
        "ptqc": __version__,
        EXPANDED: {
            "from": document["files"][MODEL],
            "packed": packed.to_json(),
            "expanded": expanded.to_json(),
            "onnxruntime": ort.__version__,
            "golden": golden,
            "nodes": len(model.graph.node),
        },
        "file": {**{name: document["file"][name] for name in OF_FILE}, "bytes": expanded.bytes},
        **{name: document[name] for name in TAKEN_OVER if name in document},
    }
