"""The integer program: one format per weight, least predicted loss, bytes within the budget.

min Σ I_{w,f} ΔL_{w,f}  s.t.  Σ_f I_{w,f} = 1,  fixed + Σ I_{w,f} bytes_{w,f} + Σ_u U_u once_u ≤ limit,  U_u ≥ I_{w,f}
(Hubara et al. 2020, eq. 8, with the bytes of the file as written; U: what candidates share and the file holds once).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulp

from ptqc.errors import Infeasible, InternalError
from ptqc.formats import Format

# Where two plans differ by less than this share of the loss, the smaller file wins.
BYTES_WEIGHT = 1e-6
RELATIVE_GAP = 1e-5
# Of points in a plot.
FRONTIER_GAP = 1e-3
NODE_LIMIT = 200_000
# What a plan may lose beyond a limit on the loss, as a share of it: the solver's own tolerance.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Candidate:
    """One way to store one weight: bytes in the written file, predicted loss, and the shared parts that it needs."""

    weight: str
    form: Format
    bytes: int
    loss: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocation:
    """The solver's answer. loss: predicted; bound: proven lower bound on any plan's loss; bytes: of the whole file."""

    choice: Mapping[str, Format]
    loss: float
    bound: float
    bytes: int
    limit: int
    status: str

    @property
    def gap(self) -> float:
        """(loss − bound) / loss, 0 when proven optimal."""
        return max(0.0, (self.loss - self.bound) / self.loss) if self.loss > 0 else 0.0


@dataclass(frozen=True)
class Problem:
    """All candidates of all weights, bytes that every plan has, and the bytes of each shared part."""

    candidates: tuple[Candidate, ...]
    fixed: int
    once: Mapping[str, int] = field(default_factory=dict)

    def by_weight(self) -> dict[str, list[Candidate]]:
        """Candidates grouped by weight, in order."""
        groups: dict[str, list[Candidate]] = {}
        for candidate in self.candidates:
            groups.setdefault(candidate.weight, []).append(candidate)
        return groups

    def size(self, choice: Mapping[str, Format]) -> int:
        """Bytes of the file under a choice."""
        chosen = self.chosen(choice)
        return (
            self.fixed + sum(c.bytes for c in chosen) + sum(self.once[n] for n in {n for c in chosen for n in c.needs})
        )

    def chosen(self, choice: Mapping[str, Format]) -> list[Candidate]:
        """The candidates of a choice."""
        return [c for c in self.candidates if choice[c.weight] == c.form]


def allocate(problem: Problem, limit: int, gap: float = RELATIVE_GAP) -> Allocation:
    """The plan of least predicted loss within `limit` bytes. Raises Infeasible with the smallest reachable size.

    gap: share of the loss by which a better plan may be left unfound.
    """
    program, chosen, used = _program(problem)
    sizes = _bytes_expression(problem, chosen, used)
    program += sizes <= limit - problem.fixed
    # Scale losses so that the solver's absolute tolerances do not blur small ones.
    worst = max((c.loss for c in problem.candidates), default=0.0)
    unit = 1.0 / worst if worst > 0 else 1.0
    loss = pulp.lpSum(c.loss * unit * chosen[i] for i, c in enumerate(problem.candidates))
    program.setObjective(loss + (BYTES_WEIGHT / max(limit, 1)) * sizes)
    try:
        left = _solve(program, gap)
    except _NoPlan:
        raise _infeasible(problem, limit) from None
    choice = _without_waste(problem, _choice(problem, chosen))
    total = sum(c.loss for c in problem.chosen(choice))
    bytes_ = problem.size(choice)
    if bytes_ > limit:
        if problem.size(smallest_choice(problem)) > limit:  # by less than the solver's tolerance
            raise _infeasible(problem, limit)
        raise InternalError(f"the solver's plan has {bytes_} bytes, over its limit of {limit}")
    return Allocation(choice, total, max(0.0, total * (1 - left)), bytes_, limit, "optimal" if left <= 1e-4 else "gap")


def smallest_within(problem: Problem, loss: float, gap: float = RELATIVE_GAP) -> Allocation:
    """The best plan of the fewest bytes that suffice for a predicted loss of at most `loss`.

    Where none loses so little it is the best plan of all. gap: share of the bytes by which a smaller plan may be left
    unfound.
    """
    best = best_choice(problem)
    if loss <= sum(c.loss for c in problem.chosen(best)):
        return allocate(problem, problem.size(best), gap)
    program, chosen, used = _program(problem)
    # What loses more than is allowed alone is cut off there: the solver refuses huge coefficients.
    spent = pulp.lpSum(min(c.loss / loss, 2.0) * chosen[i] for i, c in enumerate(problem.candidates))
    program += spent <= 1.0
    program.setObjective(_bytes_expression(problem, chosen, used))
    left = _solve(program, gap)
    smallest = _without_waste(problem, _choice(problem, chosen))
    size, lost = problem.size(smallest), sum(c.loss for c in problem.chosen(smallest))
    if lost > loss * (1 + TOLERANCE):
        raise InternalError(f"the solver's plan loses {lost:.6g}, over its limit of {loss:.6g}")
    found = allocate(problem, size, gap)
    # Losses far below the largest of a candidate are within the tolerance of that program, but not of this one.
    if found.loss <= lost:
        return found
    return Allocation(smallest, lost, max(0.0, lost * (1 - left)), size, size, "optimal" if left <= 1e-4 else "gap")


def _program(problem: Problem) -> tuple[pulp.LpProblem, list[pulp.LpVariable], dict[str, pulp.LpVariable]]:
    program = pulp.LpProblem("allocation", pulp.LpMinimize)
    chosen = [program.add_variable(f"x{i}", cat="Binary") for i in range(len(problem.candidates))]
    used = {part: program.add_variable(f"u{i}", cat="Binary") for i, part in enumerate(sorted(problem.once))}
    index = {id(c): i for i, c in enumerate(problem.candidates)}
    for group in problem.by_weight().values():
        program += pulp.lpSum(chosen[index[id(c)]] for c in group) == 1
    for i, candidate in enumerate(problem.candidates):
        for part in candidate.needs:
            program += used[part] >= chosen[i]
    return program, chosen, used


def _bytes_expression(
    problem: Problem, chosen: Sequence[pulp.LpVariable], used: Mapping[str, pulp.LpVariable]
) -> pulp.LpAffineExpression:
    parts = [c.bytes * chosen[i] for i, c in enumerate(problem.candidates)]
    return pulp.lpSum(parts + [problem.once[part] * variable for part, variable in used.items()])


class _NoPlan(Exception):
    """No choice keeps the constraints."""


def _solve(program: pulp.LpProblem, gap: float = RELATIVE_GAP) -> float:
    """Solve; the relative gap that was left open. Raises _NoPlan."""
    solver = pulp.HiGHS(msg=False, gapRel=gap, threads=1, mip_max_nodes=NODE_LIMIT)
    program.solve(solver)
    if program.status == pulp.LpStatusInfeasible:
        raise _NoPlan
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        raise InternalError(f"the solver gave no plan: {pulp.LpStatus[program.status]}")
    info = program.solverModel.getInfo()
    left = float(info.mip_gap)
    return left if math.isfinite(left) else 0.0


def _choice(problem: Problem, chosen: Sequence[pulp.LpVariable]) -> dict[str, Format]:
    return {c.weight: c.form for c, variable in zip(problem.candidates, chosen, strict=True) if variable.value() > 0.5}


def _without_waste(problem: Problem, choice: Mapping[str, Format]) -> dict[str, Format]:
    """The choice with smaller candidates where they lose nothing: differences that the solver's gap does not see."""
    kept = dict(choice)
    for weight, group in problem.by_weight().items():
        chosen = next(c for c in group if c.form == kept[weight])
        for c in sorted(group, key=lambda c: c.bytes):
            smaller = c.bytes < chosen.bytes and c.loss <= chosen.loss
            if smaller and problem.size({**kept, weight: c.form}) < problem.size(kept):
                kept[weight] = c.form
                break
    return kept


