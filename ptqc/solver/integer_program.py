"""The one integer program of all allocations: the least of one resource within limits on others (HiGHS).

min c_0·x  s.t.  Σ_s x_{c,s} = 1 for every choice c,  fixed_r + c_r·(x, z) ≤ limit_r for every limited resource r, with
z ≤ l_i, z ≥ Σ l_i − (n − 1) for an event of all of n conditions, and z ≥ l_i, z ≤ Σ l_i for one of any; of these rows
only those that hold against what the costs press to.
Options that no selection within the limits, or none better than a known one, can have are left out. So the costs that
are left, which the solver's absolute tolerances are measured by, are of the size of what decides.
Large programs are solved on a core: the options whose reduced cost in the linear relaxation is small. A selection with
any other option costs at least the relaxation plus the least reduced cost left out, which keeps the bound proven.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import highspy
import numpy as np

from ptqc.errors import InternalError

# Choices that are made together: one option each, with costs in any number of resources. Plain data, no solver.
#
# Costs belong to options, or to events that follow from several of them: "all of these", or "any of these". A product
# x ∧ q is an event of two conditions; what candidates share and pay once is an event of any of them.

State = Hashable
Costs = Mapping[str, float]
Selection = Mapping[str, State]


@dataclass(frozen=True)
class Option:
    """One state that a choice may take, and what it costs by resource.

    Things that must be in the same state are one choice: tensors that share their parameters are tied like that.
    """

    choice: str
    state: State
    costs: Costs = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """That an option is taken, or that an event happens; with holds=False that it does not.

    of: (choice, state), which never holds where there is no such option, or the name of an earlier event.
    """

    of: tuple[str, State] | str
    holds: bool = True


@dataclass(frozen=True)
class Event:
    """What happens where all of its conditions hold (every), or where any does. never: nothing may make it happen."""

    name: str
    conditions: tuple[Condition, ...]
    costs: Costs = field(default_factory=dict)
    every: bool = True
    never: bool = False


@dataclass(frozen=True)
class JointChoice:
    """Options, grouped into choices by name; events, each of which refers to earlier ones; and fixed costs."""

    options: tuple[Option, ...]
    events: tuple[Event, ...] = ()
    fixed: Costs = field(default_factory=dict)

    @property
    def choices(self) -> dict[str, list[Option]]:
        """The options of each choice, in order."""
        choices: dict[str, list[Option]] = {}
        for option in self.options:
            choices.setdefault(option.choice, []).append(option)
        return choices

    def happening(self, selection: Selection) -> dict[str, bool]:
        """Whether each event happens."""
        happening: dict[str, bool] = {}
        for event in self.events:
            true = [self._is(condition, selection, happening) == condition.holds for condition in event.conditions]
            happening[event.name] = all(true) if event.every else any(true)
        return happening

    def allows(self, selection: Selection) -> bool:
        """Whether nothing happens that never may."""
        result = self.happening(selection)
        return not any(event.never and result[event.name] for event in self.events)

    def costs(self, selection: Selection) -> dict[str, float]:
        """What a selection costs, by resource."""
        happening = self.happening(selection)
        spent = [option.costs for option in self.options if selection[option.choice] == option.state]
        return total([self.fixed, *spent, *(event.costs for event in self.events if happening[event.name])])

    def rows(self, resource: str) -> tuple[list[float], list[float]]:
        """What each option and each event costs of a resource."""
        return [o.costs.get(resource, 0.0) for o in self.options], [e.costs.get(resource, 0.0) for e in self.events]

    def with_sum(self, resource: str, prices: Mapping[str, float]) -> "JointChoice":
        """The same choices with one more resource: the sum of others, each at its price."""

        def summed(costs: Costs) -> Costs:
            return {**costs, resource: sum(price * costs.get(other, 0.0) for other, price in prices.items())}

        options = tuple(replace(option, costs=summed(option.costs)) for option in self.options)
        events = tuple(replace(event, costs=summed(event.costs)) for event in self.events)
        return replace(self, options=options, events=events, fixed=summed(self.fixed))

    @staticmethod
    def _is(condition: Condition, selection: Selection, happening: Mapping[str, bool]) -> bool:
        if isinstance(condition.of, str):
            return happening[condition.of]
        choice, state = condition.of
        return selection[choice] == state


def total(several: Sequence[Costs]) -> dict[str, float]:
    """The sum of costs, by resource."""
    result: dict[str, float] = {}
    for costs in several:
        for resource, cost in costs.items():
            result[resource] = result.get(resource, 0) + cost
    return result


RELATIVE_GAP = 1e-5
# A gap up to this is the solver's tolerance: the answer is called optimal.
PROVEN = 1e-4
NODE_LIMIT = 200_000
# Options from which on a core is solved first, and the reduced costs that each core reaches to, in gaps.
LARGE = 5_000
CORES = (0.1, 0.4, 1.0)
CORE_NODES = 1_000
# Of the relaxation of a large program: the solver's absolute tolerances then hide nothing.
SCALED_TO = 1e3
# A selection that costs less than this share of the largest cost is solved again without what costs too much: of that
# share the solver's absolute tolerance, 1e-6 of the largest cost, is more than PROVEN.
TOO_SMALL = 1e-2
ROUNDS = 8
# By how much sums of costs in float64 may be wrong, as a share.
ROUNDING = 1e-9
# Largest coefficients of a row that the solver's absolute tolerances suit.
SMALLEST, LARGEST = 1.0, 1e9
TIGHTENINGS = 4
# What HiGHS says of a program that no selection fits.
IMPOSSIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


@dataclass(frozen=True)
class Goal:
    """What is made small, within which limits.

    least: the resource. then: what counts between equals, for each unit of another resource, as a share of the largest
    cost of an option in `least` that may be taken.
    gap: share of the value by which a better selection may be left unfound.
    """

    least: str
    limits: Mapping[str, float] = field(default_factory=dict)
    then: Mapping[str, float] = field(default_factory=dict)
    gap: float = RELATIVE_GAP
    nodes: int = NODE_LIMIT


@dataclass(frozen=True)
class Answer:
    """A selection with its costs, computed exactly, and a lower bound on what any selection within the limits costs."""

    selection: Selection
    costs: Mapping[str, float]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """(value − bound) / |value|, 0 where the value cannot be less."""
        return max(0.0, self.value - self.bound) / abs(self.value) if self.value != self.bound and self.value else 0.0

    @property
    def status(self) -> str:
        """`optimal` only where it is proven, to the tolerance of the solver; else `gap`."""
        return "optimal" if self.gap <= PROVEN else "gap"


class NoSelection(Exception):
    """No selection keeps the limits."""


def solve(program: JointChoice, goal: Goal) -> Answer:
    """The selection of least cost within the limits. Raises NoSelection."""
    allowed = [True] * len(program.options)
    for resource, limit in goal.limits.items():
        allowed = _within(program, resource, limit, allowed)
    best = _round(program, goal, allowed)
    for _ in range(ROUNDS):
        scale, allowed = _largest(program, goal.least, allowed), _within(program, goal.least, best.value, allowed)
        if _largest(program, goal.least, allowed) > TOO_SMALL * scale:
            break
        try:
            result = _round(program, goal, allowed)
        except NoSelection:  # the known one keeps the limits by less than the solver can tell
            break
        # What was left out costs more than the known one. An earlier bound has the tolerance of a larger scale.
        best = min(result, best, key=lambda answer: answer.value)
        best = replace(best, bound=min(result.bound, best.value))
    return best


def _round(program: JointChoice, goal: Goal, allowed: Sequence[bool]) -> Answer:
    """The selection of least cost among the options that are allowed. Raises NoSelection."""
    limits, bounds = dict(goal.limits), list[float]()
    for _ in range(TIGHTENINGS):
        selection, bound = _solved(program, goal, limits, allowed)
        bounds.append(bound)
        costs = program.costs(selection)
        over = {r: costs.get(r, 0.0) - limit for r, limit in goal.limits.items() if costs.get(r, 0.0) > limit}
        if not over:
            value = costs.get(goal.least, 0.0)
            return Answer(selection, costs, value, min(bounds[0], value))
        # By less than the solver's tolerance, which exact arithmetic does not forgive.
        limits = {r: limit - over.get(r, 0.0) for r, limit in limits.items()}
    raise NoSelection


def _within(program: JointChoice, resource: str, most: float, allowed: Sequence[bool]) -> list[bool]:
    """Which of the allowed options a selection can have that costs at most so much of a resource.

    The others cost more even where all else costs the least that it can. Raises NoSelection where everything does.
    """
    options, events = program.rows(resource)
    least: dict[str, float] = {}
    for option, cost, may in zip(program.options, options, allowed, strict=True):
        if may:
            least[option.choice] = min(cost, least.get(option.choice, math.inf))
    floor = [program.fixed.get(resource, 0.0), *least.values(), *(min(cost, 0.0) for cost in events)]
    room = most - math.fsum(floor) + ROUNDING * math.fsum(map(abs, (most, *floor)))
    if room < 0:
        raise NoSelection
    several = zip(program.options, options, allowed, strict=True)
    return [may and cost - least[option.choice] <= room for option, cost, may in several]


def _largest(program: JointChoice, resource: str, allowed: Sequence[bool]) -> float:
    """The largest cost of an event or an allowed option."""
    options, events = program.rows(resource)
    several = (cost for cost, may in zip(options, allowed, strict=True) if may)
    return max((abs(cost) for cost in (*several, *events)), default=0.0)


def _solved(
    program: JointChoice, goal: Goal, limits: Mapping[str, float], allowed: Sequence[bool]
) -> tuple[Selection, float]:
    """A selection within the limits, and a bound on the least resource for all that keep them."""
    worst = _largest(program, goal.least, allowed) or 1.0
    goal = replace(goal, then={resource: share * worst for resource, share in goal.then.items()})
    if len(program.options) < LARGE:
        model = _Model(program, goal, limits, 1.0 / worst, allowed)
        bound = model.solve(goal.gap, goal.nodes)
    else:
        model, bound = _by_cores(program, goal, limits, 1.0 / worst, allowed)
    return model.selection(), model.bound_on_least(bound)


def _by_cores(
    program: JointChoice, goal: Goal, limits: Mapping[str, float], unit: float, allowed: Sequence[bool]
) -> tuple["_Model", float]:
    """The solved model of a large program, and a proven bound on its objective."""
    relaxed, value = _relaxed(program, goal, limits, unit, allowed)
    if 0 < abs(value) < SCALED_TO:
        unit *= SCALED_TO / abs(value)
        relaxed, value = _relaxed(program, goal, limits, unit, allowed)
    reduced = relaxed.reduced_costs()
    for share in CORES:
        reach = share * _large_gap(goal) * abs(value)
        core = _Model(program, goal, limits, unit, [cost <= reach for cost in reduced])
        try:
            bound = max(value, min(core.solve(_large_gap(goal) / 2, CORE_NODES), value + reach))
        except (NoSelection, InternalError):
            continue
        if core.value() - bound <= _large_gap(goal) * abs(core.value()):
            return core, bound
    whole = _Model(program, goal, limits, unit, allowed)
    return whole, max(value, whole.solve(goal.gap, goal.nodes))


def _large_gap(goal: Goal) -> float:
    """The gap that a large program is solved to."""
    return max(goal.gap, PROVEN)


def _relaxed(
    program: JointChoice, goal: Goal, limits: Mapping[str, float], unit: float, allowed: Sequence[bool]
) -> tuple["_Model", float]:
    model = _Model(program, goal, limits, unit, allowed)
    model.relax()
    return model, model.value()


@dataclass(frozen=True)
class _Linear:
    """A sum of variables, by their column, each with a factor, and of a constant."""

    factors: Mapping[int, float] = field(default_factory=dict)
    constant: float = 0.0

    @staticmethod
    def of(terms: Iterable[tuple[float, "_Linear"]]) -> "_Linear":
        """The sum of others, each times a factor."""
        factors: dict[int, float] = {}
        constant = 0.0
        for times, term in terms:
            constant += times * term.constant
            for column, factor in term.factors.items():
                factors[column] = factors.get(column, 0.0) + times * factor
        return _Linear(factors, constant)


NEVER, ONE = _Linear(), _Linear({}, 1.0)

_Row = tuple[float, float, Mapping[int, float]]  # lower and upper bound, factors


class _Model:
    """A program as HiGHS takes it: a column for each option and event. allowed: which options may be taken.

    unit: of the objective.
    """

    def __init__(
        self,
        program: JointChoice,
        goal: Goal,
        limits: Mapping[str, float],
        unit: float,
        allowed: Sequence[bool],
    ) -> None:
        self._program, self._goal, self._limits, self._unit = program, goal, limits, unit
        self._allowed = allowed
        self._most: list[float] = []  # of each column; the least is 0
        self._rows: list[_Row] = []
        self._taken = [self._column() if may else NEVER for may in allowed]
        self._of: dict[Any, _Linear] = {}
        conditions = [condition for event in program.events for condition in event.conditions]
        self._referred = {condition.of for condition in conditions if isinstance(condition.of, str)}
        self._choose()
        self._events = [self._event(event) for event in program.events]
        for resource in limits:
            self._limit(resource)
        objective = self._sum({goal.least: unit, **{r: w * unit for r, w in goal.then.items()}}).factors
        self._costs = np.array([objective.get(column, 0.0) for column in range(len(self._most))])
        self._values = np.zeros(len(self._costs))

    def solve(self, gap: float, nodes: int) -> float:
        """Solve; a proven bound on the objective. Raises NoSelection."""
        self._run({"mip_rel_gap": gap, "mip_max_nodes": nodes}, is_whole=True)
        info = self._solved.getInfo()
        bound = float(info.mip_dual_bound)
        # Without integers there are no branches, and no bound of theirs.
        return bound if info.mip_node_count >= 0 and math.isfinite(bound) else self.value()

    def relax(self) -> None:
        """Solve without asking for whole numbers. Raises NoSelection."""
        self._run({}, is_whole=False)

    def value(self) -> float:
        """Of the objective."""
        return float(self._costs @ self._values)

    def reduced_costs(self) -> list[float]:
        """By how much the relaxation grows at least where an option is taken."""
        growth = self._solved.getSolution().col_dual
        return [next((growth[column] for column in taken.factors), math.inf) for taken in self._taken]

    def selection(self) -> dict[str, Any]:
        """The state of each choice."""
        options = zip(self._program.options, self._taken, strict=True)
        return {
            o.choice: o.state for o, taken in options if any(self._values[column] > 0.5 for column in taken.factors)
        }

    def bound_on_least(self, bound: float) -> float:
        """The bound on the least resource that one on the objective gives, less what equals may differ by."""
        most = 0.0
        for resource, weight in self._goal.then.items():
            options, events = self._program.rows(resource)
            if resource in self._goal.limits:
                most += weight * (self._goal.limits[resource] - self._program.fixed.get(resource, 0.0))
            else:
                most += weight * (sum(max(c, 0.0) for c in options) + sum(max(c, 0.0) for c in events))
        return bound / self._unit - most + self._program.fixed.get(self._goal.least, 0.0)

    def _run(self, options: Mapping[str, float], *, is_whole: bool) -> None:
        self._solved = _handed_over(self._costs, self._most, self._rows, is_whole=is_whole)
        for name, value in {"threads": 1, **options}.items():
            self._solved.setOptionValue(name, value)
        self._solved.run()
        status = self._solved.getModelStatus()
        if status in IMPOSSIBLE:
            raise NoSelection
        # One that a limit on nodes stopped may have found a selection.
        has_selection = self._solved.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if not has_selection and status != highspy.HighsModelStatus.kModelEmpty:
            raise InternalError(f"the solver found no selection: {self._solved.modelStatusToString(status)}")
        self._values = np.array(self._solved.getSolution().col_value)

    def _column(self, most: float = 1.0) -> _Linear:
        self._most.append(most)
        return _Linear({len(self._most) - 1: 1.0})

    def _row(self, terms: Iterable[tuple[float, _Linear]], least: float = -math.inf, most: float = math.inf) -> None:
        linear = _Linear.of(terms)
        factors = {column: factor for column, factor in linear.factors.items() if factor}
        self._rows.append((least - linear.constant, most - linear.constant, factors))

    def _choose(self) -> None:
        groups: dict[str, list[_Linear]] = {}
        for option, taken in zip(self._program.options, self._taken, strict=True):
            groups.setdefault(option.choice, []).append(taken)
            self._of[option.choice, option.state] = taken
        for group in groups.values():
            self._row(((1, taken) for taken in group), 1, 1)

    def _event(self, event: Event) -> _Linear:
        """Its variable: 0 or 1 wherever options are."""
        conditions = [self._literal(condition) for condition in event.conditions]
        happens = self._of[event.name] = self._column(0.0 if event.never else 1.0)
        less = [(-1, condition) for condition in conditions]
        if _one_choice(event):
            self._row([(1, happens), *less], 0, 0)
            return happens
        down, up = self._pressed(event)
        if event.every:
            if down:
                self._row([(1, happens), *less], 1 - len(conditions))
            for condition in conditions if up else ():
                self._row([(1, condition), (-1, happens)], 0)
        else:
            if up:
                self._row([(1, happens), *less], most=0)
            for condition in conditions if down else ():
                self._row([(1, happens), (-1, condition)], 0)
        return happens

    def _pressed(self, event: Event) -> tuple[bool, bool]:
        """Whether something gains where its variable is smaller than the event says, and where it is larger."""
        if event.never or event.name in self._referred:
            return True, True
        weights = {self._goal.least: 1.0, **self._goal.then, **dict.fromkeys(self._limits, 1.0)}
        costs = [cost for resource, cost in event.costs.items() if resource in weights]
        return any(cost > 0 for cost in costs), any(cost < 0 for cost in costs)

    def _literal(self, condition: Condition) -> _Linear:
        of = self._of[condition.of] if isinstance(condition.of, str) else self._of.get(condition.of, NEVER)
        return of if condition.holds else _Linear.of([(1, ONE), (-1, of)])

    def _limit(self, resource: str) -> None:
        largest = _largest(self._program, resource, self._allowed)
        scale = 1.0 if largest == 0 or SMALLEST <= largest <= LARGEST else 2.0 ** (20 - math.frexp(largest)[1])
        room = self._limits[resource] - self._program.fixed.get(resource, 0.0)
        spent = self._sum({resource: scale})
        if spent.factors:
            self._row([(1, spent)], most=room * scale)
        elif room < 0:
            raise NoSelection

    def _sum(self, weights: Mapping[str, float]) -> _Linear:
        """What all that happens costs of several resources, each at its weight."""
        parts: list[Option | Event] = [*self._program.options, *self._program.events]
        costs = (sum(part.costs.get(resource, 0.0) * each for resource, each in weights.items()) for part in parts)
        terms = zip(costs, [*self._taken, *self._events], strict=True)
        return _Linear.of((cost, linear) for cost, linear in terms if cost)


def _handed_over(costs: np.ndarray, most: Sequence[float], rows: Sequence[_Row], *, is_whole: bool) -> highspy.Highs:
    """A program in HiGHS, in few calls: each row that is added alone moves the whole matrix."""
    solver, count = highspy.Highs(), len(costs)  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    nothing = np.zeros(0, np.int32), np.zeros(0)
    solver.addCols(count, costs, np.zeros(count), np.array(most), 0, np.zeros(count, np.int32), *nothing)
    if is_whole:
        kinds = np.full(count, highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(count, np.arange(count, dtype=np.int32), kinds)
    lower, upper, factors = zip(*rows, strict=True) if rows else ((), (), ())
    starts = np.cumsum([0, *map(len, factors)])[:-1].astype(np.int32)
    columns = np.array([column for row in factors for column in row], np.int32)
    values = np.array([value for row in factors for value in row.values()], np.float64)
    bounds = np.array(lower, np.float64), np.array(upper, np.float64)
    solver.addRows(len(rows), *bounds, len(columns), starts, columns, values)
    return solver


def _one_choice(event: Event) -> bool:
    """Whether it is any of several options of one choice, of which one at most is taken."""
    taken = [condition.of for condition in event.conditions if condition.holds and isinstance(condition.of, tuple)]
    same = len({choice for choice, _ in taken}) == 1 and len(taken) == len(event.conditions)
    return same and (not event.every or len(taken) == 1)


@dataclass(frozen=True)
class Contradiction:
    """Why no selection keeps some limits.

    resources: a smallest set of limits that contradict each other. alone: the least of each without other limits.
    beside: the least of each where the other limits of the set are kept; None where not even those can be.
    """

    resources: tuple[str, ...]
    alone: Mapping[str, float]
    beside: Mapping[str, float | None]


def contradiction(program: JointChoice, limits: Mapping[str, float]) -> Contradiction:
    """Which limits contradict each other, where no selection keeps them all."""
    alone = {resource: solve(program, Goal(resource)).value for resource in limits}
    conflict = next(({r: limits[r]} for r in limits if alone[r] > limits[r]), dict(limits))
    for resource in list(conflict):
        fewer = {r: limit for r, limit in conflict.items() if r != resource}
        if fewer and not _possible(program, fewer):
            conflict = fewer
    beside = {r: _least_beside(program, r, {o: limit for o, limit in conflict.items() if o != r}) for r in conflict}
    return Contradiction(tuple(conflict), alone, beside)


def _possible(program: JointChoice, limits: Mapping[str, float]) -> bool:
    first, *_ = limits
    return _least_beside(program, first, limits) is not None


def _least_beside(program: JointChoice, resource: str, limits: Mapping[str, float]) -> float | None:
    try:
        return solve(program, Goal(resource, limits)).value
    except NoSelection:
        return None


def prices(program: JointChoice, goal: Goal, answer: Answer, more: Mapping[str, float]) -> dict[str, float]:
    """How much the least resource falls where the limit on another grows by so much: by solving again, each alone.

    Differences below the gaps of both answers are no better known than these.
    """
    return {resource: _price(program, goal, answer, resource, step) for resource, step in more.items()}


def _price(program: JointChoice, goal: Goal, answer: Answer, resource: str, step: float) -> float:
    wider = Goal(goal.least, {**goal.limits, resource: goal.limits[resource] + step}, goal.then, goal.gap, goal.nodes)
    return max(0.0, answer.value - solve(program, wider).value)


# What is proven of the best choice of a program: its bound, and what a little more of each limit would gain.


@dataclass(frozen=True)
class Proof:
    """An answer with the program and the goal that it is of. names: of the limited resources whose price is told."""

    program: JointChoice
    goal: Goal
    answer: Answer
    names: Mapping[str, str]

    @cached_property
    def prices(self) -> dict[str, float]:
        """By how much the least resource falls for a hundredth more of each limit, by name; solved again for each."""
        more = {resource: self.goal.limits[resource] / 100 for resource in self.names}
        gains = prices(self.program, self.goal, self.answer, more)
        return {self.names[resource]: gain for resource, gain in gains.items()}

    def to_json(self) -> dict[str, Any]:
        """The document for the artifact."""
        return {
            "loss": self.answer.value,
            "bound": self.answer.bound,
            "gap": self.answer.gap,
            "status": self.answer.status,
            "prices_of_one_percent": self.prices,
        }
