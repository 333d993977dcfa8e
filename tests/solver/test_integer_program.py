"""The one program against brute force, its proofs, what contradicts itself, and its size."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ptqc.solver.integer_program import (
    Condition,
    Contradiction,
    Event,
    Goal,
    JointChoice,
    NoSelection,
    Option,
    Selection,
    contradiction,
    prices,
    solve,
)

STATES = ("float", "uint8", "bfloat16")
FORMS = ("int2", "int4", "pairs8", "float16")


def random_program(seed: int) -> JointChoice:
    """Weights on kernels that depend on sites: forms that these refuse, times, conversions, and shared functions."""
    rng = np.random.default_rng(seed)
    weights, sites = range(int(rng.integers(1, 5))), range(int(rng.integers(1, 5)))
    options = [
        Option(f"w{w}", form, {"loss": float(np.exp(rng.normal(-i, 1))), "bytes": int(rng.integers(20, 900))})
        for w in weights
        for i, form in enumerate(FORMS[: int(rng.integers(1, 5))])
    ]
    known = {(option.choice, option.state) for option in options}
    for s in sites:
        for state in STATES[: int(rng.integers(2, 4))]:
            loss = 0.0 if state == "float" else float(np.exp(rng.normal(-1, 1)))
            options.append(Option(f"s{s}", state, {"loss": loss, "bytes": 0 if state == "float" else 12}))
    events = []
    for w in weights:
        first, second = rng.integers(0, len(sites), 2)
        both = tuple(Condition((f"s{s}", "uint8")) for s in sorted({first, second}))
        on_codes = Event(f"on codes {w}", both, {"ns": -float(rng.integers(100, 900))})
        real = Condition((f"w{w}", "pairs8"))
        events.append(on_codes)
        if real.of in known:
            events.append(Event(f"refused {w}", (real, Condition(on_codes.name)), never=True))
        product = (Condition((f"w{w}", FORMS[0])), Condition(on_codes.name))
        events.append(
            Event(f"bias {w}", product, {"bytes": int(rng.integers(-40, 90)), "ns": float(rng.integers(-9, 9))})
        )
        border = (Condition((f"s{first}", "uint8")), Condition(on_codes.name, holds=False))
        events.append(Event(f"converted {w}", border, {"ns": float(rng.integers(10, 90))}))
    for form in FORMS:
        users = tuple(Condition((f"w{w}", form)) for w in weights if (f"w{w}", form) in known)
        if users:
            events.append(Event(f"function {form}", users, {"bytes": int(rng.integers(50, 400))}, every=False))
    return JointChoice(tuple(options), tuple(events), {"bytes": 1000, "ns": 4000.0})


def selections(program: JointChoice) -> Iterator[Selection]:
    for chosen in itertools.product(*program.choices.values()):
        selection = {option.choice: option.state for option in chosen}
        if program.allows(selection):
            yield selection


def check_optimum(seed: int) -> None:
    """The program's optimum is that of all selections, with two resources; and each resource's least within a loss."""
    program, rng = random_program(seed), np.random.default_rng(seed + 1)
    every = [program.costs(selection) for selection in selections(program)]
    limits = {}
    for resource in ("bytes", "ns"):
        result = sorted(costs[resource] for costs in every)
        limits[resource] = result[0] + float(rng.uniform(-0.02, 0.9)) * (result[-1] - result[0])
    check(program, every, Goal("loss", limits, gap=0.0))
    middle = float(np.median([costs["loss"] for costs in every]))
    check(program, every, Goal("bytes", {"loss": middle, "ns": limits["ns"]}, gap=0.0))


def check(program: JointChoice, every: list[dict[str, float]], goal: Goal) -> None:
    within = [costs for costs in every if all(costs[r] <= limit for r, limit in goal.limits.items())]
    if not within:
        with pytest.raises(NoSelection):
            solve(program, goal)
        return
    answer, best = solve(program, goal), min(costs[goal.least] for costs in within)
    assert program.allows(answer.selection)
    assert answer.costs == program.costs(answer.selection)
    assert all(answer.costs[resource] <= limit for resource, limit in goal.limits.items())
    assert answer.value == pytest.approx(best, rel=1e-5, abs=1e-6)
    assert answer.bound <= best + 1e-6 * (1 + abs(best))
    assert answer.status == "optimal"


@pytest.mark.parametrize("seed", range(20))
def test_no_selection_is_better(seed: int) -> None:
    check_optimum(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 220))
def test_no_selection_of_many_more_is_better(seed: int) -> None:
    check_optimum(seed)


def test_events_follow_from_options() -> None:
    options = tuple(Option(choice, state) for choice in "ab" for state in (0, 1))
    events = (
        Event("both", (Condition(("a", 1)), Condition(("b", 1))), {"cost": 5}),
        Event("one", (Condition(("a", 1)), Condition(("b", 1))), {"cost": 2}, every=False),
        Event("one alone", (Condition("one"), Condition("both", holds=False)), {"cost": 1}),
    )
    program = JointChoice(options, events, {"cost": 10})
    costs = {(a, b): program.costs({"a": a, "b": b})["cost"] for a in (0, 1) for b in (0, 1)}
    assert costs == {(0, 0): 10, (0, 1): 13, (1, 0): 13, (1, 1): 17}


def test_conditions_on_options_that_are_not_there_never_hold() -> None:
    (fine, bad), gone = (Option("a", state) for state in (0, 1)), Condition(("b", 1))
    events = (Event("both", (Condition(("a", 1)), gone), {"cost": -5}), Event("one", (gone,), {"cost": -9}))
    answer = solve(JointChoice((fine, bad, Option("b", 0, {"cost": 2})), events), Goal("cost"))
    assert answer.value == 2


def three_plans() -> JointChoice:
    """Few bytes, little time, or little loss: nothing has two of them."""
    return JointChoice(
        (
            Option("w", "small", {"loss": 5.0, "bytes": 10, "ns": 90}),
            Option("w", "fast", {"loss": 4.0, "bytes": 80, "ns": 20}),
            Option("w", "good", {"loss": 1.0, "bytes": 100, "ns": 100}),
        )
    )


def test_limits_that_contradict_each_other_say_what_each_needs() -> None:
    result = contradiction(three_plans(), {"loss": 9.0, "bytes": 50, "ns": 50})
    assert result == Contradiction(("bytes", "ns"), {"loss": 1.0, "bytes": 10, "ns": 20}, {"bytes": 80, "ns": 90})
    result = contradiction(three_plans(), {"bytes": 9, "ns": 50})
    assert (result.resources, result.alone["bytes"]) == (("bytes",), 10)


def test_a_price_is_what_a_wider_limit_gains() -> None:
    program, goal = three_plans(), Goal("loss", {"bytes": 85, "ns": 95})
    answer = solve(program, goal)
    assert answer.selection == {"w": "fast"}
    assert prices(program, goal, answer, {"bytes": 10, "ns": 10}) == {"bytes": 0.0, "ns": 0.0}
    wide = Goal("loss", {"bytes": 85, "ns": 100})
    assert prices(program, wide, solve(program, wide), {"bytes": 15, "ns": 1}) == {"bytes": 3.0, "ns": 0.0}


def test_a_run_that_a_limit_stopped_is_not_called_optimal() -> None:
    """The solver's status is `Optimal` for it."""
    program = large_program(40, 15)
    stopped = solve(program, Goal("loss", large_limits(program), gap=0.0, nodes=1))
    assert stopped.gap > 1e-4
    assert stopped.status == "gap"


