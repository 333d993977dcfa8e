"""Packed caches: codes and scales say nothing each for itself, so their real values are judged, as those of states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.errors import UsageError
from ptqc.kv_cache.form import real_of
from ptqc.kv_cache.known import from_json
from ptqc.losses.base import OutputFacts, OutputKind
from ptqc.losses.state import State


@dataclass(frozen=True)
class PackedCache(State):
    """form: how it is stored. order: of its channels, where they are sorted."""

    form: str = ""
    order: tuple[int, ...] = ()
    name: ClassVar[str] = "packed-cache"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Nodes say so that pack it."""
        if facts.packed is None:
            return None
        return cls(facts.axis, facts.groups, form=facts.packed["form"], order=tuple(facts.packed["order"]))

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        """Raises UsageError for an output that is not packed."""
        result = cls.recognize(facts)
        if result is None:
            raise UsageError(f"loss: output {facts.name!r} cannot be {cls.name}: nothing packs it")
        return result

    def real(self, name: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Unpacked. name: of the output that holds the codes."""
        return real_of(name, outputs, from_json({"form": self.form, "order": self.order}))

    def describe(self) -> str:
        return f"{self.form} cache, unpacked, {super().describe()}"
