"""What every kind of output says of itself, and what is known of an output when its kind is chosen."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

Arrays = Sequence[np.ndarray]
Pair = tuple[np.ndarray, np.ndarray]  # of the float model, of the compiled one

# Below these the user is warned.
LOW_AGREEMENT = 0.9
LOW_COSINE = 0.98
LOW_SQNR = 15.0  # dB
LARGE_LOSS = 0.1  # of a variance: a large mean, which SQNR counts, may hide it
LOOKED_AT = 250_000  # values of a sample, to see what it is
FITTED = {"fitted": True}  # marks fields that `OutputKind.fitted` fills


@dataclass(frozen=True)
class Unit:
    """What a loss of 1 means. tolerance: what 8-bit activations may cost by default; units are compared by it."""

    name: str
    tolerance: float


NAT = Unit("nat", 0.02)
# Of detections many lie near any threshold, and a score of 0.3 moves by 0.02 with this: one in fifty comes or goes.
PER_DETECTION = Unit("nat per detection", 1e-3)
RELATIVE = Unit("relative squared error", 2e-3)
# A small relative squared error of a vector is twice its cosine distance.
COSINE = Unit("cosine distance", 1e-3)
UNITS = {unit.name: unit for unit in (NAT, PER_DETECTION, RELATIVE, COSINE)}


@dataclass(frozen=True)
class Group:
    """Channels from `start` to before `stop` that are judged together. scores: whether they are probabilities."""

    start: int
    stop: int
    scores: bool = False

    @property
    def channels(self) -> slice:
        """The channels of the group, for indexing."""
        return slice(self.start, self.stop)

    def __str__(self) -> str:
        what = "scores" if self.scores else "values"
        only = self.stop - self.start == 1
        return f"{what} (channel {self.start})" if only else f"{what} (channels {self.start} to {self.stop - 1})"


@dataclass(frozen=True)
class Figure:
    """One number that says how well an output is kept, and the words for it. low: below which the user is warned."""

    name: str
    value: float
    text: str
    low: float | None = None

    @property
    def is_low(self) -> bool:
        """Whether the user is warned of it; of NaN, too."""
        return self.low is not None and not self.value >= self.low


@dataclass(frozen=True)
class Answers:
    """The likeliest classes of one prediction with their probabilities, by the float model and by the compiled one.

    place: where in the output it is; empty where it is the only one.
    """

    place: str
    real: tuple[tuple[int, float], ...]
    compiled: tuple[tuple[int, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The document for the report."""
        return {"place": self.place, "float": self.real, "compiled": self.compiled}


@dataclass(frozen=True)
class OutputFacts:
    """What graph and data say of an output that is judged, with its values as real numbers.

    values: of some samples. axis: of the channels; None where it has none. groups: along that axis; none where there is
    no axis, or one whose size varies. traced: whether the graph says where the channels are. direct: whether it comes
    from a layer through nothing but its bias, a factor and changes of shape. alone: whether it is the only output with
    floats. carried: whether it hands an input on to the next run. packed: the form of a packed cache,
    as a document, of which `values` are the real ones; None: it is none. inputs: declared shapes of the model's inputs.
    labels: whether they are integers of 32 bits and more, or booleans.
    """

    name: str
    shape: tuple[int | str | None, ...]
    values: tuple[np.ndarray, ...]
    axis: int | None
    groups: tuple[Group, ...] = ()
    traced: bool = False
    direct: bool = False
    alone: bool = True
    carried: bool = False
    packed: Mapping[str, Any] | None = None
    inputs: tuple[tuple[int | str | None, ...], ...] = ()
    labels: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.values[0].ndim

    @property
    def channels(self) -> int:
        """Number of channels; 0 without a channel axis."""
        return 0 if self.axis is None else self.values[0].shape[self.axis]

    @property
    def positions(self) -> int:
        """Rows of the first sample."""
        return self.values[0].size // self.channels if self.channels else 0

    def rows(self) -> np.ndarray:
        """Values as (positions, channels), float64; of many positions of a sample some."""
        assert self.axis is not None
        return np.concatenate([some_rows(value, self.axis) for value in self.values])


