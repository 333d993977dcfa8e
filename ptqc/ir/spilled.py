"""Tensors of a message that go to a file of the compile's own as they are made."""

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.ir.external import ALIGNED
from ptqc.ir.model_file import SMALL
from ptqc.ir.references import ROOT, refer, refers
from ptqc.utils.scratch import Scratch

FILE = "tensors"


class SpilledTensors:
    """Makes initializers: small ones hold their values, large ones refer to the file, which goes with this object.

    No more than one large one is in memory at a time; equal ones are written once. What is mapped stays readable.
    """

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0

    def make(self, name: str, array: np.ndarray) -> onnx.TensorProto:
        """An initializer with the values of an array."""
        if array.nbytes < SMALL or array.dtype.hasobject:
            return tensor(name, array)
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        made = onnx.TensorProto(name=name, data_type=number, dims=list(array.shape))
        path = self._file()
        with path.open("ab") as file:
            start, length = self._place(np.ascontiguousarray(array), file)
        refer(made, path.relative_to(ROOT).as_posix(), start, length)
        return made

    def _file(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.folder / FILE

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


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer with raw data."""
    return numpy_helper.from_array(np.asarray(array, order="C"), name)


def content(made: onnx.TensorProto) -> Hashable:
    """The same for initializers of equal type, shape and values, of one maker."""
    place = tuple(entry.value for entry in made.external_data) if refers(made) else ()
    return made.data_type, tuple(made.dims), made.raw_data, tuple(made.string_data), place
