"""HiGHS gets from ptqc exactly what PuLP would hand over."""

from typing import Any

import numpy as np
import pulp
import pytest

from ptqc.solver.integer_program import HighsAtOnce

ARRAYS = ("col_cost_", "col_lower_", "col_upper_", "row_lower_", "row_upper_", "integrality_")
MATRIX = ("format_", "start_", "index_", "value_")


def random_program(seed: int, sense: int) -> pulp.LpProblem:
    """Variables with and without bounds and whole numbers; rows of each sense, with a factor of 0 and with none."""
    rng = np.random.default_rng(seed)
    program = pulp.LpProblem("random", sense)
    found = [program.add_variable(f"x{i}", 0, int(rng.integers(1, 9)), "Integer") for i in range(6)]
    found += [program.add_variable("free"), program.add_variable("above", 0.5), program.add_variable("unused", 0, 1)]
    for _ in range(8):
        factors = rng.integers(-3, 4, 7)
        row = pulp.LpAffineExpression([(v, float(f)) for v, f in zip(found[:7], factors, strict=True)])
        program += [row <= 20, row >= -20, row == float(factors @ np.ones(7))][int(rng.integers(3))]
    program += found[6] <= 50
    program += found[6] >= -50
    program.setObjective(pulp.lpSum(float(c) * v for c, v in zip(rng.normal(size=8), found[:8], strict=True)))
    return program


def handed_over(program: pulp.LpProblem, solver: pulp.HiGHS) -> dict[str, Any]:
    solver.createAndConfigureSolver(program)
    solver.buildSolverModel(program)
    model = program.solverModel.getLp()
    arrays = {name: list(getattr(model, name)) for name in ARRAYS}
    matrix = {name: getattr(model.a_matrix_, name) for name in MATRIX}
    return arrays | {name: part if name == "format_" else list(part) for name, part in matrix.items()}


@pytest.mark.parametrize("mip", [True, False])
@pytest.mark.parametrize("sense", [pulp.LpMinimize, pulp.LpMaximize])
def test_the_program_is_the_same(sense: int, mip: bool) -> None:
    for seed in range(10):
        program = random_program(seed, sense)
        usual = handed_over(program, pulp.HiGHS(msg=False, mip=mip))
        assert handed_over(program, HighsAtOnce(msg=False, mip=mip)) == usual
        assert usual["value_"]


@pytest.mark.parametrize("mip", [True, False])
def test_the_answer_is_the_same(mip: bool) -> None:
    for seed in range(10):
        answers = []
        for solver in (pulp.HiGHS, HighsAtOnce):
            program = random_program(seed, pulp.LpMinimize)
            program += program.variables()[0] <= 10_000
            status = program.solve(solver(msg=False, mip=mip, threads=1))
            answers.append((status, [(v.name, v.varValue, v.dj) for v in program.variables()]))
        assert answers[0] == answers[1]


def test_a_program_without_rows_or_whole_numbers_is_handed_over() -> None:
    program = pulp.LpProblem("one", pulp.LpMinimize)
    program.setObjective(program.add_variable("x", 2.0, 3.0) * 5.0)
    assert program.solve(HighsAtOnce(msg=False)) == pulp.LpStatusOptimal
    assert pulp.value(program.objective) == 10.0
