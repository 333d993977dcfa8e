"""What cannot work is refused before anything is measured, and nothing else is."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, residual, samples, weight

import ptqc
from ptqc.codegen.cpu.target import is_present
from ptqc.codegen.kernels import checks
from ptqc.errors import CalibrationError, Infeasible, NoKernel, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.passes.quantize.calibrate import Calibrate


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, of which nothing may be measured."""

    def never(*_arguments: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(Calibrate, "apply", never)
    onnx.save(residual(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_budget_below_every_file_is_refused_before_measuring(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"between [\d,]+ and about [\d,]+ bytes; the exact") as refusal:
        ptqc.compile(model, calibration=samples(3, 8, 8), budget="2%", output=tmp_path / "out")
    assert "at the lowest bit widths, the weights alone take" in str(refusal.value)
    assert "Try --budget 9%: " in str(refusal.value)
    assert refusal.value.smallest > model.stat().st_size * 0.02
    assert sum(size for _, size in refusal.value.blockers) <= refusal.value.smallest


def test_a_budget_that_may_be_met_is_measured(model: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="measured"):
        ptqc.compile(model, calibration=samples(3, 8, 8), budget="9%", output=tmp_path / "out", cache=tmp_path / "c")


def test_outputs_that_are_no_detections_as_stated_are_refused_before_measuring(model: Path, tmp_path: Path) -> None:
    detector = Detector(boxes="xyxy", box_unit="pixels")
    with pytest.raises(UsageError, match="say what each box has with --columns"):
        ptqc.compile(model, calibration=samples(3, 8, 8), output=tmp_path / "out", detector=detector)


def test_a_detector_that_finds_nothing_is_refused_before_measuring(tmp_path: Path) -> None:
    graph = """g (float[1,3,8,8] x) => (float[M] y) {
        c = Conv(x, w)  f = Reshape(c, m)  s = Sigmoid(f)  over = Greater(s, two)  y = Compress(s, over)
    }"""
    constants = {"w": weight(4, 3, 3, 3), "two": np.array(2, np.float32), "m": np.array([-1])}
    onnx.save(proto(graph, **constants), tmp_path / "m.onnx")
    with pytest.raises(CalibrationError, match=r"\(y\) are empty on the first \d samples.*check the preprocessing"):
        ptqc.compile(tmp_path / "m.onnx", calibration=samples(3, 8, 8), output=tmp_path / "out")


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_the_last_sample_is_checked_before_measuring(model: Path, tmp_path: Path, fault: float) -> None:
    data = samples(3, 8, 8, count=40)
    data[39, 1, 2, 3] = fault
    with pytest.raises(CalibrationError, match=r"samples\[39\]"):
        ptqc.compile(model, calibration=data, output=tmp_path / "out")


@pytest.mark.skipif(not is_present(), reason="needs TVM")
def test_a_compile_for_the_cpu_is_refused_before_measuring(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_known", lambda _target: {"Conv", "Gemm", "Add", "Relu"})
    with pytest.raises(NoKernel, match="GlobalAveragePool"):
        ptqc.compile(model, calibration=samples(3, 8, 8), output=tmp_path / "out", target="cpu")


def test_widths_that_no_format_asked_for_has_are_refused(model: Path, tmp_path: Path) -> None:
    data, output = samples(3, 8, 8), tmp_path / "out"
    with pytest.raises(UsageError, match=r"has 6, 7 bits: there are tcq1\.5, .*tcq5row; give other bits or formats"):
        ptqc.compile(model, calibration=data, budget="30%", output=output, formats=("tcq",), bits=(6, 7))
