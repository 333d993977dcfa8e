"""Weights and sites in one program: its costs against those counted apart, and its optimum against all choices."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from mostly_slow import mostly_slow
from test_cost_model import TIMES, mixed

from ptqc.formats import FLOAT16, Integer
from ptqc.passes.allocate.allocation import BYTES, LOSS, Candidate, Problem
from ptqc.passes.allocate.joint import (
    CODES,
    FLOAT,
    NANOSECONDS,
    SiteCosts,
    Stored,
    WeightCosts,
    joint_choice,
    weight_choice,
)
from ptqc.solver.integer_program import Goal, JointChoice, NoSelection, contradiction, solve

FORMS = (Integer(2), Integer(4), FLOAT16)
LAYERS = {"w1": ("a",), "w2": ("y",), "table": ()}
SITES = {"x": ("x",), "ar": ("ar", "p"), "y": ("y",)}
NEEDED = {"a": {"x", "ar"}, "y": {"ar", "y"}}


def weighed(seed: int) -> WeightCosts:
    """Codes on integer kernels need other functions and bytes, and two bits of the first weight are refused there."""
    rng = np.random.default_rng(seed)
    real, codes = [], []
    for weight in LAYERS:
        size = int(rng.integers(50, 500))
        for form in FORMS:
            loss = float(rng.uniform(0.5, 2) * 4.0**-form.bits)
            real.append(Candidate(weight, form, size * form.bits // 8, loss, (f"F{form.bits}", "domain")))
            if not LAYERS[weight] or (form != FLOAT16 and (weight, form) != ("w1", Integer(2))):
                extra = int(rng.integers(-9, 30)) if LAYERS[weight] else 0
                needs = (f"L{form.bits}", "domain") if LAYERS[weight] else (f"F{form.bits}", "domain")
                codes.append(Candidate(weight, form, size * form.bits // 8 + extra, loss, needs))
    once = {name: int(rng.integers(20, 90)) for name in ("F2", "F4", "F16", "L2", "L4", "domain")}
    return WeightCosts(Problem(tuple(real), 400, once), Problem(tuple(codes), 430, once), LAYERS)


def site_costs(seed: int) -> list[SiteCosts]:
    rng = np.random.default_rng(seed)
    return [SiteCosts(name, tensors, float(rng.uniform(0, 0.1)), 10.0) for name, tensors in SITES.items()]


@dataclass(frozen=True)
class Counted:
    states: dict[str, object]
    loss: float
    bytes: float
    nanoseconds: float


def every(seed: int) -> Iterator[Counted]:
    """All choices, with their costs counted without the program."""
    known, sites = weighed(seed), site_costs(seed)
    real = {(c.weight, c.form): c for c in known.in_float.candidates}
    codes = {(c.weight, c.form): c for c in known.on_codes.candidates}
    for states in itertools.product((FLOAT, CODES), repeat=len(sites)):
        on = {site.name for site, state in zip(sites, states, strict=True) if state == CODES}
        tensors = [tensor for name in on for tensor in SITES[name]]
        for forms in itertools.product(FORMS, repeat=len(LAYERS)):
            read = [any(NEEDED[layer] <= on for layer in layers) for layers in LAYERS.values()]
            stored = [Stored(form, for_codes) for form, for_codes in zip(forms, read, strict=True)]
            picked = [
                (codes if one.for_codes else real).get((weight, one.form))
                for weight, one in zip(LAYERS, stored, strict=True)
            ]
            chosen = [candidate for candidate in picked if candidate is not None]
            if len(chosen) < len(picked):
                continue
            parts = {part for candidate in chosen for part in candidate.needs}
            size = 400 + sum(c.bytes for c in chosen) + sum(known.in_float.once[part] for part in parts) + 10 * len(on)
            loss = sum(c.loss for c in chosen) + sum(site.loss for site in sites if site.name in on)
            named: dict[str, object] = {s.name: state for s, state in zip(sites, states, strict=True)}
            named |= {weight_choice(weight): one for weight, one in zip(LAYERS, stored, strict=True)}
            yield Counted(named, loss, size, mixed().predict(TIMES, tensors))


def program(seed: int) -> JointChoice:
    return joint_choice(site_costs(seed), weighed(seed), mixed(), TIMES)


def test_costs_are_those_of_the_file_and_of_the_cost_model() -> None:
    joint, allowed = program(0), list(every(0))
    for counted in allowed:
        result = joint.costs(counted.states)
        assert result[BYTES] == counted.bytes
        assert result[LOSS] == pytest.approx(counted.loss)
        assert result[NANOSECONDS] == pytest.approx(counted.nanoseconds)
        assert joint.allows(counted.states)
    everything = itertools.product(*([option.state for option in group] for group in joint.choices.values()))
    names = list(joint.choices)
    assert sum(joint.allows(dict(zip(names, states, strict=True))) for states in everything) == len(allowed)


@pytest.mark.parametrize("seed", mostly_slow(range(8), 0, 1, 2))
def test_no_choice_within_size_and_time_loses_less(seed: int) -> None:
    rng, allowed = np.random.default_rng(seed + 100), list(every(seed))
    sizes, times = ([getattr(c, what) for c in allowed] for what in ("bytes", "nanoseconds"))
    size = min(sizes) + rng.uniform(0.02, 0.6) * (max(sizes) - min(sizes))
    time = min(times) + rng.uniform(0.02, 0.9) * (max(times) - min(times))
    within = [c.loss for c in allowed if c.bytes <= size and c.nanoseconds <= time]
    goal = Goal(LOSS, {BYTES: size, NANOSECONDS: time}, gap=0.0)
    if not within:
        with pytest.raises(NoSelection):
            solve(program(seed), goal)
        return
    result = solve(program(seed), goal)
    assert result.value == pytest.approx(min(within), rel=1e-6)
    assert result.costs[BYTES] <= size
    assert result.costs[NANOSECONDS] <= time


def test_a_size_and_a_time_that_exclude_each_other() -> None:
    """On codes the file is at least that of four bits; the smallest file has two bits and takes longer."""
    allowed = list(every(3))
    size, time = min(c.bytes for c in allowed), min(c.nanoseconds for c in allowed)
    result = contradiction(program(3), {NANOSECONDS: time, BYTES: size})
    assert result.resources == (NANOSECONDS, BYTES)
    assert result.alone == {NANOSECONDS: pytest.approx(time), BYTES: size}
    assert result.beside[BYTES] == min(c.bytes for c in allowed if c.nanoseconds <= time)
