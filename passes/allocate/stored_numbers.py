"""Reconstructed numbers of plans in the store: the same compile with another target, say, finds them done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.formats import Format
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import Solution, TunedNumbers
from ptqc.passes.reconstruct.reconstruct import Reconstruct
from ptqc.utils.store.entries import Store


@dataclass(frozen=True)
class StoredNumbers:
    """What reconstructing gave for plans over one measuring run.

    measured: name of the run's entry, whose key has all else that the numbers follow from: model, samples, versions.
    """

    store: Store
    measured: str

    def find(self, plan: Plan, draws: int) -> list[TunedNumbers] | None:
        """The numbers of a plan from so many draws, mapped from the store's file, if they are there."""
        entry = self.store.get(self._key(plan, draws))
        return None if entry is None else [_unpack(each, entry.arrays) for each in entry.document]

    def put(self, plan: Plan, found: Sequence[TunedNumbers]) -> None:
        """Store the numbers of a plan from every draw. Raises Interrupted when they cannot be written."""
        arrays: dict[str, np.ndarray] = {}
        document = [_pack(numbers, arrays) for numbers in found]
        self.store.put(self._key(plan, len(found)), document, arrays)

    def _key(self, plan: Plan, draws: int) -> Mapping[str, Any]:
        return {"step": Reconstruct.name, "measured": self.measured, "plan": plan.to_json(), "draws": draws}


def _pack(numbers: TunedNumbers, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What can be told in JSON; arrays are added, and named by their places."""

    def place(array: np.ndarray) -> str:
        name = str(len(arrays))
        arrays[name] = array
        return name

    weights = [
        [name, str(solution.form), solution.axis, place(solution.codes), place(solution.scale)]
        for name, solution in numbers.weights.items()
    ]
    biases = [[name, None if bias is None else place(bias)] for name, bias in numbers.biases.items()]
    return {"weights": weights, "biases": biases, "losses": numbers.losses}


def _unpack(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> TunedNumbers:
    before, after = document["losses"]
    return TunedNumbers(
        {n: Solution(Format.parse(form), arrays[c], arrays[s], axis) for n, form, axis, c, s in document["weights"]},
        {name: None if place is None else arrays[place] for name, place in document["biases"]},
        losses=(before, after),
    )
