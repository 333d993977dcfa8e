"""The format of each weight: least predicted loss, with the bytes of the file within the budget.

min Σ I_{w,f} ΔL_{w,f}  s.t.  Σ_f I_{w,f} = 1,  fixed + Σ I_{w,f} bytes_{w,f} + Σ_u U_u once_u ≤ limit,  U_u ≥ I_{w,f}
(Hubara et al. 2020, eq. 8, with the bytes of the file as written; U: what candidates share and the file holds once).
Where memory is limited as well, Σ I_{w,f} memory_{w,f} is, too; and so is flash, which has shared parts of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ptqc.errors import Infeasible, InternalError
from ptqc.formats import Format
from ptqc.passes.quantize.phases import FlashCosts
from ptqc.solver.integer_program import RELATIVE_GAP, Condition, Event, Goal, JointChoice, NoSelection, Option, solve
from ptqc.utils.text import shorten

# Where two plans differ by less than this share of the largest loss that decides, the smaller file wins.
BYTES_WEIGHT = 1e-6
BYTES, LOSS, MEMORY, FLASH = "bytes", "loss", "memory", "flash"
# What a plan may lose beyond a limit on the loss, as a share of it: the solver's own tolerance.
TOLERANCE = 1e-4
NAME = 48  # letters of a weight that a message names


@dataclass(frozen=True)
class Candidate:
    """One way to store one weight: bytes in the written file, predicted loss, and the shared parts that it needs.

    memory: bytes that it takes in memory more than unpacked to float32: below 0 where it stays packed.
    """

    weight: str
    form: Format
    bytes: int
    loss: float
    needs: tuple[str, ...] = ()
    memory: int = 0


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
    """All candidates of all weights, bytes that every plan has, and the bytes of each shared part.

    memory: the most that the memory of all chosen candidates may add up to; None: anything. flash: what they take of a
    microcontroller's flash, and may take together.
    """

    candidates: tuple[Candidate, ...]
    fixed: int
    once: Mapping[str, int] = field(default_factory=dict)
    memory: int | None = None
    flash: FlashCosts | None = None

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits of every plan, beside that on bytes."""
        most = sum(max(c.memory for c in group) for group in self.by_weight().values())
        limits = {} if self.memory is None or most <= self.memory else {MEMORY: float(self.memory)}
        return limits if self.flash is None else {**limits, FLASH: float(self.flash.limit)}

    def keeps_limits(self, choice: Mapping[str, Format]) -> bool:
        """Whether a choice is within `limits`."""
        keeps = self.memory is None or sum(c.memory for c in self.chosen(choice)) <= self.memory
        return keeps and (self.flash is None or self.flash.of(choice) <= self.flash.limit)

    @cached_property
    def smallest(self) -> Mapping[str, Format]:
        """The plan of fewest bytes, which several documents ask for."""
        return _formats(solve(program_of(self), Goal(BYTES, self.limits)).selection)

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
    try:
        answer = solve(program_of(problem), _goal(problem, limit, gap))
    except NoSelection:
        raise _infeasible(problem, limit) from None
    choice = _without_waste(problem, _formats(answer.selection))
    total = sum(c.loss for c in problem.chosen(choice))
    return Allocation(choice, total, max(0.0, min(answer.bound, total)), problem.size(choice), limit, answer.status)


def smallest_within(problem: Problem, loss: float, gap: float = RELATIVE_GAP) -> Allocation:
    """The best plan of the fewest bytes that suffice for a predicted loss of at most `loss`.

    Where none loses so little it is the best plan of all. gap: share of the bytes by which a smaller plan may be left
    unfound.
    """
    best = best_choice(problem)
    if loss <= sum(c.loss for c in problem.chosen(best)):
        return _best_of_its_size(problem, best, gap)
    answer = solve(program_of(problem), Goal(BYTES, {LOSS: loss, **problem.limits}, gap=gap))
    smallest = _without_waste(problem, _formats(answer.selection))
    lost = sum(c.loss for c in problem.chosen(smallest))
    if lost > loss * (1 + TOLERANCE):
        raise InternalError(f"the solver's plan loses {lost:.6g}, over its limit of {loss:.6g}")
    return _best_of_its_size(problem, smallest, gap)


def _best_of_its_size(problem: Problem, known: dict[str, Format], gap: float) -> Allocation:
    """The best plan of the bytes of a known one, or that one.

    Losses far below the largest of a candidate are within the tolerance of the program that finds the best.
    """
    size, lost = problem.size(known), sum(c.loss for c in problem.chosen(known))
    best = allocate(problem, size, gap)
    if best.loss <= lost:
        return best
    return Allocation(known, lost, min(best.bound, lost), size, size, best.status)


