"""What cannot work is refused before anything is measured, and nothing else is."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import proto, residual, samples, weight

import ptqc
from ptqc import guarded
from ptqc.codegen.cpu.target import is_present
from ptqc.errors import CalibrationError, Infeasible, NoKernel, TargetError
from ptqc.passes.calibrate import Calibrate
from ptqc.stages import foresee
from ptqc.stages.foresee import check_kernels


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, of which nothing may be measured."""

    def never(*_arguments: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(Calibrate, "apply", never)
    onnx.save(residual(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_budget_below_every_file_is_refused_before_measuring(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"the narrowest codes of all weights alone take [\d,]+ bytes") as refusal:
        ptqc.compile(model, calibration=samples(3, 8, 8), budget="2%", output=tmp_path / "out")
    assert refusal.value.smallest > model.stat().st_size * 0.02
    assert "w3" in str(refusal.value)
    assert sum(size for _, size in refusal.value.blockers) <= refusal.value.smallest


def test_a_budget_that_may_be_met_is_measured(model: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="measured"):
        ptqc.compile(model, calibration=samples(3, 8, 8), budget="9%", output=tmp_path / "out", cache=tmp_path / "c")


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_the_last_sample_is_checked_before_measuring(model: Path, tmp_path: Path, fault: float) -> None:
    data = samples(3, 8, 8, count=40)
    data[39, 1, 2, 3] = fault
    with pytest.raises(CalibrationError, match="sample 39"):
        ptqc.compile(model, calibration=data, output=tmp_path / "out")


def known(monkeypatch: pytest.MonkeyPatch, *operators: str) -> None:
    monkeypatch.setattr(foresee, "_known", lambda: {"Conv", "Gemm", "MatMul", "Add", "Relu", *operators})


def parse(graph: str, **constants: np.ndarray) -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto(graph, **constants)))


def test_an_operator_without_a_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N,16] x) => (float[N,8] z) { y = Gemm(x, w) z = Det(y) }", w=weight(16, 8))
    known(monkeypatch)
    with pytest.raises(NoKernel, match=r"no kernel for Det z: .*--allow-missing-target"):
        check_kernels(model)
    known(monkeypatch, "Det")
    check_kernels(model)


def test_what_gives_sizes_or_is_constant_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch)
    graph = """g (float[N,16] x) => (float[N,16] y) {
        s = Shape(x) f = Cast<to=1>(s) n = ReduceProd<keepdims=0>(f) c = Sin(w) y = Add(x, c)
    }"""
    check_kernels(parse(graph, w=weight(1, 16)))


@pytest.mark.slow
@pytest.mark.skipif(not is_present(), reason="needs TVM")
def test_the_kernels_of_the_library_are_known() -> None:
    found = foresee._known()
    assert {"Conv", "Softmax", "GlobalAveragePool", "Resize", "Erf"} <= found
    assert not {"Det", "LSTM", "NonMaxSuppression"} & found


def test_a_process_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "run", lambda *_: guarded.Ended("crashed", ""))
    with pytest.raises(TargetError, match="TVM crashed"):
        foresee._known()


@pytest.mark.skipif(not is_present(), reason="needs TVM")
def test_a_compile_for_the_cpu_is_refused_before_measuring(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)
    with pytest.raises(NoKernel, match="GlobalAveragePool"):
        ptqc.compile(model, calibration=samples(3, 8, 8), output=tmp_path / "out", target="cpu")
