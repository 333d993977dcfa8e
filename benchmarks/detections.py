"""How many of a detector's detections a compiled file keeps, for three layouts of the detector's head.

python benchmarks/detections.py --photographs FOLDER [--layouts first,last,maps] [--budget 25%] [--count 200]
                                [--from 0] [--seed 0] [--artifacts DIR] [--out results.json]

The network is yolox_nano_416 of the shared data (`benchmarks/tasks.py`), calibrated with its own photographs and cut
where exporters cut such heads: anchors before channels, channels before anchors, or a map for each of three strides.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
from harness import RESULTS, Column, in_child, number, percent
from PIL import Image
from tasks import chosen

from ptqc.evaluation.detection.boxes import overlap

TASK = "yolox_nano_416"
SIZE, FILL = 416, 114
STRIDES = (8, 16, 32)
BOX, OBJECTNESS = 4, 5  # channels before: the box, and the objectness behind it
THRESHOLDS = (0.25, 0.3, 0.5)
SAME_PLACE = 0.5  # intersection over union of a detection that is kept
OVERLAP = 0.65  # of which suppression leaves one
COLUMNS = (
    Column("layout", "layout"),
    Column("bytes", "bytes", number(0)),
    Column("class scores dB", "class_decibels", number(1)),
    *(Column(f"kept over {limit}", f"kept_{limit}", percent(1)) for limit in THRESHOLDS),
    *(Column(f"of, over {limit}", f"detections_{limit}", number(0)) for limit in THRESHOLDS),
    Column("seconds", "seconds", number(0)),
    Column("note", "note"),
)


@dataclass(frozen=True)
class Layout:
    """What the model gives, and how that becomes (anchors, channels)."""

    outputs: Callable[[onnx.GraphProto], list[str]]
    anchors: Callable[[Sequence[np.ndarray]], np.ndarray]


def _producer(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    return next(node for node in graph.node if name in node.output)


def _joined(graph: onnx.GraphProto) -> str:
    """The input of the transposition at the end."""
    return str(_producer(graph, graph.output[0].name).input[0])


def _maps(graph: onnx.GraphProto) -> list[str]:
    """What is reshaped, and then joined along the anchors."""
    return [str(_producer(graph, flat).input[0]) for flat in _producer(graph, _joined(graph)).input]


LAYOUTS: Mapping[str, Layout] = {
    "first": Layout(lambda graph: [graph.output[0].name], lambda outputs: outputs[0][0]),
    "last": Layout(lambda graph: [_joined(graph)], lambda outputs: outputs[0][0].T),
    "maps": Layout(_maps, lambda outputs: np.concatenate([x[0].reshape(x.shape[1], -1) for x in outputs], 1).T),
}


def cut(source: Path, layout: str, target: Path) -> None:
    """Write the model with the outputs of a layout."""
    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    known = {value.name: value for value in [*model.graph.value_info, *model.graph.output]}
    outputs = [known[name] for name in LAYOUTS[layout].outputs(model.graph)]
    onnx.save(onnx.utils.Extractor(model).extract_model(["images"], [value.name for value in outputs]), target)


def letterboxed(path: Path) -> np.ndarray:
    """(1, 3, size, size) in the order blue, green, red, 0 to 255: the task's preprocessing."""
    image = Image.open(path).convert("RGB")
    scale = min(SIZE / image.width, SIZE / image.height)
    width, height = round(image.width * scale), round(image.height * scale)
    boxed = np.full((SIZE, SIZE, 3), FILL, np.float32)
    boxed[:height, :width] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(boxed[:, :, ::-1].transpose(2, 0, 1)[None])