def program_of(problem: Problem) -> JointChoice:
    """The weights as choices, and each shared part as an event of any candidate that needs it."""
    options = tuple(Option(c.weight, c.form, _costs(problem, c)) for c in problem.candidates)
    users: dict[str, list[Condition]] = {}
    for c in problem.candidates:
        for part in c.needs:
            users.setdefault(part, []).append(Condition((c.weight, c.form)))
    events = [Event(part, tuple(users[part]), {BYTES: problem.once[part]}, every=False) for part in sorted(users)]
    return JointChoice(options, (*events, *_unpacking(problem)), {BYTES: problem.fixed})


def _costs(problem: Problem, candidate: Candidate) -> dict[str, float]:
    costs: dict[str, float] = {LOSS: candidate.loss, BYTES: candidate.bytes, MEMORY: candidate.memory}
    if problem.flash is not None:
        costs[FLASH] = problem.flash.bytes.get((candidate.weight, candidate.form), 0)
    return costs


def _unpacking(problem: Problem) -> Iterator[Event]:
    """Functions in flash, each an event of any candidate that it unpacks."""
    if problem.flash is None:
        return
    for name, size in sorted(problem.flash.once.items()):
        pairs = [(c.weight, c.form) for c in problem.candidates]
        users = tuple(Condition(pair) for pair in pairs if problem.flash.functions.get(pair) == name)
        if users:
            yield Event(f"{FLASH} {name}", users, {FLASH: size}, every=False)


def smallest_in_flash(problem: Problem, loss: float | None = None) -> dict[str, Format]:
    """The plan that takes the least flash, of those that lose at most `loss`.

    Raises NoSelection where none loses so little or keeps the memory.
    """
    limits = {resource: limit for resource, limit in problem.limits.items() if resource != FLASH}
    limits |= {} if loss is None else {LOSS: loss}
    return _formats(solve(program_of(problem), Goal(FLASH, limits)).selection)


def _goal(problem: Problem, limit: int, gap: float) -> Goal:
    return Goal(LOSS, {BYTES: limit, **problem.limits}, {BYTES: BYTES_WEIGHT / max(limit, 1)}, gap)


def _formats(selection: Mapping[str, object]) -> dict[str, Format]:
    return {weight: form for weight, form in selection.items() if isinstance(form, Format)}


def _without_waste(problem: Problem, choice: Mapping[str, Format]) -> dict[str, Format]:
    """The choice with smaller candidates where they lose nothing: differences that the solver's gap does not see."""
    waste = dict(choice)
    for weight, group in problem.by_weight().items():
        chosen = next(c for c in group if c.form == waste[weight])
        for c in sorted(group, key=lambda c: c.bytes):
            smaller = c.bytes < chosen.bytes and c.loss <= chosen.loss and c.memory <= chosen.memory
            other = {**waste, weight: c.form}
            if smaller and problem.size(other) < problem.size(waste) and problem.keeps_limits(other):
                waste = other
                break
    return waste


def smallest_choice(problem: Problem) -> dict[str, Format]:
    """The plan of fewest bytes. Raises NoSelection where no plan keeps the memory."""
    return dict(problem.smallest)


def best_choice(problem: Problem) -> dict[str, Format]:
    """The plan of least loss whatever its size; of equals, the one of fewest bytes.

    Raises NoSelection where no plan keeps the memory.
    """
    best = {weight: min(group, key=lambda c: (c.loss, c.bytes)).form for weight, group in problem.by_weight().items()}
    if problem.keeps_limits(best):
        return best
    anything = problem.fixed + sum(c.bytes for c in problem.candidates) + sum(problem.once.values())
    return _formats(solve(program_of(problem), _goal(problem, anything, RELATIVE_GAP)).selection)


def _infeasible(problem: Problem, limit: int) -> Infeasible:
    choice = smallest_choice(problem)
    smallest, chosen = problem.size(choice), problem.chosen(choice)
    parts = [(f"{c.weight} ({c.form})", c.bytes) for c in chosen]
    once = sum(problem.once[part] for part in {part for c in chosen for part in c.needs})
    parts += [("graph text and interface", problem.fixed), ("unpacking functions", once)]
    largest = tuple(sorted(parts, key=lambda part: -part[1])[:8])
    (what, size), *_ = largest
    return Infeasible(
        f"the budget of {limit:,} bytes cannot be met: the smallest file has {smallest:,} bytes; give --budget "
        f"{smallest}B or more. Its largest part: {shorten(what, NAME)}, {size:,} bytes",
        smallest,
        largest,
    )


