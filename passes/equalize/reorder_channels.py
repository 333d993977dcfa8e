"""Channels put into another order, with everything that makes and reads them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.ir.channels import ChannelTies, Role, moved
from ptqc.ir.nodes import initial, set_constant
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True, eq=False)
class ReorderChannels:
    """Sort channels, as far as they can change places, so that the function stays the same.

    ties: of the model. places: (sets,) of each set of channels, the set whose content it gets; see `by_key`.
    """

    ties: ChannelTies
    places: np.ndarray
    name: ClassVar[str] = "reorder-channels"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Constants are permuted in place; one note says how many."""
        changed = 0
        for name, role in self.ties.constants.items():
            before = initial(probed.model, name) if role.factors else None
            after = None if before is None else permuted(before, role, self.places)
            if before is not None and after is not None and not np.array_equal(before, after):
                set_constant(probed.model, name, after)
                changed += 1
        count = int((self.places != np.arange(len(self.places))).sum())
        notes = [Note(self.name, "", f"{count} sets of channels are reordered, in {changed} constants")]
        return probed.rewritten(notes if changed else [])

    def undone(self) -> "ReorderChannels":
        """What takes all of it back, to the byte."""
        return ReorderChannels(self.ties, np.argsort(self.places))


def by_key(ties: ChannelTies, keys: np.ndarray) -> np.ndarray:
    """The set whose content each set gets, where those of a class are sorted by key, largest first.

    keys: (sets,). Equal keys stay in their order.
    """
    places = np.arange(len(ties.classes))
    for number in np.unique(ties.classes[ties.classes >= 0]):
        members = np.flatnonzero(ties.classes == number)
        places[members] = members[np.argsort(-keys[members], kind="stable")]
    return places


def permuted(array: np.ndarray, role: Role, places: np.ndarray) -> np.ndarray:
    """A constant in the order that goes with its channels' new places."""
    view = array.reshape(role.view)
    for factor in role.factors:
        rest = [axis for axis in range(view.ndim) if axis not in factor.axes]
        front = view.transpose(*factor.axes, *rest)
        flat = front.reshape(len(factor.numbers), *front.shape[len(factor.axes) :])
        front = flat[moved(factor.numbers, places)].reshape(front.shape)
        view = front.transpose(np.argsort([*factor.axes, *rest]))
    return np.ascontiguousarray(view.reshape(array.shape))
