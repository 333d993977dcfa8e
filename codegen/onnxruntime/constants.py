"""One packed constant: its initializers and the call that rebuilds it, for the exporter and the size model alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime.functions import DOMAIN, UnpackFunction, UnpackKind
from ptqc.codegen.onnxruntime.rows import Pick
from ptqc.formats.planes import pack_rows, planes_of, unpack
from ptqc.solutions import Solution

Share = Callable[[np.ndarray], str]


@dataclass(frozen=True)
class UnpackedConstant:
    """What stands for one weight: function called, and the call node (its arrays went through `share`)."""

    function: UnpackFunction
    call: onnx.NodeProto


def narrow_bias(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """(array, factor): int16 with a common power of two taken out where all codes then fit, else int32 and 1."""
    joined = int(np.bitwise_or.reduce(codes.astype(np.int64), initial=0))
    factor = joined & -joined if joined else 1
    reduced = codes // factor
    if np.abs(reduced).max(initial=0) <= np.iinfo(np.int16).max:
        return reduced.astype(np.int16), factor
    return codes.astype(np.int32), 1


def _call(
    function: UnpackFunction, inputs: Sequence[str], outputs: Sequence[str], shape: Sequence[int]
) -> onnx.NodeProto:
    attributes: dict[str, Any] = {"d": list(shape)} if function.takes_shape else {}
    return helper.make_node(function.name, inputs, outputs, domain=DOMAIN, **attributes)


def layer(solution: Solution, bias: np.ndarray, step: str, outputs: Sequence[str], share: Share) -> UnpackedConstant:
    """Weight and bias of an integer layer. step: name of the input's scale; outputs: names of weight and bias."""
    function = UnpackFunction(UnpackKind.LAYER, solution.form, solution.axis)
    narrow, factor = narrow_bias(bias)
    packed = solution.form.pack(solution.codes, solution.scale)
    inputs = [share(a) for a in (*packed, narrow)] + [step, share(np.array(factor, np.int32))]
    return UnpackedConstant(function, _call(function, inputs, outputs, solution.codes.shape))


def weight(solution: Solution, output: str, share: Share, *, as_float: bool) -> UnpackedConstant:
    """A weight alone: for an integer product without bias, or as a float constant."""
    form, codes, axis = solution.form, solution.codes, solution.axis
    if not form.is_scaled:
        function = UnpackFunction(UnpackKind.VALUES, form)
    else:
        function = (
            UnpackFunction(UnpackKind.FLOAT, form, axis, codes.ndim)
            if as_float
            else UnpackFunction(UnpackKind.WEIGHT, form, axis)
        )
    inputs = [share(a) for a in form.pack(codes, solution.scale)]
    return UnpackedConstant(function, _call(function, inputs, [output], codes.shape))


def picked(pick: Pick, share: Share) -> UnpackedConstant:
    """Rows of a table, unpacked when they are read."""
    function = UnpackFunction(UnpackKind.ROWS, pick.solution.form, 0, pick.rank)
    inputs = [share(array) for array in by_row(pick.solution)]
    return UnpackedConstant(function, _call(function, [*inputs, pick.places], [pick.rows], ()))


def by_row(solution: Solution) -> list[np.ndarray]:
    """What is stored of a table (rows, n) of which each row is packed for itself."""
    form, rows = solution.form, len(solution.codes)
    stored = form.pack(solution.codes, solution.scale)
    count = len(form.planes())
    size = solution.codes.size // form.group
    if planes_of(form.bits):
        index = unpack(tuple(stored[:count]), form.bits, size)
        return [*pack_rows(index.reshape(rows, -1), form.bits), *stored[count:]]
    return [stored[0].reshape(rows, -1), *stored[1:]]


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer with raw data."""
    return numpy_helper.from_array(np.asarray(array, order="C"), name)
