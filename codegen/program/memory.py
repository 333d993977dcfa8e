"""A static plan of memory: values that are never needed at the same time share a slot.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020): the largest
value first, each into the first slot that is free during its whole life.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program
from ptqc.runtime.lengths import Size, SymExpr, at, hint


@dataclass(frozen=True)
class Memory:
    """slots: of every value between inputs and outputs. sizes: bytes of each slot for one sample, which are the largest
    of these, of which only those that vary with the lengths of a run are several.
    """

    slots: Mapping[str, int]
    sizes: tuple[tuple[Size, ...], ...]

    def at(self, lengths: Mapping[str, int]) -> int:
        """Bytes of all slots for one sample of these lengths."""
        return sum(max(at(size, lengths) for size in sizes) for sizes in self.sizes)


def plan(program: Program) -> Memory:
    """Slots for what the steps of a program make, its outputs aside."""
    homes = _homes(program)
    lives = _lives(program, homes)
    slots: dict[str, int] = {}
    taken: list[list[range]] = []
    sizes: list[tuple[Size, ...]] = []
    for name in sorted(lives, key=lambda name: (-hint(size(program.layouts[name])), lives[name].start)):
        slot = next((i for i, other in enumerate(taken) if not any(_meet(lives[name], o) for o in other)), len(taken))
        if slot == len(taken):
            taken.append([])
            sizes.append(())
        taken[slot].append(lives[name])
        sizes[slot] = _with(sizes[slot], size(program.layouts[name]))
        slots[name] = slot
    return Memory({name: slots[home] for name, home in homes.items()}, tuple(sizes))


def _with(sizes: tuple[Size, ...], more: Size) -> tuple[Size, ...]:
    varying = [size for size in dict.fromkeys((*sizes, more)) if isinstance(size, SymExpr)]
    fixed = [size for size in (*sizes, more) if isinstance(size, int)]
    return (*varying, *([max(fixed)] if fixed else []))


def size(layout: Layout) -> Size:
    """Bytes of one sample."""
    return layout.stride * layout.itemsize


def _homes(program: Program) -> dict[str, str]:
    """For every value that gets a slot, the value in whose memory it lies: itself, or the one it was placed in."""
    homes = {step.output: step.output for step in program.steps if step.output not in program.outputs}
    for step in reversed(program.steps):
        for name in step.placed:
            homes[name] = homes.get(step.output, name)
    return homes


def _lives(program: Program, homes: Mapping[str, str]) -> dict[str, range]:
    """The steps during which memory must be kept: from the first one that writes there to the last one that reads."""
    lives: dict[str, range] = {}
    for place, step in enumerate(program.steps):
        for name in (*step.inputs, step.output):
            if name in homes:
                start = lives.get(homes[name], range(place, place)).start
                lives[homes[name]] = range(start, place + 1)
    return lives


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
