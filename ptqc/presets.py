"""Settings that many models share, by name: how images are prepared, and how detectors write their boxes.

Of a preset, any field can be given otherwise. `Preprocessing.of` and `Detector.of` take a name wherever they take an
object; `ptqc help preprocessing` and `ptqc help detectors` print these tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ptqc.utils.arguments import unknown

PreprocessingName = Literal["imagenet", "keras", "caffe", "tf", "yolo", "yolox"]
DetectorName = Literal["yolov5", "yolov8", "yolox", "ssd", "detr", "tensorflow", "torchvision"]


@dataclass(frozen=True)
class Preset:
    """models: which ones it is for. fields: what it sets. needs: an option that has to be given beside it."""

    name: str
    models: str
    fields: Mapping[str, Any]
    needs: str = ""


def _by_name(*presets: Preset) -> Mapping[str, Preset]:
    return {preset.name: preset for preset in presets}


PREPROCESSING = _by_name(
    Preset(
        "imagenet",
        "torchvision, and most of timm",
        {"resize": 256, "crop": 224, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    ),
    Preset(
        "keras",
        "MobileNet, Inception, Xception and others of Keras: values from -1 to 1",
        {"scale": 127.5, "mean": 1.0},
    ),
    Preset(
        "caffe",
        "Caffe, and VGG and ResNet of Keras: BGR without the mean colour",
        {"scale": 1.0, "channel_order": "BGR", "mean": (103.939, 116.779, 123.68)},
    ),
    Preset("tf", "TensorFlow and TF Hub: values from -1 to 1", {"scale": 127.5, "mean": 1.0}),
    Preset("yolo", "YOLOv5, YOLOv8 and later: the whole image, centred", {"fit": "letterbox"}),
    Preset(
        "yolox",
        "YOLOX: the whole image at the top left, BGR, 0 to 255",
        {"fit": "letterbox-corner", "scale": 1.0, "channel_order": "BGR"},
    ),
)

DETECTORS = _by_name(
    Preset(
        "yolov5",
        "YOLOv5: one output",
        {"boxes": "cxcywh", "box_unit": "pixels", "columns": ("box", "objectness", "classes")},
    ),
    Preset(
        "yolov8",
        "YOLOv8 and later: one output (1, 4 + classes, n)",
        {"boxes": "cxcywh", "box_unit": "pixels", "columns": ("box", "classes")},
    ),
    Preset(
        "yolox",
        "YOLOX: one output, boxes relative to a grid",
        {"boxes": "cells", "columns": ("box", "objectness", "classes")},
    ),
    Preset(
        "ssd",
        "SSD: class scores, and offsets from anchors",
        {"boxes": "offsets", "box_unit": "shares", "scores": "softmax", "classes": "from-1"},
        needs="anchors",
    ),
    Preset(
        "detr",
        "DETR: logits, and boxes as fractions of the image",
        {"boxes": "cxcywh", "box_unit": "shares", "scores": "softmax", "overlap": 1.0},
    ),
    Preset("tensorflow", "TensorFlow's Object Detection API (detection_boxes, …)", {"classes": "from-1"}),
    Preset(
        "torchvision",
        "torchvision's detectors (boxes, labels, scores)",
        {"boxes": "xyxy", "box_unit": "pixels", "classes": "from-1"},
    ),
)


def preset(what: str, name: str, known: Mapping[str, Preset], otherwise: str = "") -> Preset:
    """The preset of this name. otherwise: what could be given in place of a name, for the error.

    Raises UsageError for an unknown name.
    """
    if name not in known:
        error = unknown(f"{what} preset", [name], known)
        raise type(error)(f"{error}{otherwise}")
    return known[name]
