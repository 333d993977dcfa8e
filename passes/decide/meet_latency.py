"""Which activations are quantized for a latency: the least loss whose predicted time is within a budget.

min Σ_s loss_s q_s  s.t.  Σ_o [float_o + (integer_o − float_o) r_o] + Σ_t (quantize_t w_t + dequantize_t v_t) ≤ budget,
r_o = all q of its tensors,  w_t ≥ q_t − r_maker,  v_t ≥ q_t − r_reader for every reader.
Where a choice within the activation limit keeps the budget already, it stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pulp

from ptqc.budget import Latency
from ptqc.errors import Infeasible, InternalError
from ptqc.graph.sites import Site, source_params, useful_sites
from ptqc.notes import Level, Note
from ptqc.options import Activations
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.choose_activations import Checked, limit_of
from ptqc.passes.decide.phases import Assessed, Decided
from ptqc.solvers.cost_model import Edge, Network, TimedOperator, Times

ATTEMPTS = 8
# Where two choices differ by less than this share of the loss, the faster one wins.
TIME_WEIGHT = 1e-5
RELATIVE_GAP = 1e-4
NODE_LIMIT = 50_000
NAMED = 5


@dataclass(frozen=True)
class MeetLatency:
    """Choose the 8-bit activations that keep a latency budget at the least loss.

    activations, limit: as in `ChooseActivations`; only "auto" leaves a choice.
    """

    network: Network
    times: Times
    budget: Latency
    activations: Activations = "auto"
    limit: float = 0.0
    name: ClassVar[str] = "meet-latency"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Decided) -> Result[Decided]:
        """The decision with the activations that keep the budget, and what they lose together.

        Raises Infeasible with the shortest predicted latency.
        """
        quantized = given.tensors_of(given.activations)
        if self._predict(quantized) <= self.budget.nanoseconds:
            return Result(given, False)
        if self.activations != "auto":
            raise self._infeasible(quantized, f" with {self.activations} activations")
        sites = self._least_loss(given)
        chosen = {site.name: given.ranges[site.name] for site in sites}
        found = Checked(given).loss_of(source_params(sites, given.ranges))
        decided = replace(given, activations=chosen, activation_loss=found)
        limit = limit_of(given.loss_unit, self.limit)
        message = f"8-bit activations lose {found:.3g} {given.loss_unit} to reach {self.budget}"
        if found > limit:
            warning = Note(self.name, "", f"{message}; without a latency budget at most {limit:g}", Level.WARNING)
            return Result(decided, True, (warning,))
        return Result(decided, True, (Note(self.name, "", message),))

    def _predict(self, quantized: Mapping[str, object]) -> float:
        return self.network.predict(self.times, quantized)

    def _least_loss(self, given: Assessed) -> list[Site]:
        target = self.budget.nanoseconds
        fastest = _useful(given, _Program(self.network, self.times, given).solve(None))
        shortest = self._predict(given.tensors_of(fastest))
        if shortest > target:
            raise self._infeasible(given.tensors_of(fastest))
        for _ in range(ATTEMPTS):
            chosen = _Program(self.network, self.times, given).solve(target)
            sites = _useful(given, chosen)
            over = self._predict(given.tensors_of(sites)) - self.budget.nanoseconds
            if over <= 0:
                return _sites(given, sites)
            # Sites that serve no layer were dropped, and what they carried takes longer in float.
            target = max(target - over, shortest)
        return _sites(given, fastest)

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
        return Infeasible(
            f"the budget of {self.budget} cannot be met on this machine: the shortest predicted latency{how} is "
            f"{shortest / 1e6:.3g} ms in {self.times.runtime}. Slowest: {named}",
            round(shortest),
            slowest,
        )


def _sites(given: Assessed, names: set[str]) -> list[Site]:
    return [site for site in given.sites if site.name in names]


def _useful(given: Assessed, names: set[str]) -> set[str]:
    layers = {layer.name for layer in given.layers}
    return {site.name for site in useful_sites(_sites(given, names), given.kernels, layers)}


class _Program:
    """The integer program of one network, losses and times as shares of their totals."""

    def __init__(self, network: Network, times: Times, given: Assessed) -> None:
        self._times = times
        self._unit = max(network.predict(times, ()), 1.0)
        self._program = pulp.LpProblem("latency", pulp.LpMinimize)
        self._sites = {site.name: self._binary(f"q{i}") for i, site in enumerate(given.sites)}
        self._of = {tensor: self._sites[site.name] for tensor, site in given.site_of.items()}
        self._runs: dict[str, pulp.LpVariable] = {}
        spent = [self._operator(i, operator) for i, operator in enumerate(network.operators)]
        spent += [part for i, edge in enumerate(network.edges) for part in self._edge(i, edge)]
        self._time = pulp.lpSum(spent)
        losses = {site.name: given.site_losses.get(site.name, 0.0) for site in given.sites}
        largest = max(losses.values(), default=0.0) or 1.0
        self._loss = pulp.lpSum(losses[name] / largest * chosen for name, chosen in self._sites.items())

    def solve(self, nanoseconds: float | None) -> set[str]:
        """Names of the sites of least loss within a time; None: of least time. Raises InternalError without any."""
        program, time = self._program, self._time
        if nanoseconds is None:
            program.setObjective(time + TIME_WEIGHT * self._loss)
        else:
            program += time <= nanoseconds / self._unit
            program.setObjective(self._loss + TIME_WEIGHT * time)
        program.solve(pulp.HiGHS(msg=False, gapRel=RELATIVE_GAP, threads=1, mip_max_nodes=NODE_LIMIT))
        if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            raise InternalError(f"the solver gave no choice of activations: {pulp.LpStatus[program.status]}")
        return {name for name, chosen in self._sites.items() if (chosen.value() or 0) > 0.5}

    def _binary(self, name: str) -> pulp.LpVariable:
        return self._program.add_variable(name, cat="Binary")

    def _operator(self, place: int, operator: TimedOperator) -> pulp.LpAffineExpression:
        real = self._times.floats.get(operator.node, 0.0) / self._unit
        if not operator.tensors:
            return pulp.LpAffineExpression(constant=real)
        runs = self._runs[operator.node] = self._program.add_variable(f"r{place}", 0, 1)
        needed = list({id(v): v for v in (self._of[tensor] for tensor in operator.tensors)}.values())
        for chosen in needed:
            self._program += runs <= chosen
        self._program += runs >= pulp.lpSum(needed) - (len(needed) - 1)
        return real + (self._times.integers.get(operator.node, 0.0) / self._unit - real) * runs

    def _edge(self, place: int, edge: Edge) -> list[pulp.LpAffineExpression]:
        chosen = self._of[edge.tensor]
        makers = [] if edge.maker is None else [edge.maker]
        return [
            self._conversion(f"w{place}", self._times.quantize, edge, chosen, makers, edge.maker is None),
            self._conversion(f"v{place}", self._times.dequantize, edge, chosen, edge.readers, edge.real),
        ]

    def _conversion(
        self,
        name: str,
        column: Mapping[str, float],
        edge: Edge,
        chosen: pulp.LpVariable,
        others: list[str] | tuple[str, ...],
        always: bool,
    ) -> pulp.LpAffineExpression:
        """The time of a conversion that a quantized tensor needs where some operator beside it is in float."""
        needed = self._program.add_variable(name, 0, 1)
        for other in others:
            self._program += needed >= chosen - self._runs[other]
        if always:
            self._program += needed >= chosen
        return column.get(edge.tensor, 0.0) / self._unit * needed
