"""Scores of some samples of a task, and standard errors of differences between two runs of them."""

from collections.abc import Sequence
from pathlib import Path

import harness
import numpy as np
import pytest
import runtimes
import scores
import tasks


def one_hot(classes: Sequence[int]) -> list[list[np.ndarray]]:
    return [[np.eye(3, dtype=np.float32)[[place]]] for place in classes]


def test_the_error_of_a_mean_is_the_usual_one_of_differences_of_samples() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2])
    result = scores._accuracy(labels, [], one_hot([0, 1, 2, 0, 0, 2]))
    base = scores._accuracy(labels, [], one_hot([0, 1, 2, 2, 1, 0]))
    above, error = scores.difference(result, base)
    each = 100 * np.array([0, 0, 0, 1, -1, 1])
    assert result[0] == pytest.approx(500 / 6)
    assert above == pytest.approx(each.mean())
    assert error == pytest.approx(each.std(ddof=1) / np.sqrt(len(each)))


def test_the_same_outputs_differ_by_nothing() -> None:
    labels, values = np.array([0, 1, 1, 0, 1]), [0.1, 0.8, 0.3, 0.4, 0.9]
    area = scores._area(labels, np.arange(5), values)
    assert area[0] == pytest.approx(100 * 5 / 6)
    assert scores.difference(area, area) == (0, 0)


def test_samples_of_a_clip_are_left_out_together() -> None:
    each = scores._without_each(lambda chosen: float(chosen.sum()), np.array([3, 3, 7, 8]))
    assert each.tolist() == [6, 5, 4, 3]


def task(name: str) -> tasks.Task:
    return tasks.Task(name, Path("none.onnx"), lambda _count: [], lambda _run: 0.0, "top-1 %", 0.0, True)


def test_samples_are_spread_and_sentences_come_in_pairs() -> None:
    assert scores.places_of(task("a"), 10, 4) == [0, 3, 6, 9]
    assert scores.places_of(task("a"), 3, 4) == [0, 1, 2]
    assert scores.places_of(task("minilm_l6_v2_emb"), 20, 6) == [0, 4, 9, 10, 14, 19]
    assert scores.score_of(task("a"), [0, 3], 10) is None


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("name", ["mlperftiny_kws_dscnn", "mlperftiny_vww_mbv1_025_96"])
def test_all_samples_score_what_the_task_says(name: str) -> None:
    """So the labels are those of the samples."""
    value = tasks.chosen(name)[0]
    feeds, score = runtimes.evaluation_samples(value, 10**6)
    assert score is not None
    run = harness.open_model(value.path)
    result = score(feeds, [run(sample) for sample in feeds])
    assert result[0] == pytest.approx(value.score(run))


def test_padded_samples_have_one_length() -> None:
    def samples(_count: int) -> list[harness.Feeds]:
        return [{"ids": np.array([[5, 7]])}, {"ids": np.array([[3]])}]

    def score(run: harness.Run) -> float:
        return float(sum(run(sample)[0].shape[-1] for sample in samples(2)))

    value = tasks.Task("a", Path("none.onnx"), samples, score, "", 0.0, True)
    filled = tasks.padded(value, 4)
    assert [sample["ids"].tolist() for sample in filled.calibration(2)] == [[[5, 7, 0, 0]], [[3, 0, 0, 0]]]
    assert filled.score(lambda sample: [sample["ids"]]) == 8
