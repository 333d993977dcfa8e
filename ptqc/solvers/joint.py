"""Formats of weights and states of activations in one program: what a kernel on codes asks of both.

A site on codes costs loss and bytes. A kernel whose sites all are computes in another time, and its weight then takes
codes alone, with other bytes. A tensor on codes is converted where its maker or a reader is in float.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ptqc.formats import Format
from ptqc.solvers.allocation import BYTES, LOSS, Problem
from ptqc.solvers.choices import Condition, Event, JointChoice, Option
from ptqc.solvers.cost_model import Edge, Network, TimedOperator, Times

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
class Weighed:
    """What weights cost. in_float, on_codes: their candidates where no kernel, and where every kernel, is on codes.

    layers: the nodes that read each weight. limit: bytes that the file may have; None: any number.
    """

    in_float: Problem = NO_WEIGHTS
    on_codes: Problem = NO_WEIGHTS
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None


def joint_choice(sites: Sequence[SiteCosts], weighed: Weighed, network: Network, times: Times) -> JointChoice:
    """The program of one network. Weights are choices by ("weight", name), as text; sites by their names."""
    names = {tensor: site.name for site in sites for tensor in site.tensors}
    options = [
        Option(weight_choice(c.weight), c.form, {LOSS: c.loss, BYTES: c.bytes}) for c in weighed.in_float.candidates
    ]
    for site in sites:
        options += [Option(site.name, FLOAT), Option(site.name, CODES, {LOSS: site.loss, BYTES: site.bytes})]
    events = [_kernel(o, names, times) for o in network.operators if o.tensors]
    kernels = {operator.node for operator in network.operators if operator.tensors}
    for edge in network.edges:
        events += _conversions(edge, names[edge.tensor], times)
    parts: dict[str, list[Condition]] = {}
    for weight in weighed.in_float.by_weight():
        events += _weight(weight, weighed, [node for node in weighed.layers.get(weight, ()) if node in kernels], parts)
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


def _weight(
    weight: str, weighed: Weighed, kernels: Sequence[str], parts: dict[str, list[Condition]]
) -> Iterator[Event]:
    """What the kernels of a weight ask of its format. parts: is filled with what needs each shared part."""
    choice, real = weight_choice(weight), {c.form: c for c in weighed.in_float.by_weight()[weight]}
    codes = {c.form: c for c in weighed.on_codes.by_weight().get(weight, ())}
    if not kernels:
        for form, candidate in real.items():
            for part in candidate.needs:
                parts.setdefault(part, []).append(Condition((choice, form)))
        return
    some = Event(f"{choice} read by codes", tuple(Condition(on_codes(k)) for k in kernels), every=False)
    yield some
    kinds: dict[Hashable, list[Format]] = {}
    for form, candidate in real.items():
        found = codes.get(form)
        kind = None if found is None else (found.bytes - candidate.bytes, found.needs)
        kinds.setdefault((kind, candidate.needs), []).append(form)
    for i, forms in enumerate(kinds.values()):
        of_kind = f"{choice} of kind {i}"
        yield Event(of_kind, tuple(Condition((choice, form)) for form in forms), every=False)
        in_float, found = real[forms[0]], codes.get(forms[0])
        both, alone = (
            (Condition(of_kind), Condition(some.name)),
            (Condition(of_kind), Condition(some.name, holds=False)),
        )
        for part in in_float.needs:
            yield Event(f"{of_kind} in float, {part}", alone)
            parts.setdefault(part, []).append(Condition(f"{of_kind} in float, {part}"))
        if found is None:
            yield Event(f"{of_kind} refused", both, never=True)
            continue
        yield Event(f"{of_kind} on codes", both, {BYTES: found.bytes - in_float.bytes})
        for part in found.needs:
            parts.setdefault(part, []).append(Condition(f"{of_kind} on codes"))
