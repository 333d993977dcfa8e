"""How far outputs of a compiled model may be from the float model's, each kind of output in a unit that fits it.

The kinds and their limits are those that wild/models.toml states.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import agreement
import numpy as np

Arrays = Sequence[np.ndarray]
BOX = 4  # numbers of a YOLO box before its class scores
SURE = 0.5  # confidence from which a pitch counts
CENTS_PER_OCTAVE, CENTS = 1200, 50
SMALLEST = 1e-30


@dataclass(frozen=True)
class Kind:
    """measure(float outputs, compiled outputs, detail) gives a figure; limit: the least, or the most that agrees."""

    measure: Callable[[Arrays, Arrays, float], float]
    limit: float
    unit: str
    lower_is_better: bool = False

    def agrees(self, figure: float) -> bool:
        """Whether a figure is within the limit; not a number never is."""
        return figure <= self.limit if self.lower_is_better else figure >= self.limit


@dataclass(frozen=True)
class Judgement:
    """What was found at one output, or at one part of it."""

    output: str
    kind: str
    figure: float

    @property
    def agrees(self) -> bool:
        """Whether it is within the limit of its kind."""
        return KINDS[self.kind].agrees(self.figure)

    def __str__(self) -> str:
        return f"{self.kind} {self.figure:.3g} {KINDS[self.kind].unit}".rstrip()


def judge(
    kinds: Sequence[str], names: Sequence[str], real: Sequence[Arrays], tested: Sequence[Arrays]
) -> list[Judgement]:
    """One judgement for each output, two for YOLO's; kinds as the list has them, arrays by output and sample."""
    every: list[Judgement] = []
    for kind, name, wanted, outputs in zip(kinds, names, real, tested, strict=True):
        kind, _, detail = kind.partition(":")
        if kind == "pitch":
            wanted = [
                np.where(sure >= SURE, pitch, np.nan) for pitch, sure in zip(wanted, real[int(detail)], strict=True)
            ]
        if kind == "yolo":
            every += _yolo(name, wanted, outputs, int(detail))
        else:
            default = -1.0 if kind == "classes" else 0.0
            every.append(Judgement(name, kind, KINDS[kind].measure(wanted, outputs, float(detail or default))))
    return every


def _parts(arrays: Arrays, axis: int, index: int) -> Arrays:
    return [np.split(one, [BOX], axis)[index] for one in arrays]


def _yolo(name: str, real: Arrays, tested: Arrays, axis: int) -> list[Judgement]:
    kinds = [("boxes", "values"), ("classes", "scores")]
    return [
        Judgement(
            f"{name} {part}", kind, KINDS[kind].measure(_parts(real, axis, index), _parts(tested, axis, index), 0)
        )
        for index, (part, kind) in enumerate(kinds)
    ]


def as_array(output: Any) -> np.ndarray:
    """An output of ONNX Runtime as an array; a sequence of maps, as ZipMap gives, has a row for each sample."""
    if isinstance(output, list) and output and isinstance(output[0], Mapping):
        return np.array([[row[key] for key in sorted(row)] for row in output])
    return np.asarray(output)


def _share_of_equal(real: Arrays, tested: Arrays) -> float:
    equal = [np.mean(_flat(a) == _flat(b)) for a, b in zip(real, tested, strict=True)]
    weights = [one.size for one in real]
    return float(np.average(equal, weights=weights))


def _flat(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).ravel()


def _classes(real: Arrays, tested: Arrays, axis: float) -> float:
    return _share_of_equal([one.argmax(int(axis)) for one in real], [one.argmax(int(axis)) for one in tested])


def _labels(real: Arrays, tested: Arrays, _: float) -> float:
    return _share_of_equal(real, tested)


def _binary(real: Arrays, tested: Arrays, _: float) -> float:
    return _share_of_equal([one >= 0.5 for one in real], [one >= 0.5 for one in tested])


def _mask(real: Arrays, tested: Arrays, threshold: float) -> float:
    pairs = [(a > threshold, b > threshold) for a, b in zip(real, tested, strict=True)]
    union = sum(int((a | b).sum()) for a, b in pairs)
    return sum(int((a & b).sum()) for a, b in pairs) / union if union else 1.0


def _embedding(real: Arrays, tested: Arrays, _: float) -> float:
    return float(np.concatenate([_cosines(a, b) for a, b in zip(real, tested, strict=True)]).mean())


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (a, b))
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines: np.ndarray = (a * b).sum(-1) / np.maximum(lengths, SMALLEST)
    return cosines


def _tokens(real: Arrays, tested: Arrays, _: float) -> float:
    total = agreement.Agreement(has_classes=True)
    for a, b in zip(real, tested, strict=True):
        total.add([a], [b])
    return total.divergence / total.predictions


def _sqnr(real: Arrays, tested: Arrays, _: float) -> float:
    a, b = (np.concatenate([_flat(one) for one in arrays]).astype(np.float64) for arrays in (real, tested))
    noise = np.square(a - b).mean()
    return 10 * float(np.log10(max(a.var(), SMALLEST) / max(noise, SMALLEST)))


def _peak(real: Arrays, tested: Arrays, _: float) -> float:
    noise = np.concatenate(
        [np.square(_flat(a).astype(np.float64) - _flat(b)) for a, b in zip(real, tested, strict=True)]
    )
    return -10 * float(np.log10(max(noise.mean(), SMALLEST)))


def _pitch(real: Arrays, tested: Arrays, _: float) -> float:
    off = [np.abs(np.log2(_flat(b) / _flat(a))) * CENTS_PER_OCTAVE for a, b in zip(real, tested, strict=True)]
    sure = np.concatenate(off)[~np.isnan(np.concatenate([_flat(one) for one in real]))]
    return float(np.mean(sure <= CENTS)) if sure.size else 1.0


KINDS = {
    "classes": Kind(_classes, 0.97, "same"),
    "labels": Kind(_labels, 0.97, "same"),
    "binary": Kind(_binary, 0.97, "same"),
    "mask": Kind(_mask, 0.95, "IoU"),
    "embedding": Kind(_embedding, 0.98, "cosine"),
    "tokens": Kind(_tokens, 0.02, "nat", lower_is_better=True),
    "scores": Kind(_sqnr, 25, "dB"),
    "image": Kind(_peak, 40, "dB"),
    "pitch": Kind(_pitch, 0.97, "within 50 cents"),
    "values": Kind(_sqnr, 20, "dB"),
    "state": Kind(_sqnr, 15, "dB"),
}
