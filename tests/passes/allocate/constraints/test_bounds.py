"""One-sided bounds, against exact sums of binomial probabilities, tables and draws whose mean is known."""

import math
from fractions import Fraction

import numpy as np
import pytest
from mostly_slow import mostly_slow

from ptqc.passes.allocate.constraints.criteria import (
    CONFIDENCE,
    at_most,
    draws_needed,
    drop_at_most,
    mean_at_most,
    most_hits,
    most_of,
    student,
)


def exact(hits: int, count: int, share: float) -> float:
    """P(at most hits of count), in rational numbers."""
    p = Fraction(share)
    return float(sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(hits + 1)))


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (0, 64), (1, 64), (3, 100), (17, 60), (59, 60), (5, 1024)])
def test_shares_above_the_bound_show_so_few_hits_once_in_ten(hits: int, count: int) -> None:
    bound = most_of(hits, count)
    assert exact(hits, count, bound) == pytest.approx(1 - CONFIDENCE, rel=1e-9)
    assert at_most(hits, count, bound * 0.9) == pytest.approx(exact(hits, count, bound * 0.9), rel=1e-9)


def test_what_always_hits_has_no_bound() -> None:
    assert most_of(7, 7) == 1.0
    assert (at_most(3, 7, 0.0), at_most(6, 7, 1.0), at_most(7, 7, 1.0), at_most(-1, 7, 0.5)) == (1.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("share", mostly_slow([0.01, 0.05, 0.3], 0.05))
def test_the_most_hits_that_keep_a_share(share: float) -> None:
    for count in (1, 30, 229, 230, 400):
        passing = [hits for hits in range(count + 1) if most_of(hits, count) <= share]
        assert most_hits(count, share) == max(passing, default=-1)


def test_the_fewest_draws_that_can_show_a_share() -> None:
    assert draws_needed(0.01) == 230  # 0.99²³⁰ < 0.1 < 0.99²²⁹
    assert (most_hits(230, 0.01), most_hits(229, 0.01)) == (0, -1)


def drops(wrong: int, right: int, count: int) -> np.ndarray:
    """Points of samples of which some became wrong and others right."""
    return np.repeat([100.0, -100.0, 0.0], [wrong, right, count - wrong - right])


@pytest.mark.parametrize("count", [50, 250])
@pytest.mark.parametrize(("wrong", "right"), [(0.005, 0), (0.02, 0), (0.02, 0.01), (0.01, 0.01), (0.01, 0.03)])
def test_a_bound_on_a_drop_holds_as_often_as_it_says_where_few_answers_change(
    count: int, wrong: float, right: float
) -> None:
    """Over all outcomes, by their multinomial probability; Student's bound alone holds in 22 % of some."""
    holds = seen = 0.0
    for b in range(min(count, 24)):
        for c in range(min(count - b, 24)):
            ways = math.comb(count, b) * math.comb(count - b, c)
            chance = ways * wrong**b * right**c * (1 - wrong - right) ** (count - b - c)
            if chance > 1e-6:
                seen += chance
                holds += chance * (drop_at_most(drops(b, c, count)) >= 100 * (wrong - right))
    assert seen > 0.999
    assert holds / seen >= CONFIDENCE - 0.01


def test_no_changed_answer_shows_no_more_than_their_number_can() -> None:
    assert drop_at_most(np.zeros(100)) == pytest.approx(100 * (1 - 0.1**0.01))
    assert drop_at_most(np.zeros(100), 230) < 1 < drop_at_most(np.zeros(100), 229)
    many = drops(40, 30, 1000)
    assert drop_at_most(many) == mean_at_most(many)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.9, 1, 3.07768), (0.9, 2, 1.88562), (0.9, 10, 1.37218), (0.9, 63, 1.29513), (0.75, 5, 0.72669)],
)  # fmt: skip
def test_student_as_tabled(probability: float, freedom: int, quantile: float) -> None:
    assert student(probability, freedom) == pytest.approx(quantile, abs=1e-5)


def test_of_numbers_without_a_tail_it_is_students_bound() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert mean_at_most(x) == pytest.approx(2.5 + 1.63774 * math.sqrt(5 / 3) / 2, abs=1e-4)
    assert mean_at_most(np.full(9, 0.25)) == 0.25
    assert mean_at_most([0.1]) == math.inf


def test_a_long_tail_raises_the_bound_to_where_it_holds_about_as_often_as_it_says() -> None:
    """Of losses spread like those of class scores; Student's own bound holds in 81 % of such samples."""
    random, count = np.random.default_rng(0), 64
    drawn, true = random.lognormal(0, 1, (400, count)), math.exp(0.5)
    holds = np.mean([mean_at_most(x) >= true for x in drawn])
    plain = np.mean(drawn.mean(1) + student(0.9, count - 1) * drawn.std(1, ddof=1) / 8 >= true)
    assert holds > 0.83
    assert holds > plain + 0.02
