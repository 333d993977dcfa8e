"""Fewer samples where time is short: halves, evenly spread, with a note; and a compile that has no time at all."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from compiling import Measured, compiled, measured_model, proto, quick, residual, samples, weight

import ptqc
from ptqc import compiler
from ptqc.errors import Missed, TimeTooShort
from ptqc.notes import is_cut_short
from ptqc.passes.quantize import prepare
from ptqc.passes.quantize.prepare import affordable
from ptqc.utils.deadline import NEVER, Deadline


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    model = proto("g (float[N,16] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(16, 8))
    return measured_model(model, samples(16, count=64), tmp_path_factory.mktemp("product"), bits=(4,))


def test_without_a_limit_all_samples_are_used(measured: Measured) -> None:
    assert affordable(measured.prepared, NEVER) is measured.prepared
    assert affordable(measured.prepared, Deadline.after(1e6, time.monotonic())) is measured.prepared


@pytest.mark.parametrize(("seconds", "count"), [(50.0, 64), (49.0, 32), (25.0, 32), (24.0, 16), (1.0, 8)])
def test_halves_as_there_is_time(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, seconds: float, count: int
) -> None:
    monkeypatch.setattr(prepare, "seconds_of", lambda _: prepare.SHARE * 49.5 / 64 / prepare.RUNS)
    value = measured.prepared
    result = affordable(value, Deadline.after(seconds, time.monotonic()))
    assert len(result.samples) == count
    assert is_cut_short(result.notes) == (count < 64)
    for index, feeds in enumerate(result.samples):
        np.testing.assert_array_equal(feeds["x"], value.samples[index * 64 // count]["x"])


def test_a_compile_without_time_says_how_much_it_needs(tmp_path: Path) -> None:
    with pytest.raises(TimeTooShort, match=r"limit of 0\.001 s is too short: .* 0 of 4 weights .* --time-limit \d+s"):
        compiled(residual(), samples(3, 8, 8, count=40), tmp_path, "30%", time_limit=1e-3)
    assert not (tmp_path / "out").exists()


def test_a_file_of_guesses_is_correct_and_told_to_be_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "FLOOR", 0.0)
    short = partial(compiled, residual(), samples(3, 8, 8, count=40), tmp_path, "30%", time_limit=1e-3)
    with pytest.raises(Missed, match="not fit for use: there was time for 8 of 40 calibration samples"):
        short(strict=True)
    result = short()
    first = " ".join(result.summary().partition("size ")[0].split())
    assert first == "NOT FIT for use: there was time for 8 of 40 calibration samples"
    assert ["there was time" in each.message for each in result.warnings[:2]] == [True, True]
    assert "It is not fit for use" in (result.folder / "report.html").read_text()
    assert result.manifest["cut_short"]
    assert result.manifest["calibration"]["samples"] == prepare.FEWEST
    assert "8 of 40 calibration samples" in (result.folder / "report.html").read_text()
    assert "not measured: there was no time left" in result.summary()
    assert result.manifest["file"]["bytes"] <= result.manifest["allocation"]["limit"]
    with quick():
        again = ptqc.resolve(result.folder, output=tmp_path / "again", budget="25%", cache=tmp_path / "cache")
    assert again.manifest["calibration"] == result.manifest["calibration"]
    assert not again.manifest["results"].keys() ^ result.manifest["results"].keys()