def smallest_choice(problem: Problem) -> dict[str, Format]:
    """The plan of fewest bytes."""
    program, chosen, used = _program(problem)
    program.setObjective(_bytes_expression(problem, chosen, used))
    _solve(program)
    return _choice(problem, chosen)


def best_choice(problem: Problem) -> dict[str, Format]:
    """The plan of least loss whatever its size; of equals, the one of fewest bytes."""
    return {weight: min(group, key=lambda c: (c.loss, c.bytes)).form for weight, group in problem.by_weight().items()}


def _infeasible(problem: Problem, limit: int) -> Infeasible:
    choice = smallest_choice(problem)
    smallest, chosen = problem.size(choice), problem.chosen(choice)
    parts = [(f"{c.weight} ({c.form})", c.bytes) for c in chosen]
    once = sum(problem.once[part] for part in {part for c in chosen for part in c.needs})
    parts += [("graph text and interface", problem.fixed), ("unpacking functions", once)]
    largest = tuple(sorted(parts, key=lambda part: -part[1])[:8])
    named = ", ".join(f"{what} {size:,} B" for what, size in largest[:5])
    return Infeasible(
        f"the budget of {limit:,} bytes cannot be met: the smallest reachable file has {smallest:,} bytes. "
        f"Largest parts: {named}",
        smallest,
        largest,
    )


def price(problem: Problem, allocation: Allocation, more: int) -> float:
    """How much the predicted loss falls when the limit grows by `more` bytes."""
    return allocation.loss - allocate(problem, allocation.limit + more).loss


def frontier(problem: Problem, limits: Sequence[int]) -> list[tuple[int, float]]:
    """(bytes, predicted loss) of the best plan at each reachable limit."""
    points = []
    smallest = problem.size(smallest_choice(problem))
    for limit in limits:
        if limit >= smallest:
            answer = allocate(problem, limit, FRONTIER_GAP)
            points.append((answer.bytes, answer.loss))
    return points
