"""The held-back samples whose outputs moved most, as a person would look at them."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from PIL import Image, ImageOps

from ptqc.calibration.inputs import InputSpec, input_specs
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import is_image, spatial_axes
from ptqc.execute.onnxruntime import Feeds, Runner, open_packed, tensors_of
from ptqc.losses import Kinds
from ptqc.stages.judge import Judged

SHOWN = 4
# The longer side of a picture, in pixels, and the quality of its JPEG: a few kilobytes each.
SIDE, QUALITY = 160, 80


def most_changed(
    model: ir.Model, file: onnx.ModelProto, held_back: Samples, kinds: Kinds, judged: Judged
) -> dict[str, Any]:
    """The document: samples by falling loss, with pictures of their images and what each output of classes said.

    Samples on which nothing changed are left out.
    """
    order = sorted(range(judged.samples), key=lambda place: -judged.by_sample[place])[:SHOWN]
    places = [place for place in order if judged.by_sample[place] > 0]
    if not places:
        return {"samples": []}
    real, packed = Runner(model), open_packed(file, model)
    pictured, found = [spec for spec in input_specs(model) if is_image(spec)], []
    for place in places:
        feeds = held_back[place]
        outputs = tensors_of(real.run(feeds)), tensors_of(packed.run(feeds))
        found.append(
            {
                "sample": held_back.names[place],
                "loss": judged.by_sample[place],
                "pictures": {spec.name: picture for spec in pictured if (picture := _picture(spec, feeds)) is not None},
                "outputs": list(_answers(kinds, *outputs)),
            }
        )
    return {"unit": judged.loss_unit, "of": judged.samples, "samples": found}


def _answers(kinds: Kinds, real: Feeds, packed: Feeds) -> Iterator[dict[str, Any]]:
    for name, kind in kinds.items():
        answers = kind.answers(kind.read(name, real), kind.read(name, packed))
        if answers is not None:
            yield {"output": name, **answers.to_json()}


def _picture(spec: InputSpec, feeds: Feeds) -> str | None:
    """The first image of a sample as the URL of a JPEG; None where it has no pixels or numbers that are none.

    From black at its least value to white at its largest, since what was done to the pixels before is not known.
    """
    height, width = spatial_axes(spec)
    array = np.moveaxis(feeds[spec.name], [height, width], [1, 2])
    if not array.size or not np.isfinite(array).all():
        return None
    pixels = array[0].astype(np.float64)
    low, high = pixels.min(), pixels.max()
    grey = np.rint((pixels - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    image = Image.fromarray(grey[..., 0] if grey.shape[-1] == 1 else grey)
    image.thumbnail((SIDE, SIDE))
    image = ImageOps.scale(image, max(1, SIDE // max(image.size)), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
