"""Simulated compiles against what pencil and paper give."""

import math

import numpy as np
import pytest
from scaling.simulation import Block, Cluster, Job, Unit, simulate


def job(*blocks: Block, before: float = 0.0, after: float = 0.0) -> Job:
    return Job(before, blocks, after)


def even(count: int, make: float = 0.0) -> Block:
    return Block(0.0, (Unit(make, 1.0),) * count)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 12, 40])
def test_equal_units_take_turns(workers: int) -> None:
    result = simulate(job(even(12), before=5, after=2), Cluster(workers))
    assert result.solving == math.ceil(12 / workers)
    assert result.seconds == 7 + result.solving
    assert result.busy == pytest.approx(12 / (workers * result.solving))


def test_units_go_to_whoever_is_free_in_their_order() -> None:
    block = Block(0.0, tuple(Unit(0.0, seconds) for seconds in (3.0, 1.0, 1.0, 4.0)))
    assert simulate(job(block), Cluster(2)).seconds == 6  # 3 beside 1, 1 and, from 2 on, 4


def test_a_block_waits_for_the_last_of_the_one_before() -> None:
    block = Block(0.5, (Unit(0.0, 3.0), Unit(0.0, 1.0)))
    assert simulate(job(block, block), Cluster(8)).seconds == 7


@pytest.mark.parametrize(("alone", "seconds"), [(True, 4 * 2 + 1), (False, 2 + 1)])
def test_problems_are_made_one_at_a_time(alone: bool, seconds: float) -> None:
    assert simulate(job(even(4, make=2.0)), Cluster(4, makes_alone=alone)).seconds == seconds


def test_a_link_carries_everything() -> None:
    """With many workers it is all that counts: every problem and result, but for what is solved behind the last."""
    block = Block(0.0, (Unit(0.0, 1.0, problem=300, result=100),) * 10)
    # The last problem has come at 30 s; its result begins at 31 s, when all others are back.
    assert simulate(job(block), Cluster(10, rate=100.0)).seconds == pytest.approx(40)
    assert simulate(job(block), Cluster(1, rate=100.0)).seconds == pytest.approx(10 * (3 + 1 + 1))


def test_results_are_kept_in_their_order() -> None:
    block = Block(0.0, (Unit(0.0, 5.0, keep=1.0), Unit(0.0, 1.0, keep=1.0), Unit(0.0, 1.0, keep=1.0)))
    assert simulate(job(block), Cluster(3)).seconds == 5 + 3
    assert simulate(job(block), Cluster(2)).seconds == 5 + 3
    assert simulate(job(block), Cluster(1)).seconds == 7 + 3  # a single thread does it, too


def largest_of(count: int, spread: float) -> float:
    """The mean of the largest of so many lognormal times of mean 1, by numerical integration."""
    z = np.linspace(-8, 8, 20_001)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float((count * density * below ** (count - 1) * np.exp(spread * z - spread**2 / 2)).sum() * (z[1] - z[0]))


def test_stragglers_keep_the_mean_and_hold_up_their_block() -> None:
    alone = simulate(job(*[even(1)] * 4000), Cluster(1, spread=0.5)).solving / 4000
    assert alone == pytest.approx(1.0, rel=0.03)
    largest = simulate(job(*[even(8)] * 1000), Cluster(8, spread=0.5)).solving / 1000
    assert largest == pytest.approx(largest_of(8, 0.5), rel=0.03)


def test_lost_workers_cost_what_renewal_theory_says() -> None:
    """A unit of 1 s on workers that live L s on average, the next one r s later: (L + r)(exp(1 / L) - 1) s."""
    lifetime, repair = 2.0, 0.5
    result = simulate(job(even(20_000)), Cluster(1, lifetime=lifetime, repair=repair))
    assert result.solving / 20_000 == pytest.approx((lifetime + repair) * math.expm1(1 / lifetime), rel=0.02)
    assert result.lost / 20_000 == pytest.approx(math.expm1(1 / lifetime), rel=0.03)


def test_a_seed_gives_the_same_again() -> None:
    cluster = Cluster(3, spread=0.3, lifetime=50.0, seed=4)
    assert simulate(job(even(50)), cluster) == simulate(job(even(50)), cluster)
    assert simulate(job(even(50)), cluster) != simulate(job(even(50)), Cluster(3, spread=0.3, lifetime=50.0, seed=5))


def test_nothing_to_solve() -> None:
    assert simulate(job(before=1, after=2), Cluster(2)).seconds == 3
