"""One packed constant: its initializers and the call that rebuilds it, for the exporter and the size model alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc import codebooks, grids
from ptqc.codegen.onnxruntime import planes
from ptqc.codegen.onnxruntime.functions import DOMAIN, Function, Kind
from ptqc.errors import InternalError
from ptqc.formats import Family, Format

Share = Callable[[np.ndarray], str]


@dataclass(frozen=True)
class Constant:
    """What stands for one weight: function called, and the call node (its arrays went through `share`)."""

    function: Function
    call: onnx.NodeProto


def narrow_scale(scale: np.ndarray) -> np.ndarray:
    """float16 where that is exact, else float32."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scale) else scale.astype(np.float32)


def narrow_bias(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """(array, factor): int16 with a common power of two taken out where all codes then fit, else int32 and 1."""
    joined = int(np.bitwise_or.reduce(codes.astype(np.int64), initial=0))
    factor = joined & -joined if joined else 1
    reduced = codes // factor
    if np.abs(reduced).max(initial=0) <= np.iinfo(np.int16).max:
        return reduced.astype(np.int16), factor
    return codes.astype(np.int32), 1


def _indices(codes: np.ndarray, form: Format) -> list[np.ndarray]:
    """What codes are stored as: planes of indices, and the levels of a codebook behind them."""
    match form.family:
        case Family.CODEBOOK | Family.PAIRS:
            index, levels = codebooks.indices(codes, form.group)
            unused = 2**form.bits - len(levels)
            if unused < 0:
                raise InternalError(f"{len(levels)} levels do not fit {form}")
            # Always as many, so that the bytes of a format do not depend on the numbers.
            levels = np.pad(levels, ((0, unused), (0, 0)), mode="edge")
            return [*(planes.pack(index, form.bits) or [index]), levels if form.group > 1 else levels.reshape(-1)]
        case Family.PALETTE:
            return list(planes.pack(codes, form.bits))
        case _:
            index = grids.index_of(codes.astype(np.int32), form)
            return [codes] if form.bits == 8 else list(planes.pack(index, form.bits))


def _call(function: Function, inputs: Sequence[str], outputs: Sequence[str], shape: Sequence[int]) -> onnx.NodeProto:
    attributes: dict[str, Any] = {"d": list(shape)} if function.has_shape else {}
    return helper.make_node(function.name, inputs, outputs, domain=DOMAIN, **attributes)


def layer(
    codes: np.ndarray,
    form: Format,
    scale: np.ndarray,
    bias: np.ndarray,
    step: str,
    axis: int,
    outputs: Sequence[str],
    share: Share,
) -> Constant:
    """Weight and bias of an integer layer. step: name of the input's scale; outputs: names of weight and bias."""
    function = Function(Kind.LAYER, form, axis)
    narrow, factor = narrow_bias(bias)
    arrays = [*_indices(codes, form), narrow_scale(scale), narrow]
    inputs = [share(a) for a in arrays] + [step, share(np.array(factor, np.int32))]
    return Constant(function, _call(function, inputs, outputs, codes.shape))


def weight(
    codes: np.ndarray, form: Format, scale: np.ndarray, axis: int, output: str, share: Share, *, as_float: bool
) -> Constant:
    """A weight alone: for an integer product without bias, or as a float constant."""
    function = Function(Kind.FLOAT, form, axis, codes.ndim) if as_float else Function(Kind.WEIGHT, form, axis)
    inputs = [share(a) for a in (*_indices(codes, form), narrow_scale(scale))]
    return Constant(function, _call(function, inputs, [output], codes.shape))


def palette(codes: np.ndarray, form: Format, values: np.ndarray, output: str, share: Share) -> Constant:
    """An exact constant of few distinct values."""
    function = Function(Kind.PALETTE, form)
    inputs = [share(a) for a in (*_indices(codes, form), values.astype(np.float32))]
    return Constant(function, _call(function, inputs, [output], codes.shape))


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer with raw data."""
    return numpy_helper.from_array(np.asarray(array, order="C"), name)