def price(problem: Problem, allocation: Allocation, more: int) -> float:
    """How much the predicted loss falls when the limit grows by `more` bytes."""
    return allocation.loss - allocate(problem, allocation.limit + more).loss


# The least predicted loss at many sizes: vertices of the lower convex hull of all plans, by Lagrange multipliers.
#
# min Σ_w min_f (ΔL_{w,f} + λ bytes_{w,f}) + λ Σ_u once_u: no plan of the size of its answer or less loses less,
# whatever the price λ ≥ 0 of a byte (Everett 1963; Shoham and Gersho 1988, for the allocation of bits). Each price is
# the slope between two known plans, so the answer is a vertex between them or shows that there is none. Parts that
# candidates share are given up one by one while that pays; where several pay only together, a plan can be a little
# worse than the best.


class _Point(NamedTuple):
    bytes: int
    loss: float
    is_within: bool


def frontier(problem: Problem, largest: int, most: int) -> list[tuple[int, float]]:
    """(bytes, predicted loss) of up to `most` plans of at most `largest` bytes, by size; the first is the smallest.

    Plans beyond a limit on memory or flash are left out. Raises NoSelection where no plan keeps it.
    """
    lagrangian = _Lagrangian.of(problem)
    smallest, best = (_point(problem.chosen(choice(problem)), problem) for choice in (smallest_choice, best_choice))
    result, edges = [smallest, best] if best.loss < smallest.loss else [smallest], set[tuple[_Point, _Point]]()
    while sum(point.bytes <= largest for point in result) < most:
        open_ = [pair for pair in pairwise(result) if pair not in edges and pair[0].bytes < largest]
        if not open_:
            break
        low, high = max(open_, key=lambda pair: min(pair[1].bytes, largest) - pair[0].bytes)
        price = (low.loss - high.loss) / (high.bytes - low.bytes)
        point = _point(lagrangian.least(price), problem)
        is_between = low.bytes < point.bytes < high.bytes and high.loss < point.loss < low.loss
        if is_between and point.loss + price * point.bytes < low.loss + price * low.bytes:
            result = sorted([*result, point])
        else:
            edges.add((low, high))
    return [(point.bytes, point.loss) for point in result if point.bytes <= largest and point.is_within]


def _point(chosen: list[Candidate], problem: Problem) -> _Point:
    choice = {c.weight: c.form for c in chosen}
    return _Point(problem.size(choice), sum(c.loss for c in chosen), problem.keeps_limits(choice))


@dataclass(frozen=True)
class _Lagrangian:
    """The candidates of a problem by weight. first: where those of each weight begin. needs: (candidates, parts)."""

    candidates: list[Candidate]
    first: np.ndarray
    losses: np.ndarray
    bytes: np.ndarray
    needs: np.ndarray
    once: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> "_Lagrangian":
        groups, parts = problem.by_weight().values(), sorted(problem.once)
        candidates = [c for group in groups for c in group]
        first = np.cumsum([0, *map(len, groups)])[:-1]
        losses, size = np.array([c.loss for c in candidates]), np.array([c.bytes for c in candidates])
        needs = np.array([[part in c.needs for part in parts] for c in candidates], bool)
        return cls(candidates, first, losses, size, needs, np.array([problem.once[part] for part in parts]))

    def least(self, price: float) -> list[Candidate]:
        """The plan of least loss and price of its bytes."""
        costs, once = self.losses + price * self.bytes, price * self.once
        total, parts = self._sums(costs) + once.sum(), np.arange(len(once))
        while len(parts):
            # Row i: without parts[i].
            without = np.where(self.needs[:, parts].T, np.inf, costs)
            totals = self._sums(without) + once[parts].sum() - once[parts]
            dropped = int(totals.argmin())
            if totals[dropped] > total:
                break
            total, costs, parts = totals[dropped], without[dropped], np.delete(parts, dropped)
        ends = [*self.first[1:], len(costs)]
        return [self.candidates[a + int(costs[a:b].argmin())] for a, b in zip(self.first, ends, strict=True)]

    def _sums(self, costs: np.ndarray) -> Any:
        """Of the least cost of each weight; the candidates lie along the last axis."""
        return np.minimum.reduceat(costs, self.first, axis=-1).sum(-1)
