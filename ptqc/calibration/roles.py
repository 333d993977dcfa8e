"""What the inputs of a model of texts are for: as its graph shows it, and where that says nothing, their names."""

from collections.abc import Sequence
from enum import Enum, auto

from ptqc.calibration.inputs import InputSpec
from ptqc.losses.words import says

# Whole words of the names that exporters give.
MASKS = frozenset(["mask"])
TYPES = frozenset(["type", "types", "segment", "segments"])
PLACES = frozenset(["pos", "position", "positions"])
PASTS = frozenset(["past", "cache", "kv"])
# Tables of kinds of tokens have no more rows.
FEW_KINDS = 4


class InputRole(Enum):
    """What an input is for."""

    TOKENS = auto()
    MASK = auto()  # 1 where there is a token, 0 where there is padding
    TYPES = auto()  # which of two texts a token is of
    PLACES = auto()  # the number of each position
    PAST = auto()  # keys and values of earlier tokens
    OTHER = auto()


def roles(inputs: Sequence[InputSpec]) -> dict[str, InputRole]:
    """The role of each input by name."""
    found = {spec.name: _role(spec, inputs) for spec in inputs}
    whole = [spec for spec in inputs if spec.dtype.kind in "iu" and found[spec.name] is InputRole.OTHER]
    most = max((spec.rows or 0 for spec in whole), default=0)
    tokens = [spec for spec in whole if (spec.rows or 0) == most]
    if len(tokens) == 1:
        found[tokens[0].name] = InputRole.TOKENS
    return found


def _role(spec: InputSpec, inputs: Sequence[InputSpec]) -> InputRole:
    if spec.dtype.kind == "f":
        grows = not all(isinstance(size, int) for size in spec.shape[1:])
        return InputRole.PAST if grows and says(spec.name, PASTS) else InputRole.OTHER
    if spec.masks or (spec.rows is None and says(spec.name, MASKS)):
        return InputRole.MASK
    if spec.dtype.kind not in "iu":
        return InputRole.OTHER
    if says(spec.name, PLACES):
        return InputRole.PLACES
    largest = max(other.rows or 0 for other in inputs)
    if (spec.rows is not None and spec.rows <= FEW_KINDS < largest) or says(spec.name, TYPES):
        return InputRole.TYPES
    return InputRole.OTHER
