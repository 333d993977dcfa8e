"""Which activations are quantized for a limit on memory, with the budgets beside it: the least loss of all.

Sites and weights are one program (`ptqc.passes.allocate.joint`), whose resources are the bytes of each step of a run,
and time and size where there are budgets of them. Where formats of weights alone can keep the memory, as of weights
that stay packed, the activations stay as they were chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ptqc.budget import MemoryBudget
from ptqc.errors import Infeasible
from ptqc.ir.sites import source_params
from ptqc.options import Activations
from ptqc.passes.allocate.allocation import BYTES, Candidate
from ptqc.passes.allocate.choose_activations import Checked, limit_of
from ptqc.passes.allocate.cost_model import Timed, Times
from ptqc.passes.allocate.joint import NANOSECONDS, Stored, Weighed, weight_choice, with_memory
from ptqc.passes.allocate.joint_sites import least_loss, note_on_loss, pinned, program_of, sites_of, smallest
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Assessed, Decided
from ptqc.solver.integer_program import Answer, Goal, JointChoice, NoSelection, Proof, Selection, solve

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
        """The decision with the activations that keep the budgets, what they lose together, and how much of the memory
        is left for the weights.

        Raises Infeasible with the least memory that is predicted, alone and within the other budgets.
        """
        least, most_of_weights = self._weights(given)
        if self._over(given, given.activations, most_of_weights) <= 0:
            return Result(given, False)
        program, most = self.program(given)
        if self._over(given, given.activations, least) <= 0 and self._may_stay(given, program, most):
            return Result(self._with_weights(given), True)
        if self.activations != "auto":
            raise self._refusal(given, pinned(given, program), most, f" with {self.activations} activations")
        slack = 0
        for _ in range(ATTEMPTS):
            found = self._solved(program, most, slack)
            if found is None:
                break
            goal, answer = found
            sites = sites_of(given, answer.selection)
            over = self._over(given, {site.name: None for site in sites}, self._chosen(given, answer.selection))
            if over <= 0:
                chosen = {site.name: given.ranges[site.name] for site in sites}
                lost = Checked(given).loss_of(source_params(sites, given.ranges))
                told = Proof(program, goal, answer, {resource: NAMES[resource] for resource in self._others})
                made = replace(given, activations=chosen, activation_loss=lost, proof=told)
                note = note_on_loss(self.name, given, lost, self.limit, self.budget)
                return Result(self._with_weights(made), True, (note,))
            # Sites that serve no layer were dropped, and what they carried takes more in float.
            slack += over
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

    def _may_stay(self, given: Decided, program: JointChoice, most: Mapping[str, int]) -> bool:
        """Whether formats keep the budgets beside the activations, and other activations would lose little less.

        These compute on integers for what they may lose, and other ones have to be better by as much.
        """
        stays = self._solved(pinned(given, program), most)
        if stays is None or self.activations != "auto":
            return stays is not None
        free, limit = self._solved(program, most), limit_of(given.loss_unit, self.limit)
        return free is None or stays[1].value - free[1].value <= limit

    def _solved(self, program: JointChoice, most: Mapping[str, int], slack: int = 0) -> tuple[Goal, Answer] | None:
        """The least loss within all budgets; None where they cannot be kept. slack: bytes that are left unused."""
        limits = {**self._others, **_limits(most, self.budget.bytes - self.more - slack)}
        goal = least_loss(limits, self._others)
        try:
            return goal, solve(program, goal)
        except NoSelection:
            return None

    def _with_weights(self, given: Decided) -> Decided:
        """The decision with what its activations leave of the memory."""
        return replace(given, weight_memory=-self._over(given, given.activations, 0))

    def _weights(self, given: Decided) -> tuple[int, int]:
        """The least and the most that formats of weights add to the memory, with the activations that were chosen."""
        least = most = 0
        for group in self._candidates(given.tensors_of(given.activations)).values():
            least += min(candidate.memory for candidate in group)
            most += max(candidate.memory for candidate in group)
        return least, most

    def _candidates(self, quantized: Mapping[str, object]) -> dict[str, list[Candidate]]:
        """What each weight may be stored as when these tensors are quantized."""
        codes, weighed = self.memory.network.on_codes(quantized), self.weighed
        on_codes = weighed.on_codes.by_weight()
        return {
            name: group if codes.isdisjoint(weighed.layers.get(name, ())) else on_codes[name]
            for name, group in weighed.in_float.by_weight().items()
        }

    def _chosen(self, given: Assessed, selection: Selection) -> int:
        """What the formats of a selection add to the memory, or more where sites that serve no layer are dropped."""
        quantized = given.tensors_of({site.name: None for site in sites_of(given, selection)})
        chosen = {choice: state.form for choice, state in selection.items() if isinstance(state, Stored)}
        return sum(
            next((c.memory for c in group if c.form == chosen[weight_choice(name)]), max(c.memory for c in group))
            for name, group in self._candidates(quantized).items()
        )

    def _over(self, given: Assessed, sites: Mapping[str, object], weights: int) -> int:
        """Bytes beyond the budget. weights: what their formats add."""
        return self.memory.peak(given.tensors_of(sites)) + self.more + weights - self.budget.bytes

    def _refusal(self, given: Assessed, program: JointChoice, most: Mapping[str, int], how: str = "") -> Infeasible:
        alone = self._least(given, program, most, {})
        if alone is None or alone > self.budget.bytes or not self._others:
            return self._infeasible(alone or self.budget.bytes, how)
        beside = self._least(given, program, most, self._others)
        kinds = " and ".join(NAMES[resource] for resource in self._others)
        within = "cannot be kept whatever the memory" if beside is None else f"leave about {beside:,} bytes at least"
        return Infeasible(
            f"the budget of {self.budget} contradicts the others: those of {kinds} {within}; alone, about {alone:,} "
            f"bytes of memory can be reached{how}",
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
        sites = {site.name: None for site in sites_of(given, selection)}
        return self.budget.bytes + self._over(given, sites, self._chosen(given, selection))

    def _infeasible(self, least: int, how: str) -> Infeasible:
        alone = self.memory.fixed + sum(self._smallest_weights().values())
        return Infeasible(
            f"the budget of {self.budget} cannot be met: the least that is predicted{how} is about {least:,} bytes; "
            f"weights and other constants alone take at least {alone:,}",
            least,
        )

    def _smallest_weights(self) -> dict[str, int]:
        """What each weight adds at least to the bytes of weights in float32, in any format and on any kernel."""
        found = {weight.weight: weight.on_codes for weight in self.memory.weights if weight.nodes}
        if self.activations == "float":
            found = {}
        for name, group in self.weighed.in_float.by_weight().items():
            found[name] = min(found.get(name, 0), *(candidate.memory for candidate in group))
        return found


def _limits(most: Mapping[str, int], allowed: int) -> dict[str, float]:
    """The limit on every step that can exceed it."""
    return {step: float(allowed) for step, size in most.items() if size > allowed}
