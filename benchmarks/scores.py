"""Scores of a part of a task's samples, and standard errors of their differences between two runs of the same samples.

A task scores all of its samples. Here single ones have their labels: images, windows of sound and frames those of what
they were taken from, sentences the judged similarity to another one. Standard errors are a jackknife's over images,
clips or pairs; for a mean, such as a share of right classes, that is the usual one.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from harness import Column, Feeds, number
from tasks import Task

Outputs = Sequence[Sequence[np.ndarray]]
# From samples and their outputs, scores of all of them and then without each image, clip or pair in turn.
Score = Callable[[Sequence[Feeds], Outputs], np.ndarray]

LABELS: Mapping[str, tuple[str, str]] = {
    "cifar10_resnet20": ("cifar10.npz", "eval_jpeg_y"),
    "cifar10_resnet56": ("cifar10.npz", "eval_jpeg_y"),
    "mlperftiny_ic_resnet8": ("cifar10.npz", "eval_lossless_y"),
    "mlperftiny_kws_dscnn": ("kws.npz", "eval_y"),
    "mlperftiny_vww_mbv1_025_96": ("vww.npz", "eval_y"),
}
TABLES: Mapping[str, str] = {
    "mobilenet_v1_075_224": "imagenet_eval_nips17.csv",
    "squeezenet1_1": "imagenet_eval_nips17.csv",
    "mobilenetv2_imagenette": "imagenette_eval.csv",
    "resnet50v2_c4_imagenette": "imagenette_eval.csv",
}
SPEECH_CLIPS = 240  # the last ones; those before calibrate


def places_of(task: Task, total: int, count: int) -> list[int]:
    """At most `count` samples of all that a task is scored on, evenly spread; of sentences, both of a pair."""
    if task.name in PAIRED:
        pairs = np.linspace(0, total // 2 - 1, min(count, total) // 2).astype(int)
        return [*pairs.tolist(), *(total // 2 + pairs).tolist()]
    return [*dict.fromkeys(np.linspace(0, total - 1, min(count, total)).astype(int).tolist())]


def score_of(task: Task, places: Sequence[int], total: int) -> Score | None:
    """What scores the samples at these places of a task; None where single samples have no score."""
    data, chosen = task.path.parent.parent / "data", np.asarray(places)
    if task.name in LABELS:
        file, key = LABELS[task.name]
        return partial(_accuracy, np.load(data / file)[key][chosen])
    if task.name in TABLES:
        return partial(_accuracy, np.array([int(row["label"]) for row in _rows(data / TABLES[task.name])])[chosen])
    return OTHERS[task.name](data, chosen, total) if task.name in OTHERS else None


SCORE = Column("score", "score", number(2))
ERROR = Column("± paired error", "score_difference_se", number(2))


def above(base: str) -> Column:
    """The column of the difference to the run that this calls so."""
    return Column(f"score − {base}", "score_difference", number(2, sign=True))


def compared(score: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """A score, how much it is above another one of the same samples, and the standard error of that."""
    apart, error = difference(score, base)
    return {"score": float(score[0]), "score_difference": apart, "score_difference_se": error}


def difference(score: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """How much one score is above another of the same samples, and the standard error of that."""
    each = score - base
    return float(each[0]), float(np.sqrt((len(each) - 2) * each[1:].var()))


def _without_each(score: Callable[[np.ndarray], float], groups: np.ndarray) -> np.ndarray:
    """Scores by what is chosen: all samples, and all but those of a group."""
    parts = (np.flatnonzero(groups != group) for group in np.unique(groups))
    return np.array([score(np.arange(len(groups))), *map(score, parts)])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def _accuracy(labels: np.ndarray, _feeds: Sequence[Feeds], outputs: Outputs) -> np.ndarray:
    hits = np.array([output[0].argmax() == label for output, label in zip(outputs, labels, strict=True)])
    return _without_each(lambda chosen: 100 * float(hits[chosen].mean()), np.arange(len(hits)))


def _area(labels: np.ndarray, clips: np.ndarray, values: Sequence[float]) -> np.ndarray:
    from sklearn.metrics import roc_auc_score

    array = np.array(values)
    return _without_each(lambda chosen: 100 * float(roc_auc_score(labels[chosen], array[chosen])), clips)


def _anomalies(data: Path, places: np.ndarray, total: int) -> Score:
    """Windows, told apart by the error of their reconstruction; a clip's windows lie one behind the other."""
    anomalous = np.load(data / "ad.npz")["eval_y"]
    clips = places // (total // len(anomalous))

    def score(feeds: Sequence[Feeds], outputs: Outputs) -> np.ndarray:
        errors = [output[0] - feed["input"] for feed, output in zip(feeds, outputs, strict=True)]
        return _area(anomalous[clips], clips, [float((error**2).mean()) for error in errors])

    return score


def _speech(data: Path, places: np.ndarray, _total: int) -> Score:
    """Frames behind the float model's state, told apart by probability; a frame of all clips comes before the next."""
    clips = places % SPEECH_CLIPS
    labels = np.load(data / "vad.npz")["speech"][-SPEECH_CLIPS:][clips]
    return lambda _feeds, outputs: _area(labels, clips, [float(output[0].item()) for output in outputs])


def _detections(data: Path, places: np.ndarray, _total: int) -> Score:
    """Photographs; suppression and average precision are the task's own."""
    images, labels = data / "coco_eval" / "images", data / "coco_eval" / "labels"
    every = sorted(path.name for path in images.iterdir())
    names = [every[place] for place in places]

    def score(_feeds: Sequence[Feeds], outputs: Outputs) -> np.ndarray:
        from PIL import Image

        coco, detections = import_module("coco_eval"), {}  # of the shared data, which the task has put on the path
        for name, output in zip(names, outputs, strict=True):
            detect = coco.yolox_infer(lambda _image, raw=output[0]: raw)
            detections[name] = detect(np.asarray(Image.open(images / name).convert("RGB")))

        def precision(chosen: np.ndarray) -> float:
            files = [names[place] for place in chosen]
            following = iter(files)
            detected = coco.evaluate(lambda _image: detections[next(following)], str(images), str(labels), files)
            return 100 * float(detected["AP"])

        return _without_each(precision, np.arange(len(names)))

    return score


def _similarities(data: Path, places: np.ndarray, _total: int) -> Score:
    """Pairs of sentences, the first of all pairs before the second."""
    with (data / "text" / "stsb-en-dev.csv").open(encoding="utf-8") as file:
        judged = np.array([float(row[2]) for row in csv.reader(file)])[places[: len(places) // 2]]

    def score(_feeds: Sequence[Feeds], outputs: Outputs) -> np.ndarray:
        from scipy.stats import spearmanr

        first, second = np.split(np.concatenate([output[0] for output in outputs]), 2)
        similarities = (first * second).sum(1)

        def correlation(chosen: np.ndarray) -> float:
            return 100 * float(spearmanr(similarities[chosen], judged[chosen])[0])

        return _without_each(correlation, np.arange(len(similarities)))

    return score


OTHERS: Mapping[str, Callable[[Path, np.ndarray, int], Score]] = {
    "mlperftiny_ad_autoencoder": _anomalies,
    "silero_vad_16k": _speech,
    "yolox_nano_416": _detections,
    "minilm_l6_v2_emb": _similarities,
}
PAIRED = frozenset({"minilm_l6_v2_emb"})
