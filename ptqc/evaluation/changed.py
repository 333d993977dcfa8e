"""The held-back samples whose outputs moved most, as a person would look at them."""

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from PIL import Image, ImageOps

from ptqc.calibration.inputs import InputRole, InputSpec, input_specs, roles
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import is_image, spatial_axes
from ptqc.calibration.texts import read_tokenizer
from ptqc.errors import UsageError
from ptqc.evaluation.detection.boxes import FORMS, SIDES, BoxForm, Size, grid, overlap, sides, without_overlaps
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.judge import Judged
from ptqc.execution.onnxruntime import Feeds, Runner, open_packed, tensors_of
from ptqc.losses import Kinds, comparable
from ptqc.losses.base import rows
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Classes
from ptqc.losses.detection import Detection

# The tokens of a text, and where the compiled model says another one than the float model does.

# Pieces of tokenizers have these for a space in front, and for the end of a line.
SPACES, GOES_ON = ("▁", "Ġ"), "##"
READ_AS = {"▁": " ", "Ġ": " ", "Ċ": "↵", "<0x0A>": "↵", "\n": "↵"}
SHOWN_TOKENS, SHOWN_CHANGES = 96, 8

Words = Callable[[int], str]


@dataclass(frozen=True)
class TokenInput:
    """The input that takes tokens. words: the text of a token's number, with the space in front of it; the
    number where no tokenizer is known.
    """

    name: str
    mask: str | None
    rows: int | None
    words: Words

    @classmethod
    def of(cls, inputs: tuple[InputSpec, ...], tokenizer: Path | None) -> "TokenInput | None":
        """None for a model that takes no tokens, one text in a sample."""
        known = roles(inputs)
        tokens = next((spec for spec in inputs if known[spec.name] is InputRole.TOKENS and len(spec.shape) == 2), None)
        if tokens is None:
            return None
        mask = next((name for name, role in known.items() if role is InputRole.MASK), None)
        return cls(tokens.name, mask, tokens.rows, _number if tokenizer is None else _pieces(tokenizer))

    def changes(self, kinds: Kinds, feeds: Feeds, real: Feeds, packed: Feeds) -> dict[str, Any] | None:
        """The document: the tokens, and of outputs with an answer at each of them those that differ."""
        tokens = feeds[self.name]
        if tokens.shape[0] != 1:
            return None
        count = self._count(feeds, tokens.shape[1])
        numbers = tokens[0, :count]
        outputs = list(self._answers(kinds, numbers, real, packed))
        return {"input": self.name, "tokens": [self.words(int(x)) for x in numbers[:SHOWN_TOKENS]], "outputs": outputs}

    def says_tokens(self, kind: Classes, output: np.ndarray) -> bool:
        """Whether the classes of an output are the tokens."""
        return bool(self.rows == output.shape[kind.axis])

    def _count(self, feeds: Feeds, length: int) -> int:
        """How many tokens there are before padding, which stands behind them or not at all."""
        mask = feeds.get(self.mask) if self.mask is not None else None
        if mask is None or mask.shape != (1, length) or not np.array_equal(np.sort(mask[0])[::-1], mask[0]):
            return length
        return int(np.count_nonzero(mask))

    def _answers(self, kinds: Kinds, numbers: np.ndarray, real: Feeds, packed: Feeds) -> Iterator[dict[str, Any]]:
        for name, kind in kinds.items():
            if not isinstance(kind, Classes):
                continue
            both = [np.moveaxis(outputs[name], kind.axis, -1) for outputs in (real, packed)]
            if both[0].ndim != 3 or both[0].shape[0] != 1 or both[0].shape[1] < len(numbers):
                continue
            float_ones, compiled = (values[0, : len(numbers)].argmax(-1) for values in both)
            word = self.words if self.says_tokens(kind, real[name]) else lambda label: f"class {label}"
            places = np.flatnonzero(float_ones != compiled)
            changed = [[int(x), word(int(float_ones[x])), word(int(compiled[x]))] for x in places[:SHOWN_CHANGES]]
            yield {"output": name, "of": len(numbers), "differing": len(places), "changed": changed}


def _number(token: int) -> str:
    return f" {token}"


def _pieces(tokenizer: Path) -> Words:
    known = read_tokenizer(tokenizer)
    # Tokenizers that say nothing of spaces have one in front of every piece that does not go on with a word.
    is_spaced = any(piece[:1] in SPACES for piece in known.get_vocab())

    def words(number: int) -> str:
        piece = known.id_to_token(number)
        if piece is None:
            return _number(number)
        if not is_spaced:
            return piece.removeprefix(GOES_ON) if piece.startswith(GOES_ON) else f" {piece}"
        for written, read in READ_AS.items():
            piece = piece.replace(written, read)
        return str(piece)

    return words


