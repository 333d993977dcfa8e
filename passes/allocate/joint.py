"""Formats of weights and states of activations in one program: what a kernel on codes asks of both.

A site on codes costs loss and bytes. A kernel whose sites all are computes in another time, and its weight then takes
codes alone, with other bytes. A tensor on codes is converted where its maker or a reader is in float.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ptqc.formats import Format
from ptqc.passes.allocate.allocation import BYTES, LOSS, MEMORY, Candidate, Problem
from ptqc.passes.allocate.cost_model import Edge, Network, OpLatencies, TimedOperator
from ptqc.passes.allocate.memory_model import LiveTensor, LoadedWeight, MemoryModel
from ptqc.solver.integer_program import Condition, Event, JointChoice, Option

NANOSECONDS = "ns"
FLOAT, CODES = "float", "codes"
NO_WEIGHTS = Problem((), 0)


@dataclass(frozen=True)
class SiteCosts:
    """A site by name: its tensors, what it loses on codes, and the bytes that this adds to the file."""

    name: str
    tensors: tuple[str, ...]
    loss: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Stored:
    """How a weight is in the file: its format, and whether in the form that kernels on codes read."""

    form: Format
    for_codes: bool = False


@dataclass(frozen=True)
class WeightCosts:
    """What weights cost. in_float, on_codes: their candidates where no kernel, and where every kernel, is on codes.

    layers: the nodes that read each weight. limit: bytes that the file may have; None: any number.
    """

    in_float: Problem = NO_WEIGHTS
    on_codes: Problem = NO_WEIGHTS
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None


def joint_choice(sites: Sequence[SiteCosts], weighed: WeightCosts, network: Network, times: OpLatencies) -> JointChoice:
    """The program of one network: a choice for each weight, of a `Stored`, and for each site, of FLOAT or CODES."""
    names = {tensor: site.name for site in sites for tensor in site.tensors}
    on_kernels = {operator.node for operator in network.operators if operator.tensors}
    readers = {name: [node for node in nodes if node in on_kernels] for name, nodes in weighed.layers.items()}
    options, parts, coded = list[Option](), dict[str, list[Condition]](), dict[str, list[Condition]]()
    for candidate, stored in _stored(weighed, readers):
        taken = Condition((weight_choice(candidate.weight), stored))
        costs = {LOSS: candidate.loss, BYTES: candidate.bytes, MEMORY: candidate.memory}
        options.append(Option(weight_choice(candidate.weight), stored, costs))
        for part in candidate.needs:
            parts.setdefault(part, []).append(taken)
        if stored.for_codes:
            coded.setdefault(candidate.weight, []).append(taken)
    for site in sites:
        options += [Option(site.name, FLOAT), Option(site.name, CODES, {LOSS: site.loss, BYTES: site.bytes})]
    events = [_kernel(o, names, times) for o in network.operators if o.tensors]
    for edge in network.edges:
        events += _conversions(edge, names[edge.tensor], times)
    for weight, kernels in readers.items():
        events += _read(weight, kernels, coded.get(weight, ()))
    once = {**weighed.in_float.once, **weighed.on_codes.once}
    events += [Event(f"part {part}", tuple(parts[part]), {BYTES: once[part]}, every=False) for part in sorted(parts)]
    real = sum(times.floats.get(operator.node, 0.0) for operator in network.operators)
    return JointChoice(tuple(options), tuple(events), {BYTES: weighed.in_float.fixed, NANOSECONDS: real})


def weight_choice(weight: str) -> str:
    """The name of a weight's choice, which no site has."""
    return f"weight {weight}"


def on_codes(node: str) -> str:
    """The event that a kernel computes on codes."""
    return f"{node} on codes"


def quantized(tensor: str) -> str:
    """The event that real values of a tensor become codes."""
    return f"{tensor} quantized"


def dequantized(tensor: str) -> str:
    """The event that codes of a tensor become real values."""
    return f"{tensor} dequantized"


def _kernel(operator: TimedOperator, names: Mapping[str, str], times: OpLatencies) -> Event:
    needed = dict.fromkeys(names[tensor] for tensor in operator.tensors)
    saved = times.integers.get(operator.node, 0.0) - times.floats.get(operator.node, 0.0)
    return Event(on_codes(operator.node), tuple(Condition((n, CODES)) for n in needed), {NANOSECONDS: saved})


def _conversions(edge: Edge, site: str, times: OpLatencies) -> Iterator[Event]:
    """Of real values to codes where its maker is in float, and back where a reader is."""
    codes = Condition((site, CODES))
    result = {NANOSECONDS: times.quantize.get(edge.tensor, 0.0)}
    makers = () if edge.maker is None else (Condition(on_codes(edge.maker), holds=False),)
    yield Event(quantized(edge.tensor), (codes, *makers), result)
    back = {NANOSECONDS: times.dequantize.get(edge.tensor, 0.0)}
    if edge.real:
        yield Event(dequantized(edge.tensor), (codes,), back)
    elif edge.readers:
        some = f"{edge.tensor} read in float"
        yield Event(some, tuple(Condition(on_codes(r), holds=False) for r in edge.readers), every=False)
        yield Event(dequantized(edge.tensor), (codes, Condition(some)), back)


