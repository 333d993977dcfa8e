"""Judging: agreement, error and scores of the delivered file against the float model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from compiling import Measured, measured_model, proto, weight

from ptqc.progress import SILENT
from ptqc.stages.judge import BEST_SQNR, Judged, judge, to_json

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    model = proto("g (float[N,16] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(16, 8))
    data = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    return measured_model(model, data, tmp_path_factory.mktemp("product"), bits=(4,))


def packed(model: ir.Model, change: Callable[[np.ndarray], np.ndarray]) -> bytes:
    """A file that computes with a changed weight."""
    copy = model.clone()
    value = copy.graph.initializers["w"]
    assert value.const_value is not None
    value.const_value = ir.tensor(change(value.const_value.numpy()).astype(np.float32), name="w")
    return ir.to_proto(copy).SerializeToString()


def judged(measured: Measured, change: Callable[[np.ndarray], np.ndarray], evaluate: object = None) -> Judged:
    held = measured.prepared.held_back
    return judge(measured.model, packed(measured.model, change), held, "auto", evaluate, SILENT)


def test_the_same_function_agrees_completely(measured: Measured) -> None:
    found = judged(measured, lambda w: w)
    assert (found.samples, found.agreement, found.sqnr, found.loss) == (8, 1.0, BEST_SQNR, 0.0)
    assert not found.is_low


def test_the_error_of_a_scaled_output_is_known(measured: Measured) -> None:
    """y + y/100 has an error power of 10⁻⁴: 40 dB, with the same top classes."""
    found = judged(measured, lambda w: w * 1.01)
    assert found.sqnr == pytest.approx(40, abs=1e-3)
    assert found.agreement == 1.0
    assert found.loss > 0


def test_a_negated_output_agrees_nowhere(measured: Measured) -> None:
    found = judged(measured, np.negative)
    assert found.agreement == 0.0
    assert found.sqnr == pytest.approx(-6.02, abs=0.01)
    assert found.is_low


def test_models_without_classes_are_judged_by_their_error() -> None:
    found = Judged(8, 0.0, "", None, 14.9)
    assert found.is_low
    assert not replace(found, sqnr=15.1).is_low
    assert replace(found, sqnr=47.9, loss=0.35).is_low  # a large mean hides what is lost
    assert not replace(found, agreement=0.95).is_low
    assert replace(found, agreement=0.85, sqnr=40.0).is_low


def test_zeros_that_stay_zeros_are_equal(measured: Measured) -> None:
    zeros = measured.model.clone()
    value = zeros.graph.initializers["w"]
    value.const_value = ir.tensor(np.zeros((16, 8), np.float32), name="w")
    found = judge(zeros, ir.to_proto(zeros).SerializeToString(), measured.prepared.held_back, "auto", None, SILENT)
    assert found.sqnr == BEST_SQNR


def test_scores_are_asked_for_both(measured: Measured) -> None:
    def largest(run: Run) -> float:
        return float(np.abs(run({"x": np.ones((1, 16), np.float32)})["y"]).max())

    found = judged(measured, lambda w: 2 * w, largest)
    assert found.float_score is not None
    assert found.compiled_score == pytest.approx(2 * found.float_score)


def test_the_document_holds_what_was_found(measured: Measured) -> None:
    found = judged(measured, lambda w: w)
    assert to_json(found)["top1_agreement"] == 1.0
