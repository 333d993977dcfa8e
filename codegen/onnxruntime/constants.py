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
from ptqc.graph.picked_rows import is_by_row
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


def layer(
    solution: Solution, bias: np.ndarray, step: str, outputs: Sequence[str], share: Share, *, tied: bool = False
) -> UnpackedConstant:
    """Weight and bias of an integer layer. step: name of the input's scale; outputs: names of weight and bias.

    tied: what is stored is that of a table, too.
    """
    stored, turned = _stored(solution, tied)
    function = UnpackFunction(UnpackKind.LAYER, solution.form, solution.axis, turned=turned)
    narrow, factor = narrow_bias(bias)
    inputs = [share(a) for a in (*packed(stored, tied), narrow)] + [step, share(np.array(factor, np.int32))]
    return UnpackedConstant(function, _call(function, inputs, outputs, stored.codes.shape))


def weight(solution: Solution, output: str, share: Share, *, as_float: bool, tied: bool = False) -> UnpackedConstant:
    """A weight alone: for an integer product without bias, or as a float constant. tied: as of `layer`."""
    form, axis = solution.form, solution.axis
    stored, turned = _stored(solution, tied)
    if not form.is_scaled:
        function = UnpackFunction(UnpackKind.VALUES, form, turned=turned)
    else:
        function = (
            UnpackFunction(UnpackKind.FLOAT, form, axis, solution.codes.ndim, turned)
            if as_float
            else UnpackFunction(UnpackKind.WEIGHT, form, axis, turned=turned)
        )
    inputs = [share(a) for a in packed(stored, tied)]
    return UnpackedConstant(function, _call(function, inputs, [output], stored.codes.shape))


def _stored(solution: Solution, tied: bool) -> tuple[Solution, bool]:
    """A weight as it lies in the file, and whether that is turned: groups and rows of tables lie within channels."""
    form = solution.form
    turned = solution.by_channel() if form.is_scaled and (tied or form.group > 1) else solution
    return turned, turned is not solution


def packed(solution: Solution, by_row: bool) -> list[np.ndarray]:
    """What is stored of a weight; by_row: in rows of whole bytes where its rows have such, as tables have."""
    if by_row and is_by_row(solution.form, solution.codes.shape):
        return _by_row(solution)
    return solution.form.pack(solution.codes, solution.scale)


def picked(pick: Pick, share: Share) -> UnpackedConstant:
    """Rows of a table, unpacked when they are read."""
    function = UnpackFunction(UnpackKind.ROWS, pick.solution.form, 0, pick.rank)
    inputs = [share(array) for array in packed(pick.solution, by_row=True)]
    return UnpackedConstant(function, _call(function, [*inputs, pick.places], [pick.rows], ()))


def _by_row(solution: Solution) -> list[np.ndarray]:
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
