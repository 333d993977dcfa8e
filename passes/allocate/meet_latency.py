"""Which activations are quantized for a latency, with the formats of weights that this allows: the least loss of both.

Sites and weights are one program (`ptqc.passes.allocate.joint`): its time is that of the cost model, its bytes those of
the file where there is a budget of size too. A choice within the activation limit that keeps the budgets already stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ptqc.budget import Latency
from ptqc.errors import Infeasible
from ptqc.ir.sites import Site, source_params
from ptqc.options import Activations
from ptqc.passes.allocate.allocation import BYTES
from ptqc.passes.allocate.choose_activations import Checked
from ptqc.passes.allocate.cost_model import Network, Times
from ptqc.passes.allocate.joint import NANOSECONDS, Weighed
from ptqc.passes.allocate.joint_sites import least_loss, note_on_loss, program_of, sites_of, smallest
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Assessed, Decided
from ptqc.solver.integer_program import Goal, JointChoice, NoSelection, Proof, contradiction, solve

ATTEMPTS = 8
NAMED = 5
NAMES = {NANOSECONDS: "time", BYTES: "size"}


@dataclass(frozen=True)
class MeetLatency:
    """Choose the 8-bit activations that keep a latency budget, and one of size beside it, at the least loss.

    activations, limit: as in `ChooseActivations`; only "auto" leaves a choice. weighed: what weights cost.
    """

    network: Network
    times: Times
    budget: Latency
    activations: Activations = "auto"
    limit: float = 0.0
    weighed: Weighed = field(default_factory=Weighed)
    name: ClassVar[str] = "meet-latency"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Decided) -> Result[Decided]:
        """The decision with the activations that keep the budgets, and what they lose together.

        Raises Infeasible with the shortest predicted latency, or with what budgets that contradict each other need.
        """
        quantized = given.tensors_of(given.activations)
        is_fast = self._predict(quantized) <= self.budget.nanoseconds
        if is_fast and (self.activations != "auto" or self._fits(given)):
            return Result(given, False)
        if self.activations != "auto":
            raise self._infeasible(quantized, f" with {self.activations} activations")
        sites, proof = self._least_loss(given, self.program(given))
        chosen = {site.name: given.ranges[site.name] for site in sites}
        found = Checked(given).loss_of(source_params(sites, given.ranges))
        decided = replace(given, activations=chosen, activation_loss=found, proof=proof)
        return Result(decided, True, (note_on_loss(self.name, given, found, self.limit, self.budget),))

    def program(self, given: Assessed) -> JointChoice:
        """Weights and sites with their losses, times and bytes."""
        return program_of(given, self.weighed, self.network, self.times)

    @property
    def _limits(self) -> dict[str, float]:
        return {NANOSECONDS: self.budget.nanoseconds, **self._size_limit}

    @property
    def _size_limit(self) -> dict[str, float]:
        return {} if self.weighed.limit is None else {BYTES: float(self.weighed.limit)}

    def _predict(self, quantized: Mapping[str, object]) -> float:
        return self.network.predict(self.times, quantized)

    def smallest(self, given: Decided) -> float:
        """About the bytes of the smallest file with the activations that were chosen: as the program has them."""
        return smallest(given, self.program(given))

    def _fits(self, given: Decided) -> bool:
        return self.weighed.limit is None or self.smallest(given) <= self.weighed.limit

    def _least_loss(self, given: Assessed, program: JointChoice) -> tuple[list[Site], Proof | None]:
        """The sites, and what is proven of the choice."""
        limits = self._limits
        try:
            fastest = sites_of(given, solve(program, Goal(NANOSECONDS, self._size_limit)).selection)
            shortest = self._time(given, fastest)
            for _ in range(ATTEMPTS):
                goal = least_loss(limits, limits)
                answer = solve(program, goal)
                sites = sites_of(given, answer.selection)
                over = self._time(given, sites) - self.budget.nanoseconds
                if over <= 0:
                    return sites, Proof(program, goal, answer, {r: NAMES[r] for r in limits})
                # Sites that serve no layer were dropped, and what they carried takes longer in float.
                limits[NANOSECONDS] = max(limits[NANOSECONDS] - over, shortest)
        except NoSelection:
            raise self._refusal(given, program) from None
        return fastest, None

    def _time(self, given: Assessed, sites: list[Site]) -> float:
        return self._predict(given.tensors_of({site.name for site in sites}))

    def _refusal(self, given: Assessed, program: JointChoice) -> Infeasible:
        found = contradiction(program, self._limits)
        if found.resources != (NANOSECONDS, BYTES):
            fastest = sites_of(given, solve(program, Goal(NANOSECONDS)).selection)
            if NANOSECONDS in found.resources:
                return self._infeasible(given.tensors_of({site.name for site in fastest}))
        size, beside = self.weighed.limit or 0, found.beside
        least, shortest = beside.get(BYTES) or found.alone[BYTES], beside.get(NANOSECONDS) or found.alone[NANOSECONDS]
        return Infeasible(
            f"the budgets of {size:,} bytes and {self.budget} contradict each other: within {self.budget} about "
            f"{least:,.0f} bytes are the fewest, within the bytes {shortest / 1e6:.3g} ms the shortest; alone, about "
            f"{found.alone[BYTES]:,.0f} bytes and {found.alone[NANOSECONDS] / 1e6:.3g} ms can be reached",
            round(least),
        )

    def _infeasible(self, quantized: Mapping[str, object], how: str = "") -> Infeasible:
        shortest = self._predict(quantized)
        codes = self.network.on_codes(quantized)
        types = {operator.node: operator.op_type for operator in self.network.operators}
        parts = [
            (f"{node} ({types[node]} {'on integers' if node in codes else 'in float'})", int(ns))
            for node, ns in self.network.operator_times(self.times, quantized).items()
        ]
        parts.append(("conversions", int(sum(self.network.conversion_times(self.times, quantized).values()))))
        slowest = tuple(sorted(parts, key=lambda part: -part[1])[:NAMED])
        named = ", ".join(f"{what} {ns / 1e6:.3g} ms" for what, ns in slowest)
        where = " on this machine" if self.times.is_measured else ""
        return Infeasible(
            f"the budget of {self.budget} cannot be met{where}: the shortest predicted latency{how} is "
            f"{shortest / 1e6:.3g} ms in {self.times.runtime}. Slowest: {named}",
            round(shortest),
            slowest,
        )
