"""The held-back samples whose outputs moved most, as a person would look at them."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from PIL import Image, ImageOps

from ptqc.calibration.inputs import InputSpec, input_specs
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import is_image, spatial_axes
from ptqc.errors import UsageError
from ptqc.evaluation.changed_objects import FoundObject, compared, objects_of, places_of, reading_of, stated_objects
from ptqc.evaluation.changed_tokens import TokenInput
from ptqc.evaluation.detection.boxes import Size
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.judge import Judged
from ptqc.execution.onnxruntime import Feeds, Runner, open_packed, tensors_of
from ptqc.losses import Kinds, comparable
from ptqc.losses.classes import Classes

SHOWN = 4
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
    """The document: samples by falling loss, with what a person would look at.

    These are pictures of images with what a detector finds in them, the tokens of texts, and what each output of
    classes said. tokenizer: of the texts, where it is known. detector: how boxes are written, where the user states it.
    Samples on which nothing changed are left out.
    """
    order = sorted(range(judged.samples), key=lambda place: -judged.by_sample[place])[:SHOWN]
    places = [place for place in order if judged.by_sample[place] > 0]
    if not places:
        return {"samples": []}
    runners, inputs = (Runner(model), open_packed(file, model)), input_specs(model)
    ran = [
        _Ran(place, held_back[place], *(tensors_of(runner.run(held_back[place])) for runner in runners))
        for place in places
    ]
    pictured, texts = [spec for spec in inputs if is_image(spec)], TokenInput.of(inputs, tokenizer)
    found = _found(kinds, ran, pictured[0], detector or Detector()) if len(pictured) == 1 else [None] * len(ran)
    samples = []
    for one, objects in zip(ran, found, strict=True):
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
    return {"unit": judged.loss_unit, "of": judged.samples, "samples": samples}


def _found(kinds: Kinds, ran: Sequence[_Ran], spec: InputSpec, detector: Detector) -> list[dict[str, Any] | None]:
    """What both find in the picture of each sample; None where the model is no detector, or its boxes are not read."""
    shape, *others = {one.feeds[spec.name].shape for one in ran}
    if others or shape[0] != 1:
        return [None] * len(ran)
    height, width = (shape[axis] for axis in spatial_axes(spec))
    size = (width, height)
    if detector.knows(ran[0].real):
        try:
            told = [[stated_objects(detector, outputs, size) for outputs in (one.real, one.packed)] for one in ran]
        except UsageError:  # the first sample was as stated: for a picture in the report, no compile is thrown away
            return [None] * len(ran)
        return [_compared(spec, detector.told, size, real, packed) for real, packed in told]
    pairs = [(places_of(kinds, one.real, size), places_of(kinds, one.packed, size)) for one in ran]
    reading = reading_of([real for real, _ in pairs if real is not None], size)
    return [
        None
        if reading is None or real is None or packed is None
        else _compared(spec, reading.name, size, objects_of(real, reading, size), objects_of(packed, reading, size))
        for real, packed in pairs
    ]


def _compared(
    spec: InputSpec, read: str, size: Size, real: Sequence[FoundObject], packed: Sequence[FoundObject]
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
