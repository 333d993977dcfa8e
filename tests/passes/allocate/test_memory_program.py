"""Memory in the joint program: every step against the model of memory, and the least loss against all choices."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from test_cost_model import TIMES, plan_of
from test_memory_model import SHAPES, mixed_model

from ptqc.passes.allocate.allocation import LOSS
from ptqc.passes.allocate.joint import (
    CODES,
    FLOAT,
    SiteCosts,
    StepCosts,
    WeightCosts,
    _largest,
    joint_choice,
    with_memory,
)
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.solver.integer_program import Goal, JointChoice, NoSelection, solve

SITES = {"x": ("x",), "ar": ("ar", "p"), "y": ("y",)}
SITE_OF = {tensor: site for site, tensors in SITES.items() for tensor in tensors}


@pytest.fixture(scope="module")
def model() -> MemoryModel:
    graph = mixed_model()
    return MemoryModel.of(graph, plan_of(graph), SHAPES)


def program_of(model: MemoryModel, losses: dict[str, float]) -> tuple[JointChoice, dict[str, int]]:
    sites = [SiteCosts(name, tensors, losses[name]) for name, tensors in SITES.items()]
    return with_memory(joint_choice(sites, WeightCosts(), model.network, TIMES), model, SITE_OF)


def choices() -> Iterator[dict[str, str]]:
    for states in itertools.product((FLOAT, CODES), repeat=len(SITES)):
        yield dict(zip(SITES, states, strict=True))


def tensors(selection: dict[str, str]) -> list[str]:
    return [tensor for name, state in selection.items() if state == CODES for tensor in SITES[name]]


def test_each_step_has_the_bytes_of_the_model(model: MemoryModel) -> None:
    program, most = program_of(model, dict.fromkeys(SITES, 1.0))
    for selection in choices():
        costs, quantized = program.costs(selection), tensors(selection)
        result = {step: costs[step] for step in most}
        wanted = {f"memory at {s}": b for s, b in zip(model.steps, model.running(quantized), strict=True)}
        assert result == {step: wanted[step] + model.loaded(quantized) for step in most}
        # Steps that were left out never need more than all of those that stayed.
        assert max(result.values()) == model.peak(quantized)
        assert all(result[step] <= most[step] for step in most)


@pytest.mark.parametrize("seed", range(10))
def test_no_choice_within_the_memory_loses_less(model: MemoryModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = {site: float(rng.uniform(0.1, 1) * rng.choice([-1, 1])) for site in SITES}
    program, most = program_of(model, losses)
    peaks = {tuple(c.items()): model.peak(tensors(c)) for c in choices()}
    limit = int(rng.choice(sorted(set(peaks.values())))) + int(rng.integers(-1, 2))

    def loss(selection: dict[str, str]) -> float:
        return sum(losses[site] for site, state in selection.items() if state == CODES)

    within = [loss(dict(c)) for c, peak in peaks.items() if peak <= limit]
    goal = Goal(LOSS, dict.fromkeys(most, float(limit)))
    if not within:
        with pytest.raises(NoSelection):
            solve(program, goal)
        return
    answer = solve(program, goal)
    assert model.peak(tensors({k: str(v) for k, v in answer.selection.items()})) <= limit
    assert answer.value == pytest.approx(min(within), abs=1e-6)


def test_steps_within_others_are_left_out() -> None:
    small, large, other = StepCosts(3, {"e": 2}), StepCosts(3, {"e": 2, ("s", FLOAT): 1}), StepCosts(0, {"f": 9})
    assert _largest([small, large, other, small, large]) == {1: large, 2: other}
    assert StepCosts(1, {("s", FLOAT): 4, ("s", CODES): 1, "e": 2}).most == 7
