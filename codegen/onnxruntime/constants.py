"""One packed constant: its initializers and the call that rebuilds it, for the exporter and the size model alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN, Pick, UnpackFunction, UnpackKind
from ptqc.formats import Coded, Format
from ptqc.formats.planes import MULTIPLE, pack_bits, pack_close, planes_of, unpack
from ptqc.formats.scales import narrow, roots
from ptqc.ir.integer_arithmetic import recovered_bias
from ptqc.ir.layers import is_by_row
from ptqc.ir.quantized_weight import QuantizedWeight

# Weights of at least so many numbers lie in close planes, whose functions are larger and need less memory.
LARGE = 2**17
Share = Callable[[np.ndarray], str]
Pack = Callable[[Format, np.ndarray, np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class UnpackedConstant:
    """What stands for one weight: function called, and the call node (its arrays went through `share`)."""

    function: UnpackFunction
    call: onnx.NodeProto


@dataclass(frozen=True)
class Bias:
    """Codes of a bias (int32) and what each counts (float32), per channel."""

    codes: np.ndarray
    step: np.ndarray


def _call(
    function: UnpackFunction, inputs: Sequence[str], outputs: Sequence[str], shape: Sequence[int], form: Format
) -> onnx.NodeProto:
    attributes: dict[str, Any] = {"d": list(shape)} if function.takes_shape else {}
    attributes |= form.parameters_of(shape)
    return helper.make_node(function.name, inputs, outputs, domain=DOMAIN, **attributes)


def packed(form: Format, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    """Arrays as they are stored."""
    return form.pack(codes, scale)


def sized(form: Format, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    """Arrays of the sizes of those that are stored."""
    return form.sized(codes, scale)


def layer(
    solution: QuantizedWeight,
    bias: Bias,
    x: str,
    outputs: Sequence[str],
    share: Share,
    *,
    tied: bool = False,
    pack: Pack = packed,
) -> UnpackedConstant:
    """Weight and bias of an integer layer. x: name of the scale of its input; outputs: names of weight and bias.

    tied: what is stored is that of a table, too. pack: `sized` where only its size matters.
    """
    stored, result = _Stored.of(solution, tied, pack), recovered_bias(bias.codes, bias.step)
    function = stored.read_by(UnpackFunction(UnpackKind.LAYER, solution.form, solution.axis))
    function = replace(function, whole=result is None)
    array, *unit = result or (bias.codes.astype(np.int32),)
    inputs = [*(share(a) for a in (*stored.arrays, array)), x, *(share(np.array(one)) for one in unit)]
    return UnpackedConstant(function, _call(function, inputs, outputs, stored.solution.codes.shape, solution.form))


def weight(
    solution: QuantizedWeight,
    output: str,
    share: Share,
    *,
    as_float: bool,
    tied: bool = False,
    pack: Pack = packed,
) -> UnpackedConstant:
    """A weight alone: for an integer product without bias, or as a float constant. tied, pack: as of `layer`."""
    form, axis = solution.form, solution.axis
    stored = _Stored.of(solution, tied, pack)
    if not form.is_scaled:
        function = UnpackFunction(UnpackKind.VALUES, form)
    else:
        function = (
            UnpackFunction(UnpackKind.FLOAT, form, axis, solution.codes.ndim)
            if as_float
            else UnpackFunction(UnpackKind.WEIGHT, form, axis)
        )
    function = stored.read_by(function)
    inputs = [share(a) for a in stored.arrays]
    return UnpackedConstant(function, _call(function, inputs, [output], stored.solution.codes.shape, form))


@dataclass(frozen=True)
class _Stored:
    """How a weight lies in the file.

    solution: of it in that order; turned: which of its axes are the weight's, where that is another one. in_bits:
    whether single bits are stored; padded: more of them than are needed.
    """

    solution: QuantizedWeight
    turned: tuple[int, ...]
    is_close: bool
    arrays: list[np.ndarray]
    in_bits: bool = False
    padded: bool = False

    @property
    def unrooted(self) -> bool:
        """Whether scales are stored as they are."""
        return self.solution.form.is_scaled and roots(self.solution.scale) is None

    @classmethod
    def of(cls, solution: QuantizedWeight, tied: bool, pack: Pack) -> "_Stored":
        """Groups and rows of tables lie within channels; planes of tables and of large weights are close."""
        form = solution.form
        placed, turned = _placed(solution, tied)
        by_row = tied and is_by_row(form, placed.codes.shape)
        fits = form.is_scaled and form.is_regular and placed.codes.size % (form.group * MULTIPLE) == 0
        is_close = bool(planes_of(form.bits)) and (by_row or (fits and placed.codes.size >= LARGE))
        if by_row or is_close:
            return cls(placed, turned, is_close, close(placed, by_row, pack))
        if form.in_order and form.is_packed:
            padded = placed.codes.size % (form.group * MULTIPLE) != 0
            return cls(placed, turned, False, _in_bits(placed), True, padded)
        padded = form.is_padded(placed.codes.size)
        return cls(placed, turned, False, _stored(placed, pack), padded=padded)

    def read_by(self, function: UnpackFunction) -> UnpackFunction:
        """The function that reads it as it lies."""
        form = None if self.in_bits or function.form is None else function.form.unpacked_as
        read = replace(function, form=form, turned=self.turned, close=self.is_close)
        return replace(read, padded=self.padded, unrooted=self.unrooted)


def _placed(solution: QuantizedWeight, tied: bool) -> tuple[QuantizedWeight, tuple[int, ...]]:
    """A weight with the axes in which it is stored, and which of them are its own; none where they are the same."""
    form = solution.form
    if form.along_inputs and form.within_channels and (by_tap := solution.by_tap()) is not solution:
        last = by_tap.codes.ndim - 1
        return by_tap, (0, last, *range(1, last))
    placed = solution.by_channel() if form.is_scaled and (tied or form.within_channels) else solution
    return placed, () if placed is solution else (1, 0)


def _stored(solution: QuantizedWeight, pack: Pack = packed) -> list[np.ndarray]:
    """What the format stores, and scales as the file has them."""
    stored = pack(solution.form, solution.codes, solution.scale)
    if not solution.form.is_scaled:
        return stored
    return [*stored[:-1], *(roots(solution.scale) or (narrow(solution.scale),))]


def _in_bits(solution: QuantizedWeight) -> list[np.ndarray]:
    """Single bits, what each weighs, levels and scales."""
    form, stored = solution.form, _stored(solution)
    index, remaining = stored[: len(form.planes())], stored[len(form.planes()) :]
    bits = pack_bits(indices(form, index, solution.codes.size), form.bits)
    weights, *levels = common(form).values()
    return [bits, weights, *levels, *remaining]


def common(form: Format) -> dict[str, np.ndarray]:
    """What weights of a format share, by name; of those that lie in single bits what each weighs, and their levels."""
    if not form.in_order:
        return dict(form.shared)
    weights = {f"weights of {form.bits} bits": (1 << np.arange(form.bits)).astype(np.uint8)[None]}
    if not isinstance(form, Coded) or "v" in form.inputs:
        return weights
    return {**weights, f"levels of {form}": form.levels(np.empty(0)).astype(np.int8)}


def indices(form: Format, stored: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The indices of so many numbers, one after the other, from what the format stores."""
    planes = tuple(stored[: len(form.planes())])
    return unpack(planes, form.bits, size // form.group) if planes_of(form.bits) else planes[0].reshape(-1)


def picked(pick: Pick, share: Share, *, pack: Pack = packed) -> UnpackedConstant:
    """Rows of a table, unpacked when they are read. pack: as of `layer`."""
    unrooted = roots(pick.solution.scale) is None
    form, shape = pick.solution.form, pick.solution.codes.shape
    rank = 0 if form.by_row else pick.rank  # then the function finds out
    function = UnpackFunction(UnpackKind.ROWS, form.unpacked_as, 0, rank, unrooted=unrooted)
    inputs = [share(array) for array in close(pick.solution, True, pack)]
    return UnpackedConstant(function, _call(function, [*inputs, pick.places], [pick.rows], shape, form))


def close(solution: QuantizedWeight, by_row: bool, pack: Pack = packed) -> list[np.ndarray]:
    """What is stored of a weight in close planes; by_row: of a table, with a row for each of its rows."""
    form, rows = solution.form, len(solution.codes) if by_row else 1
    count, stored = len(form.planes()), _stored(solution, pack)
    if form.by_row:
        return stored
    if not planes_of(form.bits):
        return [stored[0].reshape(rows, -1), *stored[1:]]
    index = indices(form, stored, solution.codes.size)
    return [*pack_close(index.reshape(rows, -1) if by_row else index, form.bits), *stored[count:]]
