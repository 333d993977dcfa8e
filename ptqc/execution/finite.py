"""Stops a walk where it gives a NaN or an infinity that the float model does not have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ptqc.errors import NotFinite
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.tensors import largest
from ptqc.execution.walk import Slicer


class Flaw(IntEnum):
    """The worst that an array holds."""

    NONE = 0
    INFINITE = 1
    NAN = 2


@dataclass(frozen=True, eq=False)
class Finite:
    """Compares what is not finite with the float model, where it first appears and the first time that it does.

    batches: the feeds of the walk. known: the flaws that the float model has too.
    """

    slicer: Slicer
    batches: Sequence[Feeds]
    known: set[tuple[str, Flaw]] = field(default_factory=set)

    def __call__(
        self, place: int, batch: int, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> None:
        """Look at what a node made of a batch. Raises NotFinite, which names the value and the node."""
        flaws = {name: flaw for name, result in outputs.items() if (flaw := flaw_of(result))}
        worst = max(map(flaw_of, inputs.values()), default=Flaw.NONE) if flaws else Flaw.NONE
        for name, flaw in flaws.items():
            if flaw > worst and (name, flaw) not in self.known:
                self._compare(place, batch, name, outputs[name], flaw)
                self.known.add((name, flaw))

    def _compare(self, place: int, batch: int, name: str, values: np.ndarray, flaw: Flaw) -> None:
        feeds = self.batches[batch]
        session = self.slicer.session(self.slicer.needed(0, [name]), feeds, [name])
        (wanted,) = session.run([name], {value.name: feeds[value.name] for value in session.get_inputs()})
        is_flawed = np.isnan if flaw is Flaw.NAN else lambda array: ~np.isfinite(array)
        if wrong := int(np.count_nonzero(is_flawed(values) & ~is_flawed(wanted))):
            what = "NaN" if flaw is Flaw.NAN else "infinite"
            raise NotFinite(
                f"{self.slicer.nodes[place].op_type} {name!r} is {what} in {wrong:,} of {values.size:,} elements once "
                "the model is quantized",
                "try --activations float, or more bytes",
            )


def flaw_of(array: object) -> Flaw:
    """What is wrong with an array of floats; anything else has no flaw."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return Flaw.NONE
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one look at all numbers; a sum may be infinite where none of them is
            return Flaw.NONE
    reach = largest(array)
    if np.isfinite(reach):
        return Flaw.NONE
    return Flaw.NAN if np.isnan(reach) else Flaw.INFINITE
