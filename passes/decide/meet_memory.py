"""Which activations are quantized for a limit on memory, with the budgets beside it: the least loss of all.

Sites and weights are one program (`ptqc.solvers.joint`), whose resources are the bytes of each step of a run, and time
and size where there are budgets of them. A choice that keeps the memory already stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ptqc.budget import MemoryBudget
from ptqc.errors import Infeasible
from ptqc.graph.sites import source_params
from ptqc.options import Activations
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.choose_activations import Checked
from ptqc.passes.decide.joint_sites import least_loss, note_on_loss, program_of, sites_of, smallest
from ptqc.passes.decide.phases import Assessed, Decided
from ptqc.solvers.allocation import BYTES
from ptqc.solvers.choices import JointChoice, Selection
from ptqc.solvers.cost_model import Timed, Times
from ptqc.solvers.integer_program import Goal, NoSelection, solve
from ptqc.solvers.joint import NANOSECONDS, Weighed
from ptqc.solvers.memory_model import MemoryModel
from ptqc.solvers.memory_program import with_memory
from ptqc.solvers.proof import Proof

ATTEMPTS = 8
# Share of the bytes by which the least memory that is told may be too large.
PRECISION = 2e-3
NO_TIMES = Times("", {}, {}, {}, {})
NAMES = {NANOSECONDS: "time", BYTES: "size"}


@dataclass(frozen=True)
class MeetMemory:
    """Choose the 8-bit activations that keep a budget of memory, and those beside it, at the least loss.

    more: bytes that a file needs beyond what the model predicts. activations, limit: as in `ChooseActivations`; only
    "auto" leaves a choice. weighed: what weights cost. timed: a latency that is kept, too.
    """

    memory: MemoryModel
    budget: MemoryBudget
    more: int = 0
    activations: Activations = "auto"
    limit: float = 0.0
    weighed: Weighed = field(default_factory=Weighed)
    timed: Timed | None = None
    name: ClassVar[str] = "meet-memory"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Decided) -> Result[Decided]:
        """The decision with the activations that keep the budgets, and what they lose together.

        Raises Infeasible with the least memory that is predicted, alone and within the other budgets.
        """
        if self._over(given, given.activations) <= 0:
            return Result(given, False)
        if self.activations != "auto":
            raise self._infeasible(self._peak(given, given.activations), f" with {self.activations} activations")
        program, most = self.program(given)
        allowed = self.budget.bytes - self.more
        for _ in range(ATTEMPTS):
            try:
                goal = least_loss(program, {**self._others, **_limits(most, allowed)}, self._others)
                answer = solve(program, goal)
            except NoSelection:
                break
            sites = sites_of(given, answer.selection)
            over = self._over(given, {site.name: None for site in sites})
            if over <= 0:
                chosen = {site.name: given.ranges[site.name] for site in sites}
                lost = Checked(given).loss_of(source_params(sites, given.ranges))
                told = Proof(program, goal, answer, {resource: NAMES[resource] for resource in self._others})
                made = replace(given, activations=chosen, activation_loss=lost, proof=told)
                return Result(made, True, (note_on_loss(self.name, given, lost, self.limit, self.budget),))
            # Sites that serve no layer were dropped, and what they carried takes more in float.
            allowed -= over
        raise self._refusal(given, program, most)

    def program(self, given: Assessed) -> tuple[JointChoice, dict[str, int]]:
        """Weights and sites with their losses, times, bytes in the file and bytes at each step; of these the most."""
        times = NO_TIMES if self.timed is None else self.timed.times
        program = program_of(given, self.weighed, self.memory.network, times)
        return with_memory(program, self.memory, {t: site.name for t, site in given.site_of.items()})

    def smallest(self, given: Decided) -> float:
        """About the bytes of the smallest file with the activations that were chosen: as the program has them."""
        return smallest(given, self.program(given)[0])

    @property
    def _others(self) -> dict[str, float]:
        found = {} if self.timed is None else {NANOSECONDS: self.timed.budget.nanoseconds}
        return found if self.weighed.limit is None else {**found, BYTES: float(self.weighed.limit)}

    def _peak(self, given: Assessed, sites: Mapping[str, object]) -> int:
        return self.memory.peak(given.tensors_of(sites)) + self.more

    def _over(self, given: Assessed, sites: Mapping[str, object]) -> int:
        return self._peak(given, sites) - self.budget.bytes

    def _refusal(self, given: Assessed, program: JointChoice, most: Mapping[str, int]) -> Infeasible:
        alone = self._least(given, program, most, {})
        if alone is None or alone > self.budget.bytes or not self._others:
            return self._infeasible(alone or self.budget.bytes)
        beside = self._least(given, program, most, self._others)
        kinds = " and ".join(NAMES[resource] for resource in self._others)
        within = "cannot be kept whatever the memory" if beside is None else f"leave about {beside:,} bytes at least"
        return Infeasible(
            f"the budget of {self.budget} contradicts the others: those of {kinds} {within}; alone, about {alone:,} "
            "bytes of memory can be reached",
            beside or alone,
        )

    def _least(
        self, given: Assessed, program: JointChoice, most: Mapping[str, int], others: Mapping[str, float]
    ) -> int | None:
        """About the least memory within other limits, by halving; None where these cannot be kept."""
        largest = max(most, key=lambda step: most[step])
        try:
            best = self._reached(given, solve(program, Goal(largest, others)).selection)
        except NoSelection:
            return None
        low = 0
        while best - low > PRECISION * best:
            middle = (low + best) // 2
            tried = {**others, **_limits(most, middle - self.more)}
            try:
                best = min(middle, self._reached(given, solve(program, Goal(largest, tried)).selection))
            except NoSelection:
                low = middle
        return best

    def _reached(self, given: Assessed, selection: Selection) -> int:
        return self._peak(given, {site.name: None for site in sites_of(given, selection)})

    def _infeasible(self, least: int, how: str = "") -> Infeasible:
        weights = self.memory.loaded([edge.tensor for edge in self.memory.network.edges])
        return Infeasible(
            f"the budget of {self.budget} cannot be met: the least that is predicted{how} is about {least:,} bytes; "
            f"the weights alone take {weights:,} where every layer that can computes on integers",
            least,
        )


def _limits(most: Mapping[str, int], allowed: int) -> dict[str, float]:
    """The limit on every step that can exceed it."""
    return {step: float(allowed) for step, size in most.items() if size > allowed}