# What a detector finds in a picture, by the float model and by the compiled one.
#
# No file says how a model writes its boxes down: as corners or as centre and size, in pixels or in shares of the
# picture, or relative to the cell of a grid. Where the user does not say it either, the boxes themselves have to:
# detectors find an object at several neighbouring places, whose boxes agree only when they are read as they were
# meant. So the way is taken, of those that give boxes inside the picture, in which the sure boxes of one class
# overlap about as much as in any. Of what overlaps, the surest is shown (non-maximum suppression).

SURE = 0.3  # how likely an object is to be shown
SAME = 0.5  # intersection over union from which on two boxes are of one object
MOST_PLACES, SHOWN_OBJECTS = 200, 12
# Of the best overlap, what an earlier way needs: right and bottom corners, read as sizes, make boxes larger, and those
# overlap more.
NEARLY = 0.8
NEAR = 2
INSIDE = 0.9  # share of the boxes that have to be possible


@dataclass(frozen=True)
class DetectorPlaces:
    """The sure places of one picture. boxes (n, 4): as the model writes them. cells (n, 3): column, row, stride."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    cells: np.ndarray | None


@dataclass(frozen=True)
class ScoredBox:
    """box: left, top, right and bottom as shares of the picture. matched: whether the other model finds it, too."""

    label: int
    score: float
    box: tuple[float, float, float, float]
    matched: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document for the report."""
        box = [round(side, 4) for side in self.box]
        return {"label": self.label, "score": round(self.score, 4), "box": box, "matched": self.matched}


@dataclass(frozen=True)
class BoxReading:
    """A way to read boxes. shares: whether they are shares of the picture."""

    name: str
    form: BoxForm
    shares: bool = False

    @property
    def on_grid(self) -> bool:
        """Whether it needs the cells of a grid."""
        return self.form.beside == "cells"

    def corners(self, places: DetectorPlaces, size: Size) -> np.ndarray:
        """Those of places, (n, 4) in pixels; size: width and height of the picture."""
        beside = places.boxes if places.cells is None else places.cells
        corners = self.form.corners(places.boxes, beside)
        return corners * sides(size) if self.shares else corners


READINGS = (
    BoxReading("corners in pixels", FORMS["xyxy"]),
    BoxReading("centre and size in pixels", FORMS["cxcywh"]),
    BoxReading("corners as fractions of the image", FORMS["xyxy"], shares=True),
    BoxReading("centre and size as fractions of the image", FORMS["cxcywh"], shares=True),
    BoxReading("offset and logarithm of the size in cells", FORMS["cells"]),
    BoxReading("distances from the middle of a cell", FORMS["distances"]),
)


def places_of(kinds: Kinds, outputs: Feeds, size: Size) -> DetectorPlaces | None:
    """The sure places of one picture of `size` (width, height); None where no output is one of boxes."""
    result = next(_boxes_and_scores(kinds, outputs), None)
    if result is None:
        return None
    boxes, scores = result
    if boxes.shape[1] != SIDES or len(boxes) != len(scores):
        return None
    best = scores.max(1)
    chosen = np.argsort(-best, kind="stable")[:MOST_PLACES]
    chosen = chosen[best[chosen] > SURE]
    cells = grid(len(boxes), size)
    return DetectorPlaces(
        boxes[chosen], scores[chosen].argmax(1), best[chosen], None if cells is None else cells[chosen]
    )


def _boxes_and_scores(kinds: Kinds, outputs: Feeds) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for name, kind in kinds.items():
        if isinstance(kind, Boxes) and kind.head is not None:
            yield kind.read(name, outputs)[:, :-1], kind.head.scores(outputs[kind.scores])
        elif isinstance(kind, Detection):
            anchors = rows(outputs[name], kind.axis)
            first = min(group.start for group in kind.groups if not group.scores)
            yield anchors[:, first : first + SIDES], kind.scores(anchors)


def reading_of(pictures: Sequence[DetectorPlaces], size: Size) -> BoxReading | None:
    """How boxes are written, as those of some pictures show; None where no way gives boxes inside the picture."""
    result = [places for places in pictures if len(places.boxes)]
    agreements = dict[BoxReading, float]()
    for reading in READINGS:
        if result and all(_is_possible(reading, places, size) for places in result):
            agreements[reading] = float(np.mean([_agreement(reading.corners(p, size), p.labels) for p in result]))
    enough = NEARLY * max(agreements.values(), default=0)
    return next((reading for reading, agreement in agreements.items() if agreement >= enough), None)