@dataclass(frozen=True)
class OutputKind(ABC):
    """How one output is compared with the float model's. Subclasses hold what was found out about the output.

    name: as `--loss output=name` has it. is_target: whether a squared error over all of its values is what training may
    lower.
    """

    name: ClassVar[str]
    is_target: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The kind with what it needs to know, if the output is of it."""

    @classmethod
    @abstractmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        """The kind for an output that the user says is of it. Raises UsageError where that makes no sense."""

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """Of its loss."""

    def fitted(self, values: Arrays) -> Self:
        """A copy with the constants of the loss, taken from float outputs."""
        del values
        return self

    def real(self, name: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The real values that the output of this name stands for."""
        return as_real(outputs[name])

    def read(self, name: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The array that is judged, and whose constants are fitted: the real values, or what is made of them."""
        return self.real(name, outputs)

    @abstractmethod
    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        """The loss by group of channels; "" where there is one. Means over predictions, of two arrays of one shape."""

    def combine(self, losses: Mapping[str, float]) -> float:
        """The loss of the output."""
        return float(sum(losses.values()))

    @abstractmethod
    def describe(self) -> str:
        """What the output is taken for, in a few words."""

    def parts(self) -> dict[str, tuple[int, slice] | None]:
        """The groups of channels by the names that `losses` gives: axis and channels, or None for all of the output."""
        return {"": None}

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told beside the loss. sqnr: in dB, by group."""
        del pairs, loss
        return decibels(sqnr, LOW_SQNR)

    def answers(self, reference: np.ndarray, quantized: np.ndarray) -> Answers | None:
        """What both say of the prediction that changed most; None where the output has no classes."""
        del reference, quantized
        return None

    def units(self) -> dict[str, Unit]:
        """Of the losses by group."""
        return dict.fromkeys(self.parts(), self.unit)

    def to_json(self) -> dict[str, Any]:
        """The document for manifests and the store, without what was fitted."""
        result = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata != FITTED}
        if "groups" in result:
            result["groups"] = [[group.start, group.stop, group.scores] for group in result["groups"]]
        return {"kind": self.name, **{key: _plain(value) for key, value in result.items()}}


class Head(OutputKind):
    """Kinds that can be the scores of a detector, whose boxes are another output."""

    @abstractmethod
    def beside_boxes(self, axis: int | None, facts: OutputFacts) -> "Head | None":
        """The kind for scores of many places with the classes along this axis, if the output can be that."""

    @abstractmethod
    def weights(self, value: np.ndarray) -> np.ndarray:
        """How likely something is at each place, as the float model has it."""

    @abstractmethod
    def scores(self, value: np.ndarray) -> np.ndarray:
        """(places, classes): how likely something of the class is there; 0 for the background."""


def as_real(array: np.ndarray) -> np.ndarray:
    """Floats as they are, integers as floats, whose differences are no overflows."""
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _plain(value: Any) -> Any:
    """A field of a kind as JSON."""
    return value.to_json() if isinstance(value, OutputKind) else value


def decibels(sqnr: Mapping[str, float], low: float | None = None) -> list[Figure]:
    """A figure for each group."""
    return [
        Figure("SQNR", value, f"SQNR {f'of {group} ' if group else ''}{value:.1f} dB", low)
        for group, value in sqnr.items()
    ]


def rows(value: np.ndarray, axis: int) -> np.ndarray:
    """(positions, channels), float64."""
    return np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis]).astype(np.float64)


def some_rows(value: np.ndarray, axis: int) -> np.ndarray:
    """Some of the `rows`, evenly spread, with about LOOKED_AT values."""
    moved = np.moveaxis(value, axis, -1)
    result = moved.reshape(-1, moved.shape[-1])
    return result[:: max(1, result.size // LOOKED_AT)].astype(np.float64)


def sizes_vary(values: Arrays, axis: int) -> bool:
    """Whether an axis is not equally long in all samples."""
    return len({(value.ndim, value.shape[axis : axis + 1]) for value in values}) > 1
