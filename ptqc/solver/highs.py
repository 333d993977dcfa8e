"""HiGHS as PuLP calls it, with the program handed over in three calls instead of one for each variable and row.

Each row that is added alone moves the whole matrix. HiGHS gets the same numbers in the same order, so its answers are
the same to the bit.
"""

import highspy
import numpy as np
import pulp


class HighsAtOnce(pulp.HiGHS):  # type: ignore[misc]  # PuLP defines it only where highspy is installed
    """Solves as `pulp.HiGHS` does."""

    def buildSolverModel(self, lp: pulp.LpProblem) -> None:  # noqa: N802
        """Hand a program over. Sets the indices of its variables and rows."""
        variables, rows = lp.variables(), lp.constraints()
        for index, part in (*enumerate(variables), *enumerate(rows)):
            part.index = index
        sign = -1 if lp.sense == pulp.LpMaximize else 1
        costs = [sign * lp.objective.get(variable, 0.0) for variable in variables]
        within = _bounds([v.lowBound for v in variables], [v.upBound for v in variables])
        model, count = lp.solverModel, len(variables)
        model.addCols(count, np.array(costs, np.float64), *within, 0, np.zeros(count, np.int32), *_entries([]))
        whole = [variable.index for variable in variables if variable.cat == pulp.LpInteger and self.mip]
        kinds = np.full(len(whole), highspy.HighsVarType.kInteger)
        model.changeColsIntegrality(len(whole), np.array(whole, np.int32), kinds)
        entries = [[(v.index, factor) for v, factor in row.items() if factor != 0] for row in rows]
        starts = np.cumsum([0, *map(len, entries)])[:-1].astype(np.int32)
        flat = [entry for row in entries for entry in row]
        within = _bounds([row.getLb() for row in rows], [row.getUb() for row in rows])
        model.addRows(len(rows), *within, len(flat), starts, *_entries(flat))


def _bounds(lower: list[float | None], upper: list[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Float64 each; what has no bound is bounded by infinity."""
    infinity = highspy.kHighsInf
    lows = [-infinity if each is None else each for each in lower]
    highs = [infinity if each is None else each for each in upper]
    return np.array(lows, np.float64), np.array(highs, np.float64)


def _entries(entries: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of variables, int32, and their factors, float64."""
    indices, factors = zip(*entries, strict=True) if entries else ((), ())
    return np.array(indices, np.int32), np.array(factors, np.float64)