@dataclass(frozen=True)
class Detections:
    """boxes: corners, (n, 4); scores falling; classes."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


def detections(anchors: np.ndarray, threshold: float) -> Detections:
    """What an image shows over a score: class times objectness, of boxes that overlap the best one."""
    scores = anchors[:, OBJECTNESS:] * anchors[:, BOX:OBJECTNESS]
    place, classes = np.nonzero(scores > threshold)
    order = np.argsort(-scores[place, classes], kind="stable")
    place, classes = place[order], classes[order]
    boxes, remaining = _corners(anchors[:, :BOX])[place], list[int]()
    overlaps = overlap(boxes, boxes)
    for i in range(len(place)):
        if not any(classes[i] == classes[j] and overlaps[i, j] > OVERLAP for j in remaining):
            remaining.append(i)
    return Detections(boxes[remaining], scores[place, classes][remaining], classes[remaining])


def _corners(raw: np.ndarray) -> np.ndarray:
    """Corners in pixels of every anchor's box."""
    cells, strides = [], []
    for stride in STRIDES:
        rows, columns = np.mgrid[: SIZE // stride, : SIZE // stride].reshape(2, -1)
        cells.append(np.stack([columns, rows], 1))
        strides.append(np.full((columns.size, 1), stride))
    scale = np.concatenate(strides)
    middle, half = (raw[:, :2] + np.concatenate(cells)) * scale, np.exp(raw[:, 2:]) * scale / 2
    return np.concatenate([middle - half, middle + half], 1)


def matches(real: Detections, tested: Detections) -> int:
    """How many have one of the same class at the same place; one that is found counts once."""
    same = (real.classes[:, None] == tested.classes[None]) & (overlap(real.boxes, tested.boxes) >= SAME_PLACE)
    count = 0
    for row in same:
        if row.any():
            same[:, row.argmax()] = False
            count += 1
    return count


@dataclass
class Comparison:
    """Sums over photographs."""

    signal: float = 0.0
    error: float = 0.0
    total: dict[float, int] = field(default_factory=lambda: dict.fromkeys(THRESHOLDS, 0))
    matched: dict[float, int] = field(default_factory=lambda: dict.fromkeys(THRESHOLDS, 0))

    def add(self, real: np.ndarray, tested: np.ndarray) -> None:
        """One photograph: the anchors of the float and of the compiled model."""
        self.signal += float(np.square(real[:, OBJECTNESS:], dtype=np.float64).sum())
        self.error += float(np.square((real - tested)[:, OBJECTNESS:], dtype=np.float64).sum())
        for limit in THRESHOLDS:
            wanted = detections(real, limit)
            self.total[limit] += len(wanted.scores)
            self.matched[limit] += matches(wanted, detections(tested, limit))

    def to_json(self) -> dict[str, float]:
        """The figures of a row."""
        counts = {f"detections_{limit}": float(count) for limit, count in self.total.items()}
        shares = {f"kept_{limit}": self.matched[limit] / max(count, 1) for limit, count in self.total.items()}
        return {"class_decibels": 10 * float(np.log10(self.signal / self.error)), **counts, **shares}


def build(model: str, folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile a layout; runs in a child."""
    from ptqc.api import compile as compile_model

    options = {"output": folder, "budget": arguments.budget, "seed": arguments.seed, "cache": arguments.cache}
    artifact = compile_model(model, calibration=chosen(TASK)[0].calibration(256), force=True, **options)
    return {"bytes": artifact.path.stat().st_size}


def compare(layout: str, model: str, compiled: str, photographs: Sequence[Path]) -> dict[str, float]:
    """The compiled file against the float model; runs in a child."""
    anchors, comparison = LAYOUTS[layout].anchors, Comparison()
    real, tested = harness.open_model(model), harness.open_model(compiled)
    for path in photographs:
        feeds = {"images": letterboxed(path)}
        comparison.add(anchors(real(feeds)), anchors(tested(feeds)))
    return comparison.to_json()


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each layout."""
    photographs = sorted(arguments.photographs.iterdir())[arguments.start :][: arguments.count]
    for layout in arguments.layouts.split(","):
        harness.say(layout)
        folder = arguments.artifacts / f"{TASK}-{layout}-{harness.slug(arguments.budget)}"
        model = folder.with_suffix(".onnx")
        cut(chosen(TASK)[0].path, layout, model)
        built = in_child(build, str(model), str(folder), arguments)
        row = {"layout": layout, "seconds": built.seconds, "note": built.error, **(built.value or {})}
        if built.value:
            outcome = in_child(compare, layout, str(model), f"{folder}/model.onnx", photographs)
            row |= outcome.value or {"note": outcome.error}
        yield row


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--photographs", type=Path, required=True, help="a folder of images that no step saw")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the first of them that is used, by name")
    parser.add_argument("--count", type=int, default=200, help="how many are used")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="comma-separated; default: all")
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--seed", type=int, default=0, help="of the compile's draws")
    parser.add_argument("--artifacts", type=Path, default=RESULTS, help="where the compiled models are put")
    parser.add_argument("--cache", type=Path, help="a store of measurements to reuse; default: an empty one")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as empty:
        arguments.cache = str(arguments.cache or empty)
        for row in measure(arguments):
            rows.append(row)
            harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
