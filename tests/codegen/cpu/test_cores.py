"""Times of Arm cores that are not here: which cores, and the sum of a layer done by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from ptqc.codegen.cpu import cores, isa
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import CompiledKernel, Program, ProgramStep
from ptqc.runtime.lengths import SymDim

A76 = "Cortex-A76 (Raspberry Pi 5)"


def program(family: str = "dense", operations: int = 2 * 16_000_000, **more: Any) -> Program:
    kernel = CompiledKernel(family, "k", None, (np.zeros(1000, np.int8),), operations)
    layouts = {"x": Layout((16, 10, 10), "uint8"), "y": Layout((32, 10, 10), "uint8")}
    return Program((ProgramStep(kernel, ("x",), "y", "y"),), layouts, ("x",), ("y",), **more)


def test_only_cores_with_the_instructions_are_told() -> None:
    times = {chosen: cores.predicted(program(), chosen) for chosen in (isa.ARM_NEON, isa.ARM_DOTPROD, isa.ARM_I8MM)}
    assert times[isa.ARM_NEON].keys() == cores.CORES.keys()
    assert "Cortex-A72 (Raspberry Pi 4)" not in times[isa.ARM_DOTPROD]
    assert times[isa.ARM_I8MM].keys() == {name for name, core in cores.CORES.items() if "usmmla" in core.rates}
    assert cores.predicted(program(), isa.AVX2) == {}
    assert cores.predicted(program(lengths=(SymDim("time", 5),)), isa.ARM_NEON) == {}


def test_a_layer_takes_its_products_and_its_results() -> None:
    """16 million products by sdot, 16 at a time and 2 in a cycle of 1 / 2.4 ns; then 3,200 results."""
    cycles = 1_000_000 / 2 / cores.USED + cores.EPILOGUE * 3200 / 2
    assert cores.predicted(program(), isa.ARM_DOTPROD)[A76] == pytest.approx(cycles / 2.4e6, abs=1e-3)


def test_better_instructions_take_less_time() -> None:
    times = [cores.predicted(program(), one)["Cortex-X4"] for one in (isa.ARM_NEON, isa.ARM_DOTPROD, isa.ARM_I8MM)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3


def test_weights_beyond_the_cache_come_from_memory() -> None:
    one = program(operations=2000)
    (step,) = one.steps
    many = replace(step, kernel=replace(step.kernel, constants=(np.zeros(8_000_000, np.int8),)))
    assert cores.predicted(replace(one, steps=(many,)), isa.ARM_DOTPROD)[A76] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("family", ["depthwise", "depthwise_float", "dense_float", "pool", "matmul"])
def test_every_family_has_a_time(family: str) -> None:
    assert all(time > 0 for time in cores.predicted(program(family), isa.ARM_I8MM).values())
