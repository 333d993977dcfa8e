"""Samples that judge a loss: how many, which, and never one that was measured on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, weight

from ptqc.calibration.samples import Samples
from ptqc.errors import CalibrationError
from ptqc.frontend import read_model
from ptqc.notes import Level
from ptqc.options import CompileOptions
from ptqc.passes.allocate.constraints.loss import LossBudget, _fresh, gather_apart, with_judges
from ptqc.passes.quantize.prepare import prepare
from ptqc.utils.progress import SILENT

LOSS, SAME = LossBudget(0.01, "nat"), LossBudget(95, "%same")


def gathered(folder: Path, data: object, budget: LossBudget | None, most: int = 256) -> tuple[Samples, Samples | None]:
    folder.mkdir(exist_ok=True)
    model = proto("g (float[N,4] x) => (float[N,3] y) { y = Gemm(x, w) }", w=weight(4, 3))
    onnx.save(model, folder / "model.onnx")
    source = read_model(folder / "model.onnx")
    return gather_apart(source, data, folder / "samples", CompileOptions(samples=most), None, budget, SILENT)


def numbers(samples: Samples | None) -> list[int]:
    """Of samples made by `counted`."""
    return [int(feeds["x"][0, 0]) for feeds in samples or ()]


def counted(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None] * np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("value", "most", "budget", "judges"),
    [
        (100, 256, LOSS, 25),  # a quarter
        (100, 60, LOSS, 40),  # what is over
        (900, 60, LOSS, 256),  # no more than a mean needs
        (900, 60, SAME, 256),
        (100, 256, SAME, 45),  # 0.95⁴⁵ < 0.1: as many as can show anything
        (80, 256, SAME, 20),  # which would be over half of all
        (4, 256, LOSS, 2),
    ],
)
def test_how_many_judge(value: int, most: int, budget: LossBudget, judges: int, tmp_path: Path) -> None:
    measured, judging = gathered(tmp_path, counted(value), budget, most)
    first, second = numbers(measured), numbers(judging)
    assert len(second) == judges
    assert len(first) == min(value, most + 256) - judges
    assert not set(first) & set(second)
    assert max(np.diff([0, *second, max(*first, *second)])) <= 2 * value / judges  # evenly spread


def test_without_a_budget_of_loss_nothing_changes(tmp_path: Path) -> None:
    measured, judging = gathered(tmp_path, counted(300), None)
    drop, none = gathered(tmp_path / "drop", counted(300), LossBudget(1, "%drop"))
    assert judging is none is None
    assert len(measured) == 256
    assert drop.digest == measured.digest


def test_what_is_measured_on_does_not_judge(tmp_path: Path) -> None:
    """Every sample is there twice, side by side; one of both counts."""
    measured, judging = gathered(tmp_path, counted(20).repeat(2, axis=0), LOSS)
    assert sorted(numbers(measured) + numbers(judging)) == list(range(20))
    assert len(numbers(judging)) == 8


def test_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="3 different calibration samples were given; a loss budget needs"):
        gathered(tmp_path, counted(3), LOSS)


def test_drawn_samples_are_warned_of(tmp_path: Path) -> None:
    measured, judging = gathered(tmp_path, "synthetic", LOSS, 8)
    assert judging is not None
    assert any("on synthetic samples" in note.message and note.level == Level.WARNING for note in measured.notes)


def test_others_are_taken_later_but_for_those_that_were_measured_on(tmp_path: Path) -> None:
    measured, _ = gathered(tmp_path, counted(30), None)
    prepared = prepare(read_model(tmp_path / "model.onnx"), measured, SILENT)
    result = with_judges(prepared, counted(50), tmp_path / "judging", None, LOSS)
    assert numbers(result.judging) == list(range(30, 50))
    with pytest.raises(CalibrationError, match="only 0 of 30 samples differ from those that were measured on"):
        with_judges(prepared, counted(30), tmp_path / "judging", None, LOSS)


def test_samples_of_earlier_releases_do_not_judge(tmp_path: Path) -> None:
    """These did not record what was read; what was made of it is made again."""
    samples, _ = gathered(tmp_path, counted(30), None)
    read = replace(samples, records=tuple(replace(one, read="0" * 64) for one in samples.records))
    with pytest.raises(CalibrationError, match="only 0 of 30 samples differ"):
        _fresh(read, samples)
