"""Values that are needed at the same time get different memory; others share it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ptqc.codegen.program import memory
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import CompiledKernel, Program, ProgramStep
from ptqc.runtime.lengths import of_length

NOTHING = CompiledKernel("none", "none_0", None, ())


def _step(value: str, made: str) -> ProgramStep:
    return ProgramStep(NOTHING, (value,), made, made)


def program(steps: list[tuple[str, str]], sizes: Mapping[str, Any]) -> Program:
    """steps: (names of inputs, name of output), one letter each; the last output is the program's."""
    made = tuple(ProgramStep(NOTHING, tuple(inputs), output, output) for inputs, output in steps)
    layouts = {name: Layout((size,), "uint8", is_io=True) for name, size in sizes.items()}
    return Program(made, layouts, ("x",), (steps[-1][1],))


def test_a_chain_takes_turns() -> None:
    result = memory.plan(program([("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")], {"a": 3, "b": 5, "c": 4, "y": 9}))
    assert result == memory.Memory({"b": 0, "c": 1, "a": 1}, ((5,), (4,)))


def test_what_is_read_again_is_kept() -> None:
    result = memory.plan(program([("x", "a"), ("a", "b"), ("ba", "c"), ("c", "y")], {"a": 8, "b": 8, "c": 8, "y": 1}))
    assert len(result.sizes) == 3


def test_a_value_nobody_reads_has_memory_of_its_own() -> None:
    result = memory.plan(program([("x", "a"), ("x", "b"), ("a", "y")], {"a": 8, "b": 8, "y": 1}))
    assert result.slots["a"] != result.slots["b"]


def test_what_is_placed_in_a_value_shares_its_memory_from_the_start() -> None:
    steps = [_step("x", "a"), _step("x", "b"), _step("b", "c")]
    steps += [ProgramStep(NOTHING, ("a", "c"), "w", "w", placed=("a",)), _step("w", "y")]
    layouts = {name: Layout((8,), "uint8", is_io=True) for name in "xabcwy"}
    result = memory.plan(Program(tuple(steps), layouts, ("x",), ("y",)))
    assert result.slots["a"] == result.slots["w"]
    assert len({result.slots[name] for name in "wbc"}) == 3


@pytest.mark.parametrize("seed", range(20))
def test_no_two_values_meet(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = "abcdefghijklmnop"
    steps = [("".join(random.choice(list("x" + names[:i]), 2)), name) for i, name in enumerate(names)]
    made = program(steps, {name: int(random.integers(1, 100)) for name in names})
    result = memory.plan(made)
    for place, step in enumerate(made.steps):
        later = {name for other in made.steps[place + 1 :] for name in other.inputs}
        alive = [name for name in later if name in names[: place + 1]]
        slots = [result.slots[name] for name in {*alive, *step.inputs, step.output} & result.slots.keys()]
        assert len(slots) == len(set(slots))
    assert all(max(result.sizes[slot]) >= memory.size(made.layouts[name]) for name, slot in result.slots.items())


def test_slots_of_sizes_that_vary_are_as_large_as_the_largest_that_is_in_them() -> None:
    time = of_length("time")
    result = memory.plan(
        program([("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")], {"a": 3, "b": time, "c": 90, "y": 9})
    )
    assert result.slots == {"c": 0, "a": 0, "b": 1}
    assert [result.at({"time": length}) for length in (1, 500)] == [91, 590]
