"""Where buffers lie in the arena: those that are never needed at the same time share memory.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020): the largest one
first, each at the lowest place that is free during its whole life. What a step may write over its input lies there.
Layers then unpack as many rows at a time as fit into what is free meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptqc.codegen.c.network import ALIGNMENT, Buffer, Home, Step


@dataclass(frozen=True)
class Arena:
    """bytes: of all. places: of buffers. lives: steps during which memory is needed, by the buffer that it is for.

    scratch: where the memory of each step begins that it needs meanwhile; panels: rows that it unpacks at a time.
    """

    bytes: int
    places: Mapping[Buffer, int]
    lives: Mapping[Buffer, range]
    scratch: Sequence[int]
    panels: Sequence[int]

    def taken(self, number: int) -> Iterator[tuple[Buffer, int]]:
        """Buffers that hold something during a step, with their places."""
        for buffer, life in self.lives.items():
            if number in life:
                yield buffer, self.places[buffer]


def plan(steps: Sequence[Step]) -> Arena:
    """Places for all buffers and for what each step needs meanwhile."""
    homes = _homes(steps)
    lives = _lives(steps, homes)
    needs = [Buffer("scratch", step.scratch(step.panels[0])) for step in steps]
    every = {**lives, **{need: range(at, at + 1) for at, need in enumerate(needs) if need.bytes}}
    places: dict[Buffer, int] = {}
    for buffer in sorted(every, key=lambda each: (-each.bytes, every[each].start)):
        places[buffer] = _lowest(buffer, every, places)
    top = max((places[buffer] + _rounded(buffer.bytes) for buffer in every), default=0)
    scratch, panels = [], []
    for at, step in enumerate(steps):
        begin, size = _largest_gap(at, lives, places, top)
        fitting = [rows for rows in step.panels if step.scratch(rows) <= size]
        panels.append(fitting[-1] if fitting else step.panels[0])
        scratch.append(begin if fitting else places.get(needs[at], 0))
    shared = {buffer: places[home] for buffer, home in homes.items()}
    return Arena(top, {**places, **shared}, lives, scratch, panels)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _homes(steps: Sequence[Step]) -> dict[Buffer, Buffer]:
    """The buffer in whose memory each one lies: itself, or what its step may write over."""
    last: dict[Buffer, int] = {}
    for at, step in enumerate(steps):
        last.update(dict.fromkeys((*step.reads, *step.writes), at))
    homes: dict[Buffer, Buffer] = {}
    for at, step in enumerate(steps):
        for buffer in step.writes:
            if buffer.home is not Home.ARENA or buffer in homes:
                continue
            first = step.reads[0] if step.reads else None
            is_free = (
                step.overwrites
                and first is not None
                and first in homes
                and first.bytes >= buffer.bytes
                and all(last[other] <= at for other, home in homes.items() if home is homes[first])
                and step.reads.count(first) == 1
            )
            homes[buffer] = homes[first] if is_free and first is not None else buffer
    return homes


def _lives(steps: Sequence[Step], homes: Mapping[Buffer, Buffer]) -> dict[Buffer, range]:
    """The steps during which memory is needed."""
    lives: dict[Buffer, range] = {}
    for at, step in enumerate(steps):
        for buffer in (*step.reads, *step.writes):
            if buffer in homes:
                home = homes[buffer]
                lives[home] = range(lives.get(home, range(at, at)).start, at + 1)
    return lives


def _lowest(buffer: Buffer, lives: Mapping[Buffer, range], places: Mapping[Buffer, int]) -> int:
    """The lowest free place for a buffer."""
    begin = 0
    for other, place in sorted(places.items(), key=lambda each: each[1]):
        meets = lives[other].start < lives[buffer].stop and lives[buffer].start < lives[other].stop
        if meets and begin + buffer.bytes > place and place + _rounded(other.bytes) > begin:
            begin = place + _rounded(other.bytes)
    return begin


def _largest_gap(at: int, lives: Mapping[Buffer, range], places: Mapping[Buffer, int], top: int) -> tuple[int, int]:
    """Where the most bytes are free during a step, and how many."""
    taken = sorted((places[b], places[b] + _rounded(b.bytes)) for b, life in lives.items() if at in life)
    best, begin = (0, 0), 0
    for start, end in [*taken, (top, top)]:
        best = max(best, (start - begin, begin), key=lambda gap: gap[0]) if start > begin else best
        begin = max(begin, end)
    return best[1], best[0]
