"""A static plan of memory: values that are never needed at the same time share a slot.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020): the largest
value first, each into the first slot that is free during its whole life.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.program import Program


@dataclass(frozen=True)
class Memory:
    """slots: of every value between inputs and outputs. sizes: bytes of each slot for one sample."""

    slots: Mapping[str, int]
    sizes: tuple[int, ...]


def plan(program: Program) -> Memory:
    """Slots for what the steps of a program make, its outputs aside."""
    lives = _lives(program)
    slots: dict[str, int] = {}
    taken: list[list[range]] = []
    sizes: list[int] = []
    for name in sorted(lives, key=lambda name: (-size(program.layouts[name]), lives[name].start)):
        slot = next((i for i, other in enumerate(taken) if not any(_meet(lives[name], o) for o in other)), len(taken))
        if slot == len(taken):
            taken.append([])
            sizes.append(size(program.layouts[name]))
        taken[slot].append(lives[name])
        slots[name] = slot
    return Memory(slots, tuple(sizes))


def size(layout: Layout) -> int:
    """Bytes of one sample."""
    return layout.stride * np.dtype(layout.dtype).itemsize


def _lives(program: Program) -> dict[str, range]:
    """The steps during which a value must be kept: from the one that makes it to the last one that reads it."""
    lives: dict[str, range] = {}
    for place, step in enumerate(program.steps):
        for name in step.inputs:
            if name in lives:
                lives[name] = range(lives[name].start, place + 1)
        if step.output not in program.outputs:
            lives[step.output] = range(place, place + 1)
    return lives


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
