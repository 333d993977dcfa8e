"""Small problems of allocation, and all of their plans."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from ptqc.formats import FLOAT16, Format, Integer
from ptqc.passes.allocate.allocation import Candidate, Problem

FORMS = (Integer(2), Integer(4), Integer(8), FLOAT16)


def problem_of(seed: int) -> Problem:
    """A small problem with parts that several candidates share."""
    rng = np.random.default_rng(seed)
    candidates = []
    for number in range(int(rng.integers(1, 6))):
        size, loss = int(rng.integers(20, 4000)), float(np.exp(rng.normal(0, 3)))
        for form in FORMS[: int(rng.integers(1, 5))]:
            needs = ("domain", f"L{form.bits}") if form.family == "int" else ()
            result = loss * 4.0**-form.bits * rng.uniform(0.5, 1.5) if form.family == "int" else 0.0
            candidates.append(Candidate(f"w{number}", form, size * form.bits // 8 + 60, result, needs))
    return Problem(tuple(candidates), int(rng.integers(100, 2000)), {"domain": 9, "L2": 300, "L4": 280, "L8": 90})


def plans(problem: Problem) -> Iterator[tuple[Mapping[str, Format], float, int]]:
    """Every choice there is with its loss and bytes, counted here again."""
    for chosen in itertools.product(*problem.by_weight().values()):
        shared = {name for candidate in chosen for name in candidate.needs}
        total = problem.fixed + sum(c.bytes for c in chosen) + sum(problem.once[name] for name in shared)
        yield {c.weight: c.form for c in chosen}, sum(c.loss for c in chosen), total
