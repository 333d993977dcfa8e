"""What a detector's outputs say that it finds in a picture, however they say it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Union, get_args

import numpy as np

from ptqc.errors import UsageError
from ptqc.evaluation.detection.boxes import (
    FORMS,
    SIDES,
    VARIANCES,
    BoxForm,
    BoxFormName,
    Size,
    grid,
    sides,
    without_overlaps,
)
from ptqc.evaluation.detection.rows import BOX, CLASSES, LEAST_SCORE, ONCE, ROWS, DetectorRows
from ptqc.presets import DETECTORS, DetectorName, preset
from ptqc.utils.arguments import of_kind, one_of, unknown

AnyDetector = Union["Detector", DetectorName]
BoxUnit = Literal["pixels", "shares"]
Activation = Literal["none", "sigmoid", "softmax"]
ClassNumbers = Literal["from-0", "from-1", "ids"]
Role = Literal["all", "boxes", "scores", "classes", "count", "selected"]
CHOICES = {
    "boxes": get_args(BoxFormName),
    "box_unit": get_args(BoxUnit),
    "scores": get_args(Activation),
    "classes": get_args(ClassNumbers),
    "outputs": get_args(Role),
}
# The only boxes whose form is known by their name: those of TensorFlow's Object Detection API.
TENSORFLOW, TENSORFLOW_FORM = "detection_boxes", FORMS["yxyx"]
# Of a detector that leaves the choice to others: how many pairs of place and class are looked at and kept, as
# COCO's own evaluations do.
MOST_PAIRS, MOST_FOUND = 30_000, 300
ROUNDING = 1e-3
LARGEST = 500.0  # what a sigmoid is taken of


@dataclass(frozen=True)
class Detections:
    """boxes (n, 4): corners in pixels of the model's input. scores (n,): falling. labels (n,): as in labelled data."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Detector:
    """How a detector writes its boxes, scores and classes.

    Args:
        boxes: "xyxy" (left, top, right, bottom), "yxyx", "cxcywh" (centre,
            width, height) or "xywh" (left, top, width, height); "cells" and
            "distances", relative to the cells of a grid, as in YOLOX and FCOS;
            "offsets" and "offsets-yx", relative to `anchors`, as in SSD. None:
            recognized from the output names of TensorFlow's Object Detection
            API.
        box_unit: Whether coordinates are "pixels" of the input or "shares" of
            its size (0 to 1).
        columns: For a model with one output, the meaning of its columns:
            "box,classes", "box,objectness,classes", "box,score,class",
            "image,box,class,score" and the like, as a tuple.
        scores: What turns scores into probabilities: "none", "sigmoid" or
            "softmax".
        classes: The model's number of what labels call class 0: "from-0",
            "from-1" if 0 is the background, or "ids" for the category ids of
            a COCO file.
        anchors: An .npy file of shape (n, 4): centre x, centre y, width and
            height of each anchor.
        variances: Four factors that offsets are multiplied by.
        overlap: Intersection over union above which the less certain of two
            boxes of one class is dropped, 0 to 1; models that do this
            themselves are left alone.
        outputs: Names of outputs by role ("all", "boxes", "scores", "classes",
            "count", "selected" for the result of NonMaxSuppression), if the
            names themselves do not say it.

    Raises:
        UsageError: A value is none of these.

    Example:
        >>> ptqc.Detector(boxes="cxcywh", columns=("box", "classes"))
    """

    boxes: BoxFormName | None = None
    box_unit: BoxUnit | None = None
    columns: tuple[str, ...] = ()
    scores: Activation = "none"
    classes: ClassNumbers = "from-0"
    anchors: str | None = None
    variances: tuple[float, ...] = VARIANCES
    overlap: float = 0.65
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("boxes", "box_unit", "scores", "classes"):
            if name in ("scores", "classes") or getattr(self, name) is not None:
                one_of(name, getattr(self, name), CHOICES[name])
        if wrong := set(self.outputs) - set(CHOICES["outputs"]):
            raise unknown("role of an output", wrong, CHOICES["outputs"])
        self._check_columns()
        if len(self.variances) != SIDES or not all(value > 0 for value in self.variances):
            raise UsageError(f"variances = {self.variances}, expected four positive numbers, such as 0.1,0.1,0.2,0.2")
        if not 0 < self.overlap <= 1:
            raise UsageError(f"overlap = {self.overlap}, expected a share above 0 and at most 1")
        if self.form is not None and (self.form.beside == "anchors") != (self.anchors is not None):
            need = "needs anchors: give an .npy" if self.anchors is None else "has no anchors: leave them out"
            raise UsageError(f"boxes of the form {self.boxes!r} {need}")
        if self.form is not None and self.form.beside == "cells" and self.box_unit == "shares":
            raise UsageError(f"boxes of the form {self.boxes!r} are in cells of a grid: leave out the unit of boxes")

    def _check_columns(self) -> None:
        known = (BOX, CLASSES, *ONCE)
        if wrong := set(self.columns) - set(known):
            raise unknown("column", wrong, known)
        result = self.columns
        judged = ("score" in result and "class" in result) != (CLASSES in result)
        if result and (BOX not in result or len(set(result)) < len(result) or not judged):
            raise UsageError(
                f"columns = {','.join(result)!r}, expected a box with its classes, or with a class and its score: such "
                f"as {' or '.join(ROWS)}"
            )

    @property
    def form(self) -> BoxForm | None:
        """That of the boxes, where it is given."""
        return None if self.boxes is None else FORMS[self.boxes]

    @property
    def box_description(self) -> str:
        """How boxes are written, for people."""
        return (self.form or TENSORFLOW_FORM).description

    def to_json(self) -> dict[str, Any]:
        """The fields, as an artifact keeps them."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Detector":
        """Inverse of `to_json`."""
        result: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
        }
        return cls(**result)

    @classmethod
    def of(cls, value: object) -> "Detector | None":
        """Take the name of a preset, a detector as it is, or None. Raises UsageError for anything else."""
        if isinstance(value, str):
            return cls(**preset("detector", value, DETECTORS).fields)
        return of_kind("detector", value, cls)

    @classmethod
    def parse(cls, options: Mapping[str, Any], base: "Detector | None" = None) -> "Detector":
        """Replace fields of `base` (default: all defaults) by texts of the command line.

        Such as "box,classes", "0.1,0.1,0.2,0.2", ["boxes=NAME"]; fields of a preset are taken as they are.
        """
        result = dict(options)
        if isinstance(columns := result.get("columns"), str):
            result["columns"] = tuple(part.strip() for part in columns.split(","))
        try:
            if "variances" in result:
                result["variances"] = tuple(map(float, result["variances"].split(",")))
            if "overlap" in result:
                result["overlap"] = float(result["overlap"])
        except ValueError as error:
            raise UsageError(f"variances and overlap are numbers: {error}") from error
        pairs = [text.partition("=") for text in result.get("outputs", ())]
        if plain := [role for role, equals, _ in pairs if not equals]:
            raise UsageError(f"--detector-outputs {plain[0]} names no output: write ROLE=NAME, such as boxes=output_1")
        if pairs:
            result["outputs"] = {role: name for role, _, name in pairs}
        return replace(base or cls(), **result)

    @cached_property
    def _anchors(self) -> np.ndarray:
        assert self.anchors is not None
        try:
            result = np.load(Path(self.anchors), allow_pickle=False)
        except OSError as error:
            raise UsageError(f"cannot read the anchors {self.anchors}: {error}") from error
        except Exception as error:  # NumPy raises many types for a file of another kind
            raise UsageError(f"the anchors {self.anchors} are not an .npy file of numbers") from error
        if not isinstance(result, np.ndarray) or result.ndim != 2 or result.shape[1] != SIDES:
            shape = getattr(result, "shape", None)
            raise UsageError(f"the anchors {self.anchors} have shape {shape}, expected (n, 4): centre, width, height")
        return result.astype(np.float64)

    def knows(self, names: Mapping[str, Any]) -> bool:
        """Whether the form of boxes is given, or known by the names of the outputs."""
        return self.boxes is not None or TENSORFLOW in names

    def decode(self, outputs: Mapping[str, Any], size: Size) -> Detections:
        """Decode the outputs of one sample. size: width and height of the model's input.

        Raises UsageError where they are not as was said, or do not show where boxes, scores and classes stand.
        """
        if not self.knows(outputs):
            forms = "; ".join(f"{form.name}: {form.description}" for form in FORMS.values())
            raise UsageError(
                f"nothing says how the model writes boxes: give --detector ({', '.join(DETECTORS)}), or --boxes "
                f"({forms})"
            )
        arrays = {name: np.asarray(array) for name, array in outputs.items() if not isinstance(array, list | dict)}
        rows = DetectorRows.of(self.columns, self.outputs, arrays)
        corners = self._corners(rows.boxes, size)
        said = rows.said(self._probabilities)
        offset = 1 if self.classes == "from-1" else 0
        place, label, score = said.places, said.labels - offset, said.scores
        counted = (label >= 0) & (score > LEAST_SCORE)
        place, label, score = place[counted], label[counted], score[counted]
        order = np.argsort(-score, kind="stable")[:MOST_PAIRS]
        place, label, score = place[order], label[order], score[order]
        if not rows.chosen:
            best = without_overlaps(corners[place], label, self.overlap, MOST_FOUND)
            place, label, score = place[best], label[best], score[best]
        return Detections(corners[place], score, label)

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Of (n, classes)."""
        scores = scores.astype(np.float64)
        if self.scores == "sigmoid":
            return np.asarray(1 / (1 + np.exp(-np.clip(scores, -LARGEST, LARGEST))))
        if self.scores == "softmax":
            raised = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            return np.asarray(raised / raised.sum(-1, keepdims=True))
        if scores.size and (scores.min() < -ROUNDING or scores.max() > 1 + ROUNDING):
            raise UsageError(
                f"scores are from {scores.min():.4g} to {scores.max():.4g}, so they are not probabilities yet: give "
                "--scores sigmoid or --scores softmax"
            )
        return scores

    def _corners(self, boxes: np.ndarray, size: Size) -> np.ndarray:
        """In pixels."""
        form, unit = self.form or TENSORFLOW_FORM, self.box_unit
        if form.beside == "cells":
            cells = grid(len(boxes), size)
            if cells is None:
                raise UsageError(f"{len(boxes)} boxes are those of no grid of strides 8, 16, 32 on {size[0]}x{size[1]}")
            return form.corners(boxes, cells)
        beside = boxes
        if form.beside == "anchors":
            beside = self._anchors
            if len(beside) != len(boxes):
                raise UsageError(f"there are {len(boxes)} boxes, and {len(beside)} anchors in {self.anchors}")
            order = [1, 0, 3, 2] if form.name == "offsets-yx" else [0, 1, 2, 3]
            boxes = boxes * np.array(self.variances)[order]
        if unit is None and self.boxes is None:
            unit = "shares"
        if unit is None:
            raise UsageError("nothing says in which unit boxes are: give --box-unit pixels, or shares (of the image)")
        corners = form.corners(boxes, beside)
        return corners * sides(size) if unit == "shares" else corners
