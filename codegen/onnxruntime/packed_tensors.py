"""Where the tensors of a packed file are until it is delivered: in its message, or in a file of the compile's own."""

import hashlib
from collections.abc import Hashable
from typing import BinaryIO

import numpy as np
import onnx
from onnx import helper

from ptqc.codegen.onnxruntime.constants import tensor
from ptqc.graph.external import ALIGNED
from ptqc.graph.model_file import SMALL
from ptqc.graph.references import ROOT, refer, refers
from ptqc.work.scratch import Scratch

FILE = "packed"


class PackedTensors:
    """Makes initializers. The file of those that are spilled goes with this object.

    spilled: each large one is written as soon as it is made, and the message refers to it, so that no more than one is
    in memory; equal ones are written once.
    """

    def __init__(self, *, spilled: bool) -> None:
        self._scratch = Scratch() if spilled else None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0

    def make(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """An initializer with the values of an array."""
        if self._scratch is None or array.nbytes < SMALL or array.dtype.hasobject:
            return tensor(name, array)
        made = onnx.TensorProto(
            name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=list(array.shape)
        )
        path = self._scratch.folder / FILE
        with path.open("ab") as file:
            start, length = self._place(np.ascontiguousarray(array), file)
        refer(made, path.relative_to(ROOT).as_posix(), start, length)
        return made

    def _place(self, array: np.ndarray, file: BinaryIO) -> tuple[int, int]:
        values = array.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(values).digest()
        if digest not in self._places:
            start = -(-self._end // ALIGNED) * ALIGNED
            file.write(bytes(start - self._end))
            file.write(values)
            self._end = start + len(values)
            self._places[digest] = start, len(values)
        return self._places[digest]


def content(made: onnx.TensorProto) -> Hashable:
    """The same for initializers of equal type, shape and values."""
    place = tuple(entry.value for entry in made.external_data) if refers(made) else ()
    return made.data_type, tuple(made.dims), made.raw_data, tuple(made.string_data), place
