"""Times of a network's operators in the library that a target builds: in float, on codes, and of conversions between.

Libraries of a few plans are timed, or their times predicted, kernel by kernel: all in float; all on codes; and sites
quantized in turn, so that no operator has all that it needs and every tensor is converted. A kernel does the work of
several operators: what it takes is charged to the layer among them that multiplies the most, else to the last one.
Borders and copies are charged to what reads them.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.timing import TimedCall, TimedProgram
from ptqc.codegen.targets import Chosen, Timer
from ptqc.execution.profile import Profile
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import Plan
from ptqc.ir.sites import Site
from ptqc.options import CompileOptions
from ptqc.passes.allocate.cost_model import Network, Times
from ptqc.passes.allocate.fit import Fitted
from ptqc.passes.allocate.latency.times import any_plan, charged_to, known, network_of
from ptqc.passes.allocate.problem import packed, table_numbers
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.progress import Progress

SECONDS, FEW_SECONDS = 4.0, 3.0
# As many as a library is verified with: what never varies among them is built in.
SAMPLES = 4


@dataclass(frozen=True)
class LibraryClock:
    """Times libraries of a target; see `Clock`. store: a folder of what was built before."""

    target: str
    timer: Timer
    store: Path

    @classmethod
    def of(cls, chosen: Chosen, store: Path) -> "LibraryClock":
        """Raises TargetError where what the target builds cannot be timed here."""
        return cls(chosen.name, chosen.timer(), store)

    def measure(self, decided: Decided, options: CompileOptions, progress: Progress) -> Times:
        """Times of the libraries of a few plans."""
        network = network_of(decided)
        quantized = [[], [site.name for site in decided.sites], *turns(decided.sites, network)]
        plans = [any_plan(decided, options, {name: decided.ranges[name] for name in names}) for names in quantized]
        with progress.stage(f"{'time' if self.timer.is_measured else 'predict'} the library's operators"):
            found = self._profiles(decided, [_built(decided, plan) for plan in plans], SECONDS)
        times = times_of(network, found, self.timer.runtime, self.target)
        return replace(times, is_measured=self.timer.is_measured)

    def latencies(self, decided: Decided, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Of the library in float, and of that of a plan."""
        graphs = [_built(decided, one) for one in (any_plan(decided, options, {}), plan)]
        real, found = self._profiles(decided, graphs, FEW_SECONDS)
        return real.nanoseconds, found.nanoseconds

    def profiles(self, decided: Decided, options: CompileOptions, fitted: Fitted) -> tuple[Profile, Profile]:
        """Of the library in float, and of the delivered one."""
        delivered = LoweredPlan(fitted.plan, fitted.lowered, fitted.exported)
        real, found = self._profiles(decided, [_built(decided, any_plan(decided, options, {})), delivered], FEW_SECONDS)
        return real, found

    def _profiles(self, decided: Decided, graphs: "Sequence[LoweredPlan]", seconds: float) -> list[Profile]:
        samples = list(decided.held_back.of_main_size().few(SAMPLES))
        pairs = [(graph.lowered, graph.exported) for graph in graphs]
        timed = self.timer(pairs, samples, self.store, seconds)
        operators = {operator.node for operator in network_of(decided).operators}
        return [
            Profile(program.nanoseconds, charges(program, graph, operators, decided.macs), {}, False)
            for program, graph in zip(timed, graphs, strict=True)
        ]


@dataclass(frozen=True)
class LoweredPlan:
    """What a library is built of: a plan, lowered and packed."""

    plan: Plan
    lowered: Lowered
    exported: Exported


def _built(decided: Decided, plan: Plan) -> LoweredPlan:
    return LoweredPlan(plan, *packed(decided, plan, table_numbers(decided, plan.formats)))


def turns(sites: Sequence[Site], network: Network) -> list[list[str]]:
    """Sites in groups, by name: no operator that needs several of them has all in one."""
    of = {tensor: site.name for site in sites for tensor in site.tensors}
    needs = [frozenset(of[tensor] for tensor in operator.tensors) for operator in network.operators]
    groups: list[list[str]] = []
    for site in sites:
        bound = [need for need in needs if site.name in need and len(need) > 1]
        free = (group for group in groups if not any(need <= {*group, site.name} for need in bound))
        group = next(free, None)
        if group is None:
            groups.append([site.name])
        else:
            group.append(site.name)
    return groups


def times_of(network: Network, found: Sequence[Profile], runtime: str, target: str) -> Times:
    """Times from profiles of the float network, of all on codes, and of others with conversions."""
    real, codes, *others = (profile.charges for profile in found)
    floats = {o.node: real.get(o.node, 0.0) for o in network.operators}
    integers = {o.node: codes.get(o.node, 0.0) for o in network.operators if o.tensors}
    quantize, dequantize = (
        {edge.tensor: _first((what, edge.tensor), [codes, *others]) for edge in network.edges}
        for what in ("quantize", "dequantize")
    )
    return Times(runtime, known(floats), known(integers), known(quantize), known(dequantize), target=target)


def _first(key: Hashable, columns: Sequence[Mapping[Hashable, float]]) -> float:
    return next((column[key] for column in columns if key in column), 0.0)


def charges(
    program: TimedProgram, graph: LoweredPlan, operators: Collection[str], macs: Mapping[str, int]
) -> dict[Hashable, float]:
    """Nanoseconds by operator, or by ("quantize" or "dequantize", tensor)."""
    charged = _Charged(program.calls, graph, operators, macs)
    found: dict[Hashable, float] = {}
    for call in program.calls:
        key = charged.key(call)
        found[key] = found.get(key, 0.0) + call.nanoseconds
    return found


class _Charged:
    """What the calls of a library are charged to."""

    def __init__(
        self, calls: Sequence[TimedCall], graph: LoweredPlan, operators: Collection[str], macs: Mapping[str, int]
    ) -> None:
        self.keys, self.operators, self.macs = charged_to(graph.lowered, graph.plan), operators, macs
        self.makers = {str(value.name): node for node in graph.lowered.model.graph for value in node.outputs}
        self.made = {name for call in calls for name in (call.output, call.value)}
        self.outputs = {call.output for call in calls}
        self.readers: dict[str, TimedCall] = {}
        for call in calls:
            for name in call.inputs:
                self.readers.setdefault(name, call)

    def key(self, call: TimedCall) -> Hashable:
        """Of what a call computes; a copy's is that of what reads it, or that of the value which it is of."""
        found = [self.keys.get(str(node.outputs[0].name)) for node in self._computed(call)]
        layers = [key for key in found if key in self.operators]
        if layers:
            return max(layers, key=lambda key: self.macs.get(str(key), 0))
        if conversions := [key for key in found if isinstance(key, tuple)]:
            return conversions[0]
        reader = self.readers.get(call.output)
        return self.keys.get(call.value) if reader is None else self.key(reader)

    def _computed(self, call: TimedCall) -> Iterator[ir.Node]:
        """The nodes of the lowered graph whose work a call does, the last one first."""
        if call.output != call.value and call.value in self.outputs:
            return  # a copy of a value that another call makes
        pending, seen = [call.value], set[str]()
        while pending:
            name = pending.pop(0)
            if name in seen or name not in self.makers or (name != call.value and name in self.made):
                continue
            seen.add(name)
            node = self.makers[name]
            yield node
            pending += [str(value.name) for value in node.inputs if value is not None]
