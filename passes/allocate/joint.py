"""Formats of weights and states of activations in one program: what a kernel on codes asks of both.

A site on codes costs loss and bytes. A kernel whose sites all are computes in another time, and its weight then takes
codes alone, with other bytes. A tensor on codes is converted where its maker or a reader is in float.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ptqc.formats import Format
from ptqc.passes.allocate.allocation import BYTES, LOSS, MEMORY, Candidate, Problem
from ptqc.passes.allocate.cost_model import Edge, Network, TimedOperator, Times
from ptqc.solver.choices import Condition, Event, JointChoice, Option

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
class Weighed:
    """What weights cost. in_float, on_codes: their candidates where no kernel, and where every kernel, is on codes.

    layers: the nodes that read each weight. limit: bytes that the file may have; None: any number.
    """

    in_float: Problem = NO_WEIGHTS
    on_codes: Problem = NO_WEIGHTS
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None


def joint_choice(sites: Sequence[SiteCosts], weighed: Weighed, network: Network, times: Times) -> JointChoice:
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


def _kernel(operator: TimedOperator, names: Mapping[str, str], times: Times) -> Event:
    needed = dict.fromkeys(names[tensor] for tensor in operator.tensors)
    saved = times.integers.get(operator.node, 0.0) - times.floats.get(operator.node, 0.0)
    return Event(on_codes(operator.node), tuple(Condition((n, CODES)) for n in needed), {NANOSECONDS: saved})


def _conversions(edge: Edge, site: str, times: Times) -> Iterator[Event]:
    """Of real values to codes where its maker is in float, and back where a reader is."""
    codes = Condition((site, CODES))
    made = {NANOSECONDS: times.quantize.get(edge.tensor, 0.0)}
    makers = () if edge.maker is None else (Condition(on_codes(edge.maker), holds=False),)
    yield Event(quantized(edge.tensor), (codes, *makers), made)
    back = {NANOSECONDS: times.dequantize.get(edge.tensor, 0.0)}
    if edge.real:
        yield Event(dequantized(edge.tensor), (codes,), back)
    elif edge.readers:
        some = f"{edge.tensor} read in float"
        yield Event(some, tuple(Condition(on_codes(r), holds=False) for r in edge.readers), every=False)
        yield Event(dequantized(edge.tensor), (codes, Condition(some)), back)


def _stored(weighed: Weighed, readers: Mapping[str, Sequence[str]]) -> Iterator[tuple[Candidate, Stored]]:
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
