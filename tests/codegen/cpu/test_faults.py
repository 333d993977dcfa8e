"""Faults planted in the lowering: the comparison with the ONNX file must stop every one of them."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from mostly_slow import mostly_slow
from networks import FEEDS, residual
from tvm.tirx.script import builder

from ptqc.codegen.cpu import worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.kernels import epilogue, fusion
from ptqc.codegen.kernels.epilogue import Sum
from ptqc.codegen.kernels.families import depthwise, move, pool
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.op_lowerings import codes, layers
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program import memory, verify
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.constants import Order
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Window
from ptqc.errors import VerificationError

Changed = Callable[[Any], Any]  # from the right function to the wrong one


def without_clipping(right: Any) -> Any:
    def low_byte(words: Any, lanes: int) -> Any:
        return builder.bitwise_and(words, builder.Broadcast(builder.int16(255), 2 * lanes))

    return lambda self, a, b: right(self, low_byte(a, self.lanes), low_byte(b, self.lanes))


def channels_swapped(right: Any) -> Any:
    """Neighbouring output channels have each other's weights."""
    return lambda self, place: right(self, [*place[:6], place[6] ^ 1, place[7]])


def taps_reversed(right: Any) -> Any:
    def order(window: Window) -> Order:
        made = right(window)
        return Order(made.sizes, lambda place: made.source([made.sizes[0] - 1 - place[0], place[1]]))

    return order


def one_column_off(right: Any) -> Any:
    """What is padded on both sides lies at its left edge."""

    def frame(step: Any, index: int, layouts: Any) -> Any:
        made = right(step, index, layouts)
        if made is None or not made.at[2]:
            return made
        return replace(made, at=(made.at[0], made.at[1], made.at[2] - 1))

    return frame


def next_pixel(right: Any) -> Any:
    def add(self: Any, isa: Any, own: Any, made: Any, places: Any, *rest: Any) -> None:
        moved = [(sample, row, column + 1, channel) for sample, row, column, channel in places]
        right(self, isa, own, made, moved, *rest)

    return add


FAULTS: dict[str, tuple[Any, str, Changed]] = {
    "zero point off by one": (layers, "_with_zero_point", lambda right: lambda w, b, z: right(w, b, z + 1)),
    "bias dropped": (layers, "_with_zero_point", lambda right: lambda w, _b, z: right(w, None, z)),
    "border on the wrong side": (
        ProgramBuilder,
        "padded",
        lambda right: lambda self, name, p, v: right(self, name, [p[0] + p[2], p[1] + p[3], 0, 0], v),
    ),
    "border of zero codes": (ProgramBuilder, "padded", lambda right: lambda self, name, p, _v: right(self, name, p, 0)),
    "channels permuted": (Dense, "_source", channels_swapped),
    "stale scale": (layers, "multiplier", lambda right: lambda x, scale, y: right(x, scale, y) * 1.01),
    "rounded down": (Isa, "round", lambda right: lambda self, x: right(self, builder.floor(x))),
    "ratios of a sum swapped": (
        codes,
        "add_numbers",
        lambda right: lambda a, b, y: (right(b, a, y)[0], right(a, b, y)[0], right(a, b, y)[2]),
    ),
    "mean of too few": (pool, "mean_codes", lambda right: lambda x, y, i, z, f: right(x, y, i, z, f * 1.1)),
    "taps reversed": (depthwise, "_order", taps_reversed),
    "placed one column off": (fusion, "_frame", one_column_off),
    "border not written": (move, "border", lambda right: lambda x, y, _value, isa: right(x, y, 255, isa)),
    "sum before rounding": (epilogue, "rounded", lambda _right: lambda _isa, value, zero: value + zero),
    "other operand of a sum from the next pixel": (Sum, "add", next_pixel),
    "not saturated": (Isa, "saturate_codes", without_clipping),
}


# Of layers, borders, sums and what is behind them one each.
PLAIN = ("taps reversed", "border on the wrong side", "ratios of a sum swapped", "not saturated")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    made, file = residual()
    write_job(folder, made.lowered, file, FEEDS, Choices(Batching(2), "avx2"))
    return folder


def test_without_a_fault_nothing_differs(job: Path, tmp_path: Path) -> None:
    worker.build(shutil.copytree(job, tmp_path / "job"))


@pytest.mark.long
@pytest.mark.parametrize("fault", mostly_slow(FAULTS, *PLAIN))
def test_a_fault_is_found(fault: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.copytree(job, tmp_path / "job")  # a process opens one library of one path only once
    place, name, change = FAULTS[fault]
    monkeypatch.setattr(place, name, change(getattr(place, name)))
    with pytest.raises(VerificationError, match="differs from the ONNX file at"):
        worker.build(own)


def test_memory_that_is_shared_too_early_is_found(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.copytree(job, tmp_path / "job")
    monkeypatch.setattr(memory, "_meet", lambda _one, _other: False)
    with pytest.raises(VerificationError, match="as a whole differs from its own kernels at y"):
        worker.build(own)


class Shifted:
    """A library of one kernel, whose result is off by `by`."""

    def __init__(self, call: Call, wanted: np.ndarray, by: float) -> None:
        layouts = {name: Layout((3,), "float32") for name in (*call.inputs, call.output)}
        self.listing = Listing((call,), layouts, call.inputs, (call.output,))
        self.found = (wanted + by).astype(np.float32)

    def __call__(self, _call: Call, _inputs: Sequence[np.ndarray], _samples: int) -> np.ndarray:
        return self.found

    def samples(self, _values: verify.Values) -> int:
        return 1

    def bound(self, _values: verify.Values) -> "Shifted":
        return self


@pytest.mark.parametrize(("within", "is_wrong"), [((), True), (("c",), False)])
def test_a_function_is_measured_by_what_was_computed_on_the_way(within: tuple[str, ...], is_wrong: bool) -> None:
    call = Call("dense", "dense_0123", ("x",), "y", "y", 2, accuracy=SUM_OF_PRODUCTS, within=within)
    values = {name: np.array([[0.1, 0.5, size]], np.float32) for name, size in (("x", 1), ("c", 1000), ("y", 1))}
    loaded = cast(verify.Loaded, Shifted(call, values["y"], 1e-3))
    (result,) = verify.outcomes(loaded, values, {})
    assert bool(result.problem) is is_wrong
