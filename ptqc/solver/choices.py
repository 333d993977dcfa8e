"""Choices that are made together: one option each, with costs in any number of resources. Plain data, no solver.

Costs belong to options, or to events that follow from several of them: "all of these", or "any of these". A product
x ∧ q is an event of two conditions; what candidates share and pay once is an event of any of them.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

State = Hashable
Costs = Mapping[str, float]
Selection = Mapping[str, State]


@dataclass(frozen=True)
class Option:
    """One state that a choice may take, and what it costs by resource.

    Things that must be in the same state are one choice: tensors that share their parameters are tied like that.
    """

    choice: str
    state: State
    costs: Costs = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """That an option is taken, or that an event happens; with holds=False that it does not.

    of: (choice, state), which never holds where there is no such option, or the name of an earlier event.
    """

    of: tuple[str, State] | str
    holds: bool = True


@dataclass(frozen=True)
class Event:
    """What happens where all of its conditions hold (every), or where any does. never: nothing may make it happen."""

    name: str
    conditions: tuple[Condition, ...]
    costs: Costs = field(default_factory=dict)
    every: bool = True
    never: bool = False


@dataclass(frozen=True)
class JointChoice:
    """Options, grouped into choices by name; events, each of which refers to earlier ones; and fixed costs."""

    options: tuple[Option, ...]
    events: tuple[Event, ...] = ()
    fixed: Costs = field(default_factory=dict)

    @property
    def choices(self) -> dict[str, list[Option]]:
        """The options of each choice, in order."""
        found: dict[str, list[Option]] = {}
        for option in self.options:
            found.setdefault(option.choice, []).append(option)
        return found

    def happening(self, selection: Selection) -> dict[str, bool]:
        """Whether each event happens."""
        found: dict[str, bool] = {}
        for event in self.events:
            true = [self._is(condition, selection, found) == condition.holds for condition in event.conditions]
            found[event.name] = all(true) if event.every else any(true)
        return found

    def allows(self, selection: Selection) -> bool:
        """Whether nothing happens that never may."""
        found = self.happening(selection)
        return not any(event.never and found[event.name] for event in self.events)

    def costs(self, selection: Selection) -> dict[str, float]:
        """What a selection costs, by resource."""
        happening = self.happening(selection)
        spent = [option.costs for option in self.options if selection[option.choice] == option.state]
        return total([self.fixed, *spent, *(event.costs for event in self.events if happening[event.name])])

    def rows(self, resource: str) -> tuple[list[float], list[float]]:
        """What each option and each event costs of a resource."""
        return [o.costs.get(resource, 0.0) for o in self.options], [e.costs.get(resource, 0.0) for e in self.events]

    def with_sum(self, resource: str, prices: Mapping[str, float]) -> "JointChoice":
        """The same choices with one more resource: the sum of others, each at its price."""

        def summed(costs: Costs) -> Costs:
            return {**costs, resource: sum(price * costs.get(other, 0.0) for other, price in prices.items())}

        options = tuple(replace(option, costs=summed(option.costs)) for option in self.options)
        events = tuple(replace(event, costs=summed(event.costs)) for event in self.events)
        return replace(self, options=options, events=events, fixed=summed(self.fixed))

    @staticmethod
    def _is(condition: Condition, selection: Selection, found: Mapping[str, bool]) -> bool:
        if isinstance(condition.of, str):
            return found[condition.of]
        choice, state = condition.of
        return selection[choice] == state


def total(several: Sequence[Costs]) -> dict[str, float]:
    """The sum of costs, by resource."""
    found: dict[str, float] = {}
    for costs in several:
        for resource, cost in costs.items():
            found[resource] = found.get(resource, 0) + cost
    return found