def _is_possible(reading: BoxReading, places: DetectorPlaces, size: Size) -> bool:
    """Whether nearly all boxes have a size of at least a pixel, no more than the picture's, and lie in it.

    On a grid they also have to be no farther from their cell than NEAR of its strides.
    """
    if reading.on_grid and places.cells is None:
        return False
    corners = reading.corners(places, size)
    least, most, middle = corners[:, :2], corners[:, 2:], (corners[:, :2] + corners[:, 2:]) / 2
    extent, whole = most - least, np.array(size)
    possible = (extent >= 1) & (extent <= 1.5 * whole) & (middle >= 0) & (middle <= whole)
    if places.cells is not None:
        cells = (places.cells[:, :2] + 0.5) * places.cells[:, 2:]
        possible &= np.abs(middle - cells) <= extent / 2 + NEAR * places.cells[:, 2:]
    return bool(possible.all(1).mean() >= INSIDE)


def _agreement(corners: np.ndarray, labels: np.ndarray) -> float:
    """The mean of how far each box overlaps the one of its class that it overlaps most."""
    overlaps = overlap(corners, corners) * (labels[:, None] == labels)
    np.fill_diagonal(overlaps, 0)
    return float(overlaps.max(1).mean())


def objects_of(places: DetectorPlaces, reading: BoxReading, size: Size) -> list[ScoredBox]:
    """The surest of what overlaps, at most SHOWN."""
    corners = reading.corners(places, size)
    best = without_overlaps(corners, places.labels, SAME, SHOWN_OBJECTS)
    return _shown(corners[best], places.labels[best], places.scores[best], size)


def stated_objects(detector: Detector, outputs: Mapping[str, Any], size: Size) -> list[ScoredBox]:
    """The surest of what outputs of one picture say, at most SHOWN, in the way that the user states.

    Raises UsageError where the outputs are not as was stated.
    """
    result = detector.decode(outputs, size)
    sure = np.flatnonzero(result.scores > SURE)[:SHOWN_OBJECTS]
    return _shown(result.boxes[sure], result.labels[sure], result.scores[sure], size)


def _shown(corners: np.ndarray, labels: np.ndarray, scores: np.ndarray, size: Size) -> list[ScoredBox]:
    shares = np.clip(corners / sides(size), 0, 1)
    return [
        ScoredBox(int(label), float(score), (*map(float, box),))  # type: ignore[arg-type]
        for label, score, box in zip(labels, scores, shares, strict=True)
    ]


def compared(float_ones: Sequence[ScoredBox], compiled: Sequence[ScoredBox]) -> Mapping[str, list[dict[str, Any]]]:
    """Both, each with whether the other has an object of its class at its place."""

    def documents(boxes: Sequence[ScoredBox], references: Sequence[ScoredBox]) -> list[dict[str, Any]]:
        return [replace(box, matched=any(_are_one(box, one) for one in references)).to_json() for box in boxes]

    return {"float": documents(float_ones, compiled), "compiled": documents(compiled, float_ones)}


def _are_one(one: ScoredBox, other: ScoredBox) -> bool:
    return one.label == other.label and bool(overlap(np.array([one.box]), np.array([other.box]))[0, 0] >= SAME)


SHOWN, SHOWN_DIFFERING = 4, 12
# The longer side of a picture, in pixels, where boxes are drawn on it or not, and the quality of its JPEG: a few
# kilobytes each.
SIDE, SIDE_WITH_BOXES, QUALITY = 160, 360, 80


@dataclass(frozen=True)
class _Ran:
    """One sample, and what both models give for it."""

    place: int
    feeds: Feeds
    real: Feeds
    packed: Feeds


