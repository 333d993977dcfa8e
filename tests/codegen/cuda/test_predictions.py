"""Predicted times of kernels keep to what cannot be otherwise."""

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda.gpu_specs import CHIPS
from ptqc.codegen.cuda.predictions import predicted
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import CompiledKernel, Program, ProgramStep

LAUNCH = 3.0


def times(
    values: tuple[int, ...], made: tuple[int, ...], operations: int = 0, constant: int = 0, dtype: str = "float32"
) -> dict[str, float]:
    """Microseconds of one kernel, by chip."""
    constants = (np.zeros(constant, np.float32),) if constant else ()
    kernel = CompiledKernel("family", "name", None, constants, operations)
    layouts = {"x": Layout(values, dtype), "y": Layout(made, dtype)}
    (result,) = predicted(Program((ProgramStep(kernel, ("x",), "y", "y"),), layouts, ("x",), ("y",)))
    return dict(result)


LARGE = (64, 512, 512)


def test_what_does_nothing_takes_a_launch() -> None:
    assert times((1,), (1,)).keys() == CHIPS.keys()
    assert all(LAUNCH < microseconds < LAUNCH + 1 for microseconds in times((1,), (1,)).values())


def test_nothing_is_faster_than_its_bytes() -> None:
    for name, microseconds in times(LARGE, LARGE).items():
        assert microseconds - LAUNCH >= 2 * 4 * np.prod(LARGE) / CHIPS[name].bandwidth / 1e3 - 0.01
    assert times((64,), (64,), constant=10**7)["sm_89"] - LAUNCH >= 4e7 / 300e3
    reals, codes = times(LARGE, LARGE), times(LARGE, LARGE, dtype="uint8")
    assert all(reals[name] > codes[name] for name in CHIPS)


@pytest.mark.parametrize("operations", [10**8, 10**9])
def test_nothing_is_faster_than_its_operations(operations: int) -> None:
    for name, microseconds in times((4096,), (4096,), operations).items():
        chip = CHIPS[name]
        assert microseconds >= operations / (chip.processors * 128 * chip.clock * 1e3)


def test_a_few_threads_take_longer_than_many() -> None:
    assert times((64, 56, 56), (64,))["sm_80"] > 2 * times((64, 56, 56), (64, 56, 56))["sm_80"] - LAUNCH


def test_what_lies_in_the_output_already_is_neither_read_nor_written() -> None:
    kernel = CompiledKernel("family", "name", None, ())
    layouts = {"x": Layout((64, 510, 510), "uint8"), "y": Layout(LARGE, "uint8")}
    border = Program((ProgramStep(kernel, ("x",), "y", "y", placed=("x",)),), layouts, ("x",), ("y",))
    assert predicted(border)[0]["sm_80"] < LAUNCH + 1 < times(LARGE, LARGE, dtype="uint8")["sm_80"]


def test_a_kernel_that_says_its_times_keeps_them() -> None:
    kernel = CompiledKernel("dense_mma", "name", None, (), predicted={"sm_80": 7.5})
    program = Program((ProgramStep(kernel, ("x",), "y", "y"),), {}, ("x",), ("y",))
    assert predicted(program) == [{"sm_80": 7.5}]
