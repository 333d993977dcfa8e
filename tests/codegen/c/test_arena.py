"""The plan of memory: what is needed at the same time never meets, and rows are unpacked in what is free."""

from functools import partial
from itertools import combinations, pairwise

import numpy as np

from ptqc.codegen.c.arena import ALIGNMENT, plan
from ptqc.codegen.c.network import Buffer, Home, Place, Step


def chain(sizes: list[int], *, overwrites: bool = False) -> list[Step]:
    """Steps that each read what the one before wrote."""
    buffers = [Buffer(f"b{place}", size) for place, size in enumerate(sizes)]
    return [
        Step("step", [Place(one), Place(other)], [one], [other], overwrites=overwrites)
        for one, other in pairwise(buffers)
    ]


def test_neighbours_do_not_meet_and_others_share() -> None:
    steps = chain([100, 200, 300, 100])
    arena = plan(steps)
    assert arena.bytes == 200 + 304


def test_a_step_may_write_over_its_input() -> None:
    steps = chain([100, 100, 96], overwrites=True)
    arena = plan(steps)
    assert arena.bytes == 104
    assert len(set(arena.places.values())) == 1


def test_it_does_not_where_somebody_reads_the_input_later() -> None:
    first, second, third = (Buffer(name, 64) for name in "abc")
    steps = [
        Step("step", [], [], [first]),
        Step("step", [], [first], [second], overwrites=True),
        Step("step", [], [first, second], [third], overwrites=True),
    ]
    arena = plan(steps)
    assert arena.places[first] != arena.places[second]
    assert arena.places[third] == arena.places[first]
    assert arena.bytes == 128


def test_what_lies_elsewhere_takes_nothing() -> None:
    (step,) = chain([100, 200])
    step.reads[0].home = step.writes[0].home = Home.CALLER
    assert plan([step]).bytes == 0


def test_rows_are_unpacked_in_what_is_free() -> None:
    steps = chain([8, 1000, 1000, 100, 100])
    steps[3].panels, steps[3].scratch = (2, 4, 8, 1000), lambda rows: 100 * rows
    arena = plan(steps)
    assert arena.bytes == 2000
    assert arena.panels[3] == 8  # 1,792 of 2,000 bytes are free


def _need(need: int, _rows: int) -> int:
    return need


def test_random_plans_keep_apart_what_is_needed_together() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        buffers = [Buffer(str(number), int(random.integers(1, 500))) for number in range(12)]
        steps = []
        for number, target in enumerate(buffers):
            reads = [buffers[int(each)] for each in random.integers(0, number, min(number, 2))] if number else []
            need = int(random.integers(0, 300))
            steps.append(
                Step("s", [], reads, [target], overwrites=bool(random.random() < 0.5), scratch=partial(_need, need))
            )
        arena = plan(steps)
        for at, step in enumerate(steps):
            taken = [(place, place + buffer.bytes) for buffer, place in arena.taken(at)]
            if need := step.scratch(arena.panels[at]):
                assert arena.scratch[at] % ALIGNMENT == 0
                taken.append((arena.scratch[at], arena.scratch[at] + need))
            assert max(end for _, end in taken) <= arena.bytes
            assert all(a[1] <= b[0] or b[1] <= a[0] for a, b in combinations(taken, 2))
