"""The format of each weight: least predicted loss, with the bytes of the file within the budget.

min Σ I_{w,f} ΔL_{w,f}  s.t.  Σ_f I_{w,f} = 1,  fixed + Σ I_{w,f} bytes_{w,f} + Σ_u U_u once_u ≤ limit,  U_u ≥ I_{w,f}
(Hubara et al. 2020, eq. 8, with the bytes of the file as written; U: what candidates share and the file holds once).
Where memory is limited as well, Σ I_{w,f} memory_{w,f} is, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ptqc.errors import Infeasible, InternalError
from ptqc.formats import Format
from ptqc.solver.choices import Condition, Event, JointChoice, Option
from ptqc.solver.integer_program import RELATIVE_GAP, Goal, NoSelection, solve

# Where two plans differ by less than this share of the largest loss that decides, the smaller file wins.
BYTES_WEIGHT = 1e-6
BYTES, LOSS, MEMORY = "bytes", "loss", "memory"
# What a plan may lose beyond a limit on the loss, as a share of it: the solver's own tolerance.
TOLERANCE = 1e-4


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

    memory: the most that the memory of all chosen candidates may add up to; None: anything.
    """

    candidates: tuple[Candidate, ...]
    fixed: int
    once: Mapping[str, int] = field(default_factory=dict)
    memory: int | None = None

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits of every plan, beside that on bytes."""
        most = sum(max(c.memory for c in group) for group in self.by_weight().values())
        return {} if self.memory is None or most <= self.memory else {MEMORY: float(self.memory)}

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
    found = allocate(problem, size, gap)
    if found.loss <= lost:
        return found
    return Allocation(known, lost, min(found.bound, lost), size, size, found.status)


def program_of(problem: Problem) -> JointChoice:
    """The weights as choices, and each shared part as an event of any candidate that needs it."""
    options = tuple(
        Option(c.weight, c.form, {LOSS: c.loss, BYTES: c.bytes, MEMORY: c.memory}) for c in problem.candidates
    )
    users: dict[str, list[Condition]] = {}
    for c in problem.candidates:
        for part in c.needs:
            users.setdefault(part, []).append(Condition((c.weight, c.form)))
    events = tuple(Event(part, tuple(users[part]), {BYTES: problem.once[part]}, every=False) for part in sorted(users))
    return JointChoice(options, events, {BYTES: problem.fixed})


def _goal(problem: Problem, limit: int, gap: float) -> Goal:
    return Goal(LOSS, {BYTES: limit, **problem.limits}, {BYTES: BYTES_WEIGHT / max(limit, 1)}, gap)


def _formats(selection: Mapping[str, object]) -> dict[str, Format]:
    return {weight: form for weight, form in selection.items() if isinstance(form, Format)}


def _without_waste(problem: Problem, choice: Mapping[str, Format]) -> dict[str, Format]:
    """The choice with smaller candidates where they lose nothing: differences that the solver's gap does not see."""
    kept = dict(choice)
    for weight, group in problem.by_weight().items():
        chosen = next(c for c in group if c.form == kept[weight])
        for c in sorted(group, key=lambda c: c.bytes):
            smaller = c.bytes < chosen.bytes and c.loss <= chosen.loss and c.memory <= chosen.memory
            if smaller and problem.size({**kept, weight: c.form}) < problem.size(kept):
                kept[weight] = c.form
                break
    return kept


def smallest_choice(problem: Problem) -> dict[str, Format]:
    """The plan of fewest bytes. Raises NoSelection where no plan keeps the memory."""
    return dict(problem.smallest)


def best_choice(problem: Problem) -> dict[str, Format]:
    """The plan of least loss whatever its size; of equals, the one of fewest bytes.

    Raises NoSelection where no plan keeps the memory.
    """
    best = {weight: min(group, key=lambda c: (c.loss, c.bytes)).form for weight, group in problem.by_weight().items()}
    if problem.memory is None or sum(c.memory for c in problem.chosen(best)) <= problem.memory:
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
