"""Solved weights in the store, put there as they are solved: a compile that was stopped resumes behind the last."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir

from ptqc.ir.layers import Weight
from ptqc.ir.nodes import initial
from ptqc.ir.quantized_weight import Candidates
from ptqc.passes.quantize.measurements import pack_candidates, unpack_candidates
from ptqc.utils.store.entries import Entry, Store


@dataclass(frozen=True)
class StoredWeights:
    """A cache of `SolveWeights`. key: of all that the candidates follow from. names: of the entries, by first weight.

    What is found is mapped from the store's files, so that the memory taken does not grow with the model.
    """

    store: Store
    key: Mapping[str, Any]
    model: ir.Model
    names: dict[str, str] = field(default_factory=dict)

    def find(self, weights: Sequence[Weight]) -> Candidates | None:
        """The candidates of these weights, if they are in the store."""
        entry = self.store.get(self._key(weights))
        if entry is None:
            return None
        self.names[weights[0].name] = entry.folder.name
        return self._unpack(entry)

    def put(self, weights: Sequence[Weight], candidates: Candidates, cut_short: bool = False) -> Candidates:
        """Store the candidates and map them from there. Raises Interrupted when they cannot be written.

        cut_short: by the time limit; they are then found by name only.
        """
        key = {**self._key(weights), **({"cut_short": True} if cut_short else {})}
        self.names[weights[0].name] = name = self.store.put(key, *pack_candidates(candidates))
        entry = self.store.open(name)
        return candidates if entry is None else self._unpack(entry)  # another process may have cleared the store

    def open(self, names: Iterable[str]) -> list[Candidates] | None:
        """The candidates of entries by name; None if one of them is not there any more."""
        entries = [self.store.open(name) for name in names]
        return None if None in entries else [self._unpack(entry) for entry in entries if entry is not None]

    def _key(self, weights: Sequence[Weight]) -> Mapping[str, Any]:
        return {**self.key, "weights": [weight.name for weight in weights]}

    def _unpack(self, entry: Entry) -> Candidates:
        return unpack_candidates(entry.document, entry.arrays, partial(initial, self.model))
