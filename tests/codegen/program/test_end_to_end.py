"""Integers that differ end to end follow from roundings of float parts, and how many of these there are is counted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.verify import Compared, Loaded, outcomes

SIZE = 4
# Two blocks, each of a float part, which is rounded to codes, and a sum over all codes on integers.
KINDS = {
    **dict.fromkeys(("x", "a_real", "b_real"), "float32"),
    **dict.fromkeys(("a_codes", "a_sums", "b_codes", "b_sums"), "int32"),
}
FAMILIES = {"real": "scale", "codes": "quantize", "sums": "sum"}
CALLS = tuple(
    Call(family, f"{block}_{stage}", (before,), f"{block}_{stage}", f"{block}_{stage}", 0)
    for block, first in (("a", "x"), ("b", "a_sums"))
    for before, (stage, family) in zip((first, f"{block}_real", f"{block}_codes"), FAMILIES.items(), strict=True)
)
LISTING = Listing(CALLS, {name: Layout((SIZE,), dtype, is_io=True) for name, dtype in KINDS.items()}, ("x",), ())


class Library:
    """Kernels in NumPy. off: a share by which the library's float parts differ from ONNX Runtime's."""

    constants: tuple[()] = ()

    def __init__(self, off: float) -> None:
        self.off = off

    def kernel(self, name: str) -> Callable[..., object]:
        def call(before: np.ndarray, output: np.ndarray) -> None:
            output[...] = computed(name, before, self.off)

        return call

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        return lambda: self.kernel(name)(*buffers)

    def run(self, feeds: Any) -> dict[str, np.ndarray]:
        raise AssertionError(feeds)


def computed(name: str, before: np.ndarray, off: float = 0.0) -> np.ndarray:
    stage = name.partition("_")[2]
    if stage == "real":
        return before.astype(np.float32) * np.float32(0.5 * (1 + off))
    return np.rint(before).astype(np.int32) if stage == "codes" else before + before.sum(-1, keepdims=True)


def onnx_runtime(x: np.ndarray) -> dict[str, np.ndarray]:
    values = {"x": x}
    for call in CALLS:
        values[call.output] = computed(call.output, values[call.inputs[0]]).astype(KINDS[call.output])
    return values


def compared(off: float) -> Compared:
    # Half of 5 lies between two codes: the least more is rounded up, and all sums after it are higher by it.
    values, result = onnx_runtime(np.array([[5, 20, 40, 7.2]], np.float32)), Compared()
    for outcome in outcomes(Loaded(LISTING, Library(off)), values, {}):
        assert outcome.problem == "" or outcome.is_real
        result.add(outcome)
    return result


def test_one_rounding_explains_every_integer_after_it() -> None:
    result = compared(1e-6)
    assert result.different["a_codes"] == 1
    assert result.different["a_sums"] == SIZE  # each of them has the sum of all codes in it
    assert result.rounded == {"a_codes": 1}


def test_nothing_differs_where_float_parts_are_the_same() -> None:
    result = compared(0.0)
    assert (result.different, result.rounded) == ({}, {})
