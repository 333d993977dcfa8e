"""The loss of a model: the sum over its outputs, each by its own kind, in one unit.

loss = Σ_o share_o · loss_o · tolerance / tolerance_o. Where all outputs have one unit, so has the sum; else it is said
in relative squared errors, and the tolerances are the rates of exchange: a nat is a tenth. share is 1, but for states,
which have `ptqc.losses.state.SHARE` together. All losses are means over predictions, so those of layers add up to first
order, and those of batches average.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptqc.losses.base import RELATIVE, OutputKind, Pair, Unit
from ptqc.losses.finite_rows import finite_rows, has_flaws
from ptqc.losses.recognition import Kinds, Outputs
from ptqc.losses.state import SHARE, State
from ptqc.utils.lazy import Lazy

# Loss of outputs that are NaN or infinite: more than any that is kept, and still a number that can be added up.
HOPELESS = 1e3


@dataclass(frozen=True)
class OutputLoss:
    """kinds: by output, fitted to float outputs."""

    kinds: Mapping[str, OutputKind]

    @classmethod
    def of(cls, kinds: Kinds, references: Sequence[Outputs]) -> "OutputLoss":
        """The losses of all outputs, with the constants that these float outputs give."""
        return cls({name: kind.fitted(_not_empty(kind, name, references)) for name, kind in kinds.items()})

    def __call__(self, reference: Outputs, quantized: Outputs) -> float:
        """Mean loss of a batch (or sample)."""
        if not all(_is_finite(*self._pair(name, reference, quantized)) for name in self.kinds):
            return HOPELESS
        total = 0.0
        for name, kind in self.kinds.items():
            loss = kind.combine(self.losses(name, reference, quantized))
            total += self.rate(kind) * loss
        return float(total)

    def rate(self, kind: OutputKind) -> float:
        """What a loss of 1 of an output of this kind adds to the sum."""
        return self._share(kind) * (self._unit.tolerance / kind.unit.tolerance)

    def losses(self, name: str, reference: Outputs, quantized: Outputs) -> dict[str, float]:
        """Losses of one output, by groups of its channels."""
        kind, pair = self.kinds[name], self._pair(name, reference, quantized)
        if not _is_finite(*pair):
            return dict.fromkeys(kind.units(), HOPELESS)
        if not pair[0].size:  # nothing was found, by either
            return dict.fromkeys(kind.units(), 0.0)
        return kind.losses(*pair)

    def mean(self, reference: Iterable[Outputs], quantized: Iterable[Outputs]) -> float:
        """Over batches, each weighed by the size of its outputs."""
        result = [(self(a, b), self.size(a, b)) for a, b in zip(reference, quantized, strict=True)]
        return _weighed([loss for loss, _ in result], [size for _, size in result])

    def size(self, reference: Outputs, quantized: Outputs) -> int:
        """Elements of all outputs that are compared: how much a batch weighs in a mean."""
        return sum(self._size(name, reference, quantized) for name in self.kinds)

    def _size(self, name: str, reference: Outputs, quantized: Outputs) -> int:
        if has_flaws(reference[name]):
            return self._pair(name, reference, quantized)[0].size
        return aligned(reference[name], quantized[name])[0].size

    def _pair(self, name: str, reference: Outputs, quantized: Outputs) -> Pair:
        """What is compared of an output."""
        return comparable(self.kinds[name], *(self.kinds[name].read(name, one) for one in (reference, quantized)))

    def mean_losses(self, name: str, reference: Iterable[Outputs], quantized: Iterable[Outputs]) -> dict[str, float]:
        """Mean losses of one output, by groups of its channels; batches are weighed by their size."""
        result = [(self.losses(name, a, b), self._size(name, a, b)) for a, b in zip(reference, quantized, strict=True)]
        sizes = [size for _, size in result]
        return {group: _weighed([losses[group] for losses, _ in result], sizes) for group in result[0][0]}

    @property
    def unit(self) -> str:
        """What a loss of 1 means."""
        return self._unit.name

    @property
    def _unit(self) -> Unit:
        answers = [kind for kind in self.kinds.values() if not isinstance(kind, State)]
        units = {kind.unit for kind in answers or self.kinds.values()}
        return units.pop() if len(units) == 1 else RELATIVE

    def _share(self, kind: OutputKind) -> float:
        states = sum(isinstance(other, State) for other in self.kinds.values())
        return SHARE / states if isinstance(kind, State) and states < len(self.kinds) else 1.0


def _not_empty(kind: OutputKind, name: str, references: Sequence[Outputs]) -> Sequence[np.ndarray]:
    """An output of all samples, but for those in which nothing was found; all where nothing was found in any.

    Each is read when it is asked for, since kinds make new arrays of outputs.
    """

    def read(place: int) -> np.ndarray:
        return finite_rows(kind, kind.read(name, references[place]))[0]

    every = range(len(references))
    places = [place for place in every if read(place).size] or every
    return Lazy(lambda place: read(places[place]), len(places))


def _weighed(losses: Sequence[float], sizes: Sequence[int]) -> float:
    usual = np.mean(sizes) or 1.0
    return float(np.mean([loss * (size / usual) for loss, size in zip(losses, sizes, strict=True)]))


def _is_finite(_reference: np.ndarray, quantized: np.ndarray) -> bool:
    return bool(np.isfinite(quantized).all())


def comparable(kind: OutputKind, reference: np.ndarray, quantized: np.ndarray) -> Pair:
    """What is compared of two arrays: of one size, and without rows in which the float model is not finite."""
    first, second = finite_rows(kind, *aligned(reference, quantized))
    return first, second


def aligned(reference: np.ndarray, quantized: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both of the larger sizes: where a network finds more things or fewer, what is missing is zeros."""
    if reference.shape == quantized.shape or reference.ndim != quantized.ndim:
        return reference, quantized
    sizes = np.maximum(reference.shape, quantized.shape)
    return tuple(
        np.pad(x, [(0, int(n - m)) for n, m in zip(sizes, x.shape, strict=True)]) for x in (reference, quantized)
    )  # type: ignore[return-value]
