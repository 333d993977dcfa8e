"""What is proven of the best choice of a program: its bound, and what a little more of each limit would gain."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ptqc.solver.choices import JointChoice
from ptqc.solver.integer_program import Answer, Goal, prices


@dataclass(frozen=True)
class Proof:
    """An answer with the program and the goal that it is of. names: of the limited resources whose price is told."""

    program: JointChoice
    goal: Goal
    answer: Answer
    names: Mapping[str, str]

    @cached_property
    def prices(self) -> dict[str, float]:
        """By how much the least resource falls for a hundredth more of each limit, by name; solved again for each."""
        more = {resource: self.goal.limits[resource] / 100 for resource in self.names}
        gains = prices(self.program, self.goal, self.answer, more)
        return {self.names[resource]: gain for resource, gain in gains.items()}

    def to_json(self) -> dict[str, Any]:
        """The document for the artifact."""
        return {
            "loss": self.answer.value,
            "bound": self.answer.bound,
            "gap": self.answer.gap,
            "status": self.answer.status,
            "prices_of_one_percent": self.prices,
        }