def large_program(layers: int, candidates: int, seed: int = 0) -> JointChoice:
    """Losses over many orders of magnitude, and three resources that hardly depend on each other."""
    rng = np.random.default_rng(seed)
    options = []
    for layer in range(layers):
        size, sensitivity = np.exp(rng.normal(9, 1.5)), np.exp(rng.normal(0, 3))
        for state, bits in enumerate(np.sort(rng.uniform(1, 9, candidates))):
            spent = size * bits / 8 + 60, size * rng.uniform(0.2, 2), size * rng.choice([1, 4]) * rng.uniform(0.9, 1.1)
            costs = dict(zip(("bytes", "ns", "memory"), map(round, spent), strict=True))
            loss = float(sensitivity * 4.0**-bits * rng.uniform(0.5, 1.5))
            options.append(Option(f"w{layer}", state, {"loss": loss, **costs}))
    return JointChoice(tuple(options))


def large_limits(program: JointChoice, share: float = 0.15) -> dict[str, float]:
    limits = {}
    for resource in ("bytes", "ns", "memory"):
        ends = [[option.costs[resource] for option in group] for group in program.choices.values()]
        least, most = sum(map(min, ends)), sum(map(max, ends))
        limits[resource] = least + share * (most - least)
    return limits


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_a_thousand_layers_of_thirty_candidates(share: float) -> None:
    """In 10 s of a processor's time, to a proven gap of 0.1 %."""
    program = large_program(1000, 30)
    began = time.process_time()
    answer = solve(program, Goal("loss", large_limits(program, share), gap=1e-3))
    assert time.process_time() - began < 10
    assert answer.gap <= 1e-3
