"""One of several formats for each weight, by its own numbers."""

from dataclasses import dataclass

from number_formats.base import NumberFormat, Rows, Stored, decibels

CHOICE_BITS = 8


@dataclass(frozen=True)
class ChosenFormat(NumberFormat):
    """The one of least error, such as the split of bits between exponent and mantissa; a byte says which."""

    name: str
    options: tuple[NumberFormat, ...]

    def store(self, rows: Rows) -> Stored:
        best = max((option.store(rows) for option in self.options), key=lambda stored: decibels(rows, stored))
        return Stored(best.values, best.bits + CHOICE_BITS)
