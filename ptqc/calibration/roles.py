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
CROSS = frozenset(["encoder", "cross"])
# Tables of kinds of tokens have no more rows.
FEW_KINDS = 4
SEQUENCE = 3  # axes of features in a row; a picture has one more


class InputRole(Enum):
    """What an input is for."""

    TOKENS = auto()
    MASK = auto()  # 1 where there is a token, 0 where there is padding
    TYPES = auto()  # which of two texts a token is of
    PLACES = auto()  # the number of each position
    PAST = auto()  # keys and values of earlier tokens
    FLAG = auto()  # whether the cache is read, for a model that takes it in either case
    HEARD = auto()  # what an encoder made, or keys and values of that: a sequence of another length than the tokens
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
        if (len(spec.shape) == 2 and says(spec.name, MASKS)) or (spec.masks and _has_tokens(inputs)):
            return InputRole.MASK
        if all(isinstance(size, int) for size in spec.shape[1:]):
            return InputRole.OTHER
        if says(spec.name, PASTS) and not says(spec.name, CROSS):
            return InputRole.PAST
        is_sequence = len(spec.shape) == SEQUENCE or says(spec.name, CROSS)
        return InputRole.HEARD if is_sequence and _has_tokens(inputs) else InputRole.OTHER
    # What is called a position may reach a softmax as well: decoders compare positions to mask later tokens.
    if spec.dtype.kind in "iu" and says(spec.name, PLACES) and not says(spec.name, MASKS):
        return InputRole.PLACES
    if spec.masks or (spec.rows is None and says(spec.name, MASKS)):
        return InputRole.MASK
    if spec.dtype.kind == "b" and all(size == 1 for size in spec.shape) and says(spec.name, PASTS):
        return InputRole.FLAG
    if spec.dtype.kind not in "iu":
        return InputRole.OTHER
    return InputRole.TYPES if says(spec.name, TYPES) or _has_few_kinds(spec, inputs) else InputRole.OTHER


def _has_few_kinds(spec: InputSpec, inputs: Sequence[InputSpec]) -> bool:
    """Whether it indexes a small table beside a larger one, in a model whose positions can be masked."""
    largest = max(other.rows or 0 for other in inputs)
    return spec.rows is not None and spec.rows <= FEW_KINDS < largest and any(other.masks for other in inputs)


def _has_tokens(inputs: Sequence[InputSpec]) -> bool:
    """Whether some input indexes a table: without one, floats that reach a softmax are scores."""
    return any(spec.rows is not None for spec in inputs)