def _stored(weighed: WeightCosts, readers: Mapping[str, Sequence[str]]) -> Iterator[tuple[Candidate, Stored]]:
    """What a weight may be stored as. readers: the kernels that may read it."""
    yield from ((candidate, Stored(candidate.form)) for candidate in weighed.in_float.candidates)
    coded = (candidate for candidate in weighed.on_codes.candidates if readers.get(candidate.weight))
    yield from ((candidate, Stored(candidate.form, for_codes=True)) for candidate in coded)


def _read(weight: str, kernels: Sequence[str], coded: Sequence[Condition]) -> Iterator[Event]:
    """That a weight is stored for codes, one of `coded`, exactly where a kernel on codes reads it."""
    if not kernels:
        return
    read, stored = f"{weight_choice(weight)} read by codes", f"{weight_choice(weight)} stored for codes"
    yield Event(read, tuple(Condition(on_codes(kernel)) for kernel in kernels), every=False)
    yield Event(stored, tuple(coded), every=False)
    yield Event(f"{read} alone", (Condition(read), Condition(stored, holds=False)), never=True)
    yield Event(f"{stored} alone", (Condition(stored), Condition(read, holds=False)), never=True)


# Memory as resources of a joint program: one for each step of a run, each with the weights that are loaded.
#
# A run needs the most that any step needs, which is no sum; a limit on it is the same limit on every step. Steps at
# which no choice needs more than at another are left out, and of a limit those that cannot reach it.

Key = tuple[str, str] | str  # of an option (choice, state), or the name of an event


@dataclass(frozen=True)
class StepCosts:
    """Bytes at one step: fixed, and by what adds them."""

    fixed: int = 0
    costs: Mapping[Key, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """No choice needs more: of a site's forms the larger one counts, and all events."""
        of_site: dict[str, int] = {}
        for key, size in self.costs.items():
            name = key if isinstance(key, str) else f"site {key[0]}"
            of_site[name] = max(of_site.get(name, 0), size)
        return self.fixed + sum(of_site.values())

    def is_within(self, other: "StepCosts") -> bool:
        """Whether no choice makes it need more than the other step."""
        return self.fixed <= other.fixed and all(size <= other.costs.get(key, 0) for key, size in self.costs.items())


def with_memory(
    program: JointChoice, model: MemoryModel, sites: Mapping[str, str]
) -> tuple[JointChoice, dict[str, int]]:
    """A program of sites and weights that counts memory, too, and its resources with what each has at most.

    sites: tensor -> name of its site. What a format of a weight takes more or less is there at every step.
    """
    steps = {f"memory at {model.steps[k]}": costs for k, costs in _largest(step_costs(model, sites)).items()}

    def added(key: Key) -> dict[str, float]:
        return {name: float(size) for name, step in steps.items() if (size := step.costs.get(key, 0))}

    def costs_of(option: Option) -> dict[str, float]:
        if isinstance(option.state, str):
            return added((option.choice, option.state))
        more = float(option.costs.get(MEMORY, 0.0))
        return dict.fromkeys(steps, more) if more else {}

    options = tuple(replace(option, costs={**option.costs, **costs_of(option)}) for option in program.options)
    events = tuple(replace(event, costs={**event.costs, **added(event.name)}) for event in program.events)
    weights = tuple(_loaded(weight, steps) for weight in model.weights if weight.nodes)
    fixed = {name: float(step.fixed + model.fixed) for name, step in steps.items()}
    heaviest = model.fixed + sum(max(0, weight.on_codes) for weight in model.weights)
    most = {name: step.most + heaviest for name, step in steps.items()}
    return JointChoice(options, (*events, *weights), {**program.fixed, **fixed}), most


def _loaded(weight: LoadedWeight, steps: Collection[str]) -> Event:
    """That some kernel on codes reads a weight, and what it takes more at every step then."""
    readers = tuple(Condition(on_codes(node)) for node in weight.nodes)
    costs = dict.fromkeys(steps, float(weight.on_codes))
    return Event(f"{weight.weight} loaded for codes", readers, costs, every=False)


def step_costs(model: MemoryModel, sites: Mapping[str, str]) -> list[StepCosts]:
    """The bytes of every step beside the weights."""
    fixed, costs = [0] * len(model.steps), [dict[Key, int]() for _ in model.steps]
    for place, node in enumerate(model.steps):
        if node in model.scratch:
            costs[place][on_codes(node)] = model.scratch[node]
    for tensor in model.tensors:
        site = sites.get(tensor.tensor)
        if site is None:
            for step in tensor.life:
                fixed[step] += tensor.real
            continue
        for key, steps, size in _parts(tensor, site):
            for step in steps:
                costs[step][key] = costs[step].get(key, 0) + size
    return [StepCosts(*columns) for columns in zip(fixed, costs, strict=True)]


def _parts(tensor: LiveTensor, site: str) -> Iterator[tuple[Key, range, int]]:
    """What adds bytes of a tensor, at which steps, and how many."""
    yield (site, FLOAT), tensor.life, tensor.real
    yield (site, CODES), tensor.life, tensor.codes
    yield quantized(tensor.tensor), tensor.quantizing, tensor.copy
    yield dequantized(tensor.tensor), tensor.used, tensor.copy


def _largest(steps: list[StepCosts]) -> dict[int, StepCosts]:
    """The steps of which none is within another; of equal ones the first."""
    largest: dict[int, StepCosts] = {}
    for place, step in enumerate(steps):
        if any(step.is_within(other) for other in largest.values()):
            continue
        largest = {k: other for k, other in largest.items() if not other.is_within(step)}
        largest[place] = step
    return largest