def most_changed(
    model: ir.Model,
    file: onnx.ModelProto,
    held_back: Samples,
    kinds: Kinds,
    judged: Judged,
    tokenizer: Path | None = None,
    detector: Detector | None = None,
) -> dict[str, Any]:
    """The document: samples whose answer changed, then others, by falling loss, with what a person would look at.

    These are pictures of images with what a detector finds in them, the tokens of texts, and what each output of
    classes said. tokenizer: of the texts, where it is known. detector: how boxes are written, where the user states it.
    Samples on which nothing changed are left out.
    """
    order = sorted(range(judged.samples), key=lambda place: (not judged.differing[place], -judged.by_sample[place]))
    differing = sum(judged.differing)
    places = [place for place in order[: max(SHOWN, min(differing, SHOWN_DIFFERING))] if judged.by_sample[place] > 0]
    if not places:
        return {"samples": []}
    runners, inputs = (Runner(model), open_packed(file, model)), input_specs(model)
    ran = [
        _Ran(place, held_back[place], *(tensors_of(runner.run(held_back[place])) for runner in runners))
        for place in places
    ]
    pictured, texts = [spec for spec in inputs if is_image(spec)], TokenInput.of(inputs, tokenizer)
    result = _detected(kinds, ran, pictured[0], detector or Detector()) if len(pictured) == 1 else [None] * len(ran)
    samples = []
    for one, objects in zip(ran, result, strict=True):
        side = SIDE_WITH_BOXES if objects else SIDE
        pictures = {spec.name: picture for spec in pictured if (picture := _picture(spec, one.feeds, side)) is not None}
        tokens = texts.changes(kinds, one.feeds, one.real, one.packed) if texts is not None else None
        samples.append(
            {
                "sample": held_back.names[one.place],
                "loss": judged.by_sample[one.place],
                "pictures": pictures,
                "outputs": list(_answers(kinds, one, texts)),
                **({"objects": objects} if objects and pictures else {}),
                **({"text": tokens} if tokens is not None else {}),
            }
        )
    return {"unit": judged.loss_unit, "of": judged.samples, "differing": differing, "samples": samples}


def _detected(kinds: Kinds, ran: Sequence[_Ran], spec: InputSpec, detector: Detector) -> list[dict[str, Any] | None]:
    """What both find in the picture of each sample; None where the model is no detector, or its boxes are not read."""
    shape, *further_shapes = {one.feeds[spec.name].shape for one in ran}
    if further_shapes or shape[0] != 1:
        return [None] * len(ran)
    height, width = (shape[axis] for axis in spatial_axes(spec))
    size = (width, height)
    if detector.knows(ran[0].real):
        try:
            result = [[stated_objects(detector, outputs, size) for outputs in (one.real, one.packed)] for one in ran]
        except UsageError:  # the first sample was as stated: for a picture in the report, no compile is thrown away
            return [None] * len(ran)
        return [_compared(spec, detector.box_description, size, real, packed) for real, packed in result]
    pairs = [(places_of(kinds, one.real, size), places_of(kinds, one.packed, size)) for one in ran]
    reading = reading_of([real for real, _ in pairs if real is not None], size)
    return [
        None
        if reading is None or real is None or packed is None
        else _compared(spec, reading.name, size, objects_of(real, reading, size), objects_of(packed, reading, size))
        for real, packed in pairs
    ]


def _compared(
    spec: InputSpec, read: str, size: Size, real: Sequence[ScoredBox], packed: Sequence[ScoredBox]
) -> dict[str, Any]:
    return {"input": spec.name, "read": read, "size": size, **compared(real, packed)}


def _answers(kinds: Kinds, one: _Ran, texts: TokenInput | None) -> Iterator[dict[str, Any]]:
    """What each output of classes said at its worst place. words: of classes that are tokens."""
    for name, kind in kinds.items():
        answers = kind.answers(*comparable(kind, kind.read(name, one.real), kind.read(name, one.packed)))
        if answers is None:
            continue
        words = dict[str, str]()
        if texts is not None and isinstance(kind, Classes) and texts.says_tokens(kind, one.real[name]):
            words = {str(label): texts.words(label) for label, _ in (*answers.real, *answers.compiled)}
        yield {"output": name, **answers.to_json(), **({"words": words} if words else {})}


def _picture(spec: InputSpec, feeds: Feeds, side: int) -> str | None:
    """The first image of a sample as the URL of a JPEG; None where it has no pixels or numbers that are none.

    side: its longer one in pixels. From black at its least value to white at its largest, since what was done to the
    pixels before is not known.
    """
    height, width = spatial_axes(spec)
    array = np.moveaxis(feeds[spec.name], [height, width], [1, 2])
    if not array.size or not np.isfinite(array).all():
        return None
    pixels = array[0].astype(np.float64)
    low, high = pixels.min(), pixels.max()
    grey = np.rint((pixels - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    image = Image.fromarray(grey[..., 0] if grey.shape[-1] == 1 else grey)
    image.thumbnail((side, side))
    image = ImageOps.scale(image, max(1, side // max(image.size)), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
