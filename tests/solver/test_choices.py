"""Sums of resources, against sums of what every selection costs."""

import pytest
from test_integer_program import random_program, selections

from ptqc.solver.integer_program import Goal, solve


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_resources_is_what_they_cost_together(seed: int) -> None:
    program, prices = random_program(seed), {"ns": 1.0, "loss": 300.0}
    priced = program.with_sum("price", prices)
    several = list(selections(program))
    expected = [sum(price * program.costs(one).get(name, 0.0) for name, price in prices.items()) for one in several]
    assert [priced.costs(one)["price"] for one in several] == pytest.approx(expected)
    assert solve(priced, Goal("price", gap=0.0)).value == pytest.approx(min(expected), rel=1e-6)
