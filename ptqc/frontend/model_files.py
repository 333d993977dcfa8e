"""From a path to a parsed protobuf, with a hint for each kind of file that people pass by mistake."""

import hashlib
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from ptqc.errors import Interrupted, ModelError
from ptqc.ir.external import fits_in_memory, skeleton
from ptqc.ir.nodes import constant, input_of
from ptqc.ir.operators import Trait, named

Data = bytes | memoryview
CHUNK = 1 << 20

# (where the bytes are, the bytes, what the file is and what to do)
SIGNATURES = (
    (0, b"version https://git-lfs", "is a Git LFS pointer, not the model itself: run `git lfs pull`"),
    (0, b"PK\x03\x04", "is a zip archive (PyTorch writes .pt files so), expected ONNX: export with torch.onnx.export"),
    (0, b"\x89HDF", "is an HDF5 file (Keras), expected ONNX: convert it with tf2onnx"),
    (0, b"\x1f\x8b", "is compressed with gzip, expected ONNX: unpack it first"),
    (4, b"TFL3", "is a TensorFlow Lite model, expected ONNX: convert it with tf2onnx"),
    (4, b"ORTM", "is an .ort file, expected ONNX: give the .onnx file that it was made from"),
)


def read_bytes(path: Path) -> Data:
    """The bytes of the file, mapped where they do not fit into memory.

    Raises ModelError for a path that holds no readable, non-empty file.
    """
    if not path.exists():
        raise ModelError("no such file; expected the path of an .onnx file")
    if path.is_dir():
        raise ModelError("is a folder; expected the path of an .onnx file")
    if not path.is_file():
        raise ModelError("is not a regular file; expected the path of an .onnx file")
    try:
        data = path.read_bytes() if fits_in_memory(path.stat().st_size) else _mapped(path)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from error
    if not data:
        raise ModelError("is empty (0 bytes); download or export the model again")
    return data


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def parse(data: Data) -> onnx.ModelProto:
    """The model in the bytes, of mapped ones a skeleton; raises ModelError, with a hint, where they are no model."""
    _check_signature(data)
    try:
        proto = skeleton(data) if isinstance(data, memoryview) else onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError, which publishes no type hints, or ValueError
        if _is_text(data):
            raise ModelError("is a text file; expected a binary ONNX model") from error
        raise ModelError(
            "is not an ONNX model, or is cut short, or nests subgraphs beyond 31 levels; download or export it again"
        ) from error
    if not proto.HasField("graph"):
        raise ModelError("holds no graph; it is cut short or not an ONNX model: download or export it again")
    if not proto.graph.node:
        raise ModelError("the graph has no nodes; there is nothing to compile")
    if not proto.graph.output:
        raise ModelError("the graph has no outputs; export the model again")
    return proto


@contextmanager
def translating() -> Iterator[None]:
    """Within it, whatever a library raises about a malformed model is a ModelError."""
    try:
        yield
    except Exception as error:  # whatever no check names
        reason: BaseException = error
        while reason.__cause__ is not None:  # onnx_ir wraps it in what it was reading, layer by layer
            reason = reason.__cause__
        message = " ".join(str(reason).split())
        raise ModelError(f"is damaged, or has what nothing here knows: {message}; export the model again") from error


def digest_of(data: Data, files: Mapping[str, Path]) -> str:
    """SHA-256 over the .onnx bytes, then each external file behind its location and length, by location."""
    digest = hashlib.sha256(data)
    for location, file in sorted(files.items()):
        digest.update(f"\0{location}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _check_signature(data: Data) -> None:
    for offset, signature, hint in SIGNATURES:
        if data[offset : offset + len(signature)] == signature:
            raise ModelError(hint)
    if bytes(data[:512]).lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise ModelError("is a web page (HTML), expected ONNX: the download went wrong, check its address")
    if _is_safetensors(data):
        raise ModelError("is a safetensors file: weights without a graph; export the model to ONNX")


def _is_safetensors(data: Data) -> bool:
    if len(data) < 10:
        return False
    (header,) = struct.unpack("<Q", data[:8])
    return bool(0 < header <= len(data) - 8 and data[8:9] == b"{")


def _is_text(data: Data) -> bool:
    try:
        head = bytes(data[:512]).decode("ascii")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\r\n\t" for character in head)


# Whether files are still those that were read: a large model stays in its files while it is compiled.

# Inode, time of the last change in nanoseconds, bytes; None where there is no file.
State = tuple[int, int, int] | None


@dataclass(frozen=True)
class FileStates:
    """What files were like when they were looked at."""

    states: Mapping[Path, State] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[Path]) -> "FileStates":
        """What they are like now."""
        return cls({file.absolute(): _state(file) for file in files})

    def __or__(self, others: "FileStates") -> "FileStates":
        return FileStates({**self.states, **others.states})

    def check(self) -> None:
        """Raises Interrupted where one was written to, replaced or removed since."""
        for file, state in self.states.items():
            if _state(file) != state:
                raise Interrupted(
                    f"{file} was changed while the model was compiled, and nothing of what was made since is kept; "
                    "a model of this size stays in its files: leave them as they are, and compile again"
                )


def _state(file: Path) -> State:
    try:
        result = file.stat()
    except OSError:
        return None
    return result.st_ino, result.st_mtime_ns, result.st_size


NOTHING = FileStates()


# Models that compute something else in every run: with operators that draw, or exported for training.

DRAWING = named(Trait.RANDOM)


def check_inference(model: ir.Model) -> None:
    """Refuse operators that draw inside of graphs and functions, and Dropout that is switched on.

    What nodes of the main graph draw is recorded: see `ptqc.ir.recorded`.
    """
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in body.all_nodes() if node.domain == ""):
        name = node.outputs[0].name if node.outputs else ""
        if node.op_type in DRAWING and node.graph is not model.graph:
            raise ModelError(
                f"the {node.op_type} node that gives {name!r} draws new random numbers in every run, inside a branch, "
                "a loop or a function, where they cannot be recorded: for a function, give the model that "
                "onnx.inliner.inline_local_functions makes; else have the numbers drawn before the branch or loop"
            )
        training = constant(input_of(node, 2)) if node.op_type == "Dropout" else None
        if training is not None and training.any():
            raise ModelError(
                f"the Dropout node that gives {name!r} is in training mode, so that every run differs; "
                "export the model in evaluation mode"
            )
