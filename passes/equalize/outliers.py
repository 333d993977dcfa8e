"""What is done about a tensor that 8 bits do not hold: channels are split off, rows get a scale each, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptqc.passes.base import Rewrite
from ptqc.passes.equalize.scale_rows import ScaleRows, scaled_rows
from ptqc.passes.equalize.split_outliers import Split, SplitOutliers


@dataclass(frozen=True)
class Remedy:
    """A tensor that layers read, and what is done about it.

    channels: places of those that are split off, in order. by_row: whether what is left gets a scale for each row.
    """

    tensor: str
    channels: tuple[int, ...] = ()
    by_row: bool = False

    @property
    def rest(self) -> str:
        """The name of what layers on integers then read."""
        return scaled_rows(self._narrow) if self.by_row else self._narrow

    @property
    def told(self) -> str:
        """What messages call what was done."""
        return "split" if self.channels else "scaled by rows"

    @property
    def _narrow(self) -> str:
        return Split(self.tensor, self.channels).rest if self.channels else self.tensor


def rewrites(remedies: Sequence[Remedy]) -> list[Rewrite]:
    """What brings all of them about: rows are those that the split leaves."""
    splits = tuple(Split(remedy.tensor, remedy.channels) for remedy in remedies if remedy.channels)
    rows = tuple(remedy._narrow for remedy in remedies if remedy.by_row)
    return [*([SplitOutliers(splits)] if splits else []), *([ScaleRows(rows)] if rows else [])]


def to_json(remedies: Sequence[Remedy]) -> list[list[Any]]:
    """The document for the store."""
    return [[each.tensor, list(each.channels), *([True] if each.by_row else [])] for each in remedies]


def from_json(document: Sequence[Sequence[Any]]) -> tuple[Remedy, ...]:
    """Inverse of `to_json`."""
    return tuple(Remedy(tensor, tuple(channels), *more) for tensor, channels, *more in document)
