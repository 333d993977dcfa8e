"""The hull of all plans, against every plan there is."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mostly_slow import mostly_slow
from whole_plans import FORMS, plans, problem_of

from ptqc.passes.allocate.allocation import Candidate, Problem, allocate, best_choice, frontier, smallest_choice

ALL = 1000


def sizes_and_losses(problem: Problem) -> list[tuple[int, float]]:
    """Of all plans."""
    return [(size, loss) for _, loss, size in plans(problem)]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_no_plan_without_shared_parts_is_better(seed: int) -> None:
    problem = dataclasses.replace(problem_of(seed), once=dict.fromkeys(["domain", "L2", "L4", "L8"], 0))
    every = sizes_and_losses(problem)
    for size, loss in frontier(problem, max(every)[0], ALL):
        assert loss == pytest.approx(min(other for bytes_, other in every if bytes_ <= size), rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_points_are_plans_from_the_smallest_to_the_best(seed: int) -> None:
    problem = problem_of(seed)
    every = sizes_and_losses(problem)
    points = frontier(problem, max(every)[0], ALL)
    for point in points:
        assert any(point == pytest.approx(plan, rel=1e-12) for plan in every)
    assert points[0][0] == problem.size(smallest_choice(problem))
    assert points[-1][1] == pytest.approx(min(loss for _, loss in every))
    steps = np.diff(np.array(points), axis=0)
    assert (steps[:, 0] > 0).all()
    assert (steps[:, 1] < 0).all()
    # Convex: each byte more gains less than the one before.
    assert (np.diff(steps[:, 1] / steps[:, 0]) > 0).all()


@pytest.mark.parametrize("seed", mostly_slow(range(8), *range(4)))
def test_shared_parts_as_an_integer_program_chooses_them(seed: int) -> None:
    """Many weights share a few parts, as the functions that unpack formats in real files."""
    random = np.random.default_rng(seed)
    once = {f"L{form.bits}": int(random.integers(300, 2000)) for form in FORMS}
    candidates = [
        Candidate(f"w{i}", form, size * form.bits // 8, float(loss * 4.0**-form.bits), (f"L{form.bits}",))
        for i, (size, loss) in enumerate(zip(random.integers(20, 9000, 20), random.lognormal(0, 3, 20), strict=True))
        for form in FORMS
    ]
    problem = Problem(tuple(candidates), 500, once)
    points = frontier(problem, 10**9, 12)
    assert len(points) == 12
    for size, loss in points:
        assert loss <= allocate(problem, size).loss * (1 + 1e-4)


def test_few_points_lie_apart() -> None:
    problem = problem_of(5)
    largest = problem.size(best_choice(problem))
    few, every = frontier(problem, largest, 4), frontier(problem, largest, ALL)
    assert len(few) == 4 < len(every)
    assert set(few) < set(every)


def test_nothing_larger_or_beyond_the_memory() -> None:
    forms = dict(zip(FORMS, (30, 20, 10, 0), strict=True))
    candidates = [
        Candidate(w, f, f.bits, k * 2.0**-f.bits, (), m) for k, w in ((1, "a"), (2, "b")) for f, m in forms.items()
    ]
    free = Problem(tuple(candidates), 0)
    assert [size for size, _ in frontier(free, 16, ALL)] == [4, 6, 8, 12, 16]
    assert [size for size, _ in frontier(dataclasses.replace(free, memory=25), 99, ALL)] == [16, 24, 32]


def test_one_plan() -> None:
    assert frontier(Problem((), 100), 100, 12) == [(100, 0.0)]
    assert frontier(Problem((Candidate("a", FORMS[0], 5, 0.5),), 100), 1000, 12) == [(105, 0.5)]
