"""Memory as resources of a joint program: one for each step of a run, each with the weights that are loaded.

A run needs the most that any step needs, which is no sum; a limit on it is the same limit on every step. Steps at which
no choice needs more than at another are left out, and of a limit those that cannot reach it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ptqc.passes.allocate.allocation import MEMORY
from ptqc.passes.allocate.joint import CODES, FLOAT, dequantized, on_codes, quantized
from ptqc.passes.allocate.memory_model import LiveTensor, LoadedWeight, MemoryModel
from ptqc.solver.choices import Condition, Event, JointChoice, Option

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
    return [StepCosts(*found) for found in zip(fixed, costs, strict=True)]


def _parts(tensor: LiveTensor, site: str) -> Iterator[tuple[Key, range, int]]:
    """What adds bytes of a tensor, at which steps, and how many."""
    yield (site, FLOAT), tensor.life, tensor.real
    yield (site, CODES), tensor.life, tensor.codes
    yield quantized(tensor.tensor), tensor.made, tensor.copy
    yield dequantized(tensor.tensor), tensor.used, tensor.copy


def _largest(steps: list[StepCosts]) -> dict[int, StepCosts]:
    """The steps of which none is within another; of equal ones the first."""
    kept: dict[int, StepCosts] = {}
    for place, step in enumerate(steps):
        if any(step.is_within(other) for other in kept.values()):
            continue
        kept = {k: other for k, other in kept.items() if not other.is_within(step)}
        kept[place] = step
    return kept
