"""Judging: agreement, error and scores of the delivered file against the float model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import Measured, measured_model, proto, weight

from ptqc.evaluation.judge import BEST_SQNR, Judged, _in_a_row, _judged, _sqnr, judge, to_json
from ptqc.evaluation.scoring import Evaluate, OwnScore, scoring_of
from ptqc.execution.onnxruntime import Runner
from ptqc.losses import OutputKind, OutputLoss
from ptqc.losses.base import Group
from ptqc.losses.classes import Logits
from ptqc.losses.detection import Detection
from ptqc.losses.embedding import Embedding
from ptqc.losses.regression import Regression
from ptqc.losses.state import State
from ptqc.utils.progress import SILENT

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    model = proto("g (float[N,16] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(16, 8))
    data = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    return measured_model(model, data, tmp_path_factory.mktemp("product"), bits=(4,))


def packed(model: ir.Model, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    """A file that computes with a changed weight."""
    copy = model.clone()
    value = copy.graph.initializers["w"]
    assert value.const_value is not None
    value.const_value = ir.tensor(change(value.const_value.numpy()).astype(np.float32), name="w")
    return ir.to_proto(copy)


def judged(measured: Measured, change: Callable[[np.ndarray], np.ndarray], evaluate: Evaluate | None = None) -> Judged:
    held, own = measured.prepared.held_back, None if evaluate is None else OwnScore(evaluate)
    scoring = scoring_of(measured.model, own, None, "", SILENT)
    return judge(measured.model, packed(measured.model, change), held, measured.context.kinds, scoring, SILENT)


def test_the_same_function_agrees_completely(measured: Measured) -> None:
    result = judged(measured, lambda w: w)
    assert (result.samples, result.agreement, result.sqnr, result.loss) == (8, 1.0, BEST_SQNR, 0.0)
    assert not result.outputs[0].low


def test_the_error_of_a_scaled_output_is_known(measured: Measured) -> None:
    """y + y/100 has an error power of 10⁻⁴: 40 dB, with the same top classes."""
    result = judged(measured, lambda w: w * 1.01)
    assert result.sqnr == pytest.approx(40, abs=1e-3)
    assert result.agreement == 1.0
    assert result.loss > 0


def test_a_negated_output_agrees_nowhere(measured: Measured) -> None:
    result = judged(measured, np.negative)
    assert result.agreement == 0.0
    assert result.sqnr == pytest.approx(-6.02, abs=0.01)
    assert [figure.text for figure in result.outputs[0].low] == ["same top class in 0.0 %"]


def test_an_output_that_is_infinite_has_no_signal() -> None:
    assert _sqnr([(np.ones(2, np.float32), np.array([1, np.inf], np.float32))]) == -np.inf


def low(kind: OutputKind, y: np.ndarray, z: np.ndarray) -> list[str]:
    """What the user is warned of where an output is z instead of y."""
    measure = OutputLoss.of({"y": kind}, [{"y": y}])
    return [figure.text for figure in _judged("y", measure, [({"y": y}, {"y": z})]).low]


def test_when_the_user_is_warned() -> None:
    y = np.random.default_rng(0).standard_normal((200, 10))
    error = np.random.default_rng(1).standard_normal((200, 10))
    assert low(Regression(1), y, y + 0.19 * error) == ["SQNR 14.4 dB"]
    assert low(Regression(1), y, y + 0.15 * error) == []
    assert low(Regression(1), y + 100, y + 100 + 0.5 * error) == ["25.57 % of the variance lost"]  # behind a large mean
    assert low(Embedding(1), y, y + 0.25 * error) == ["mean cosine 0.9666"]
    assert low(Embedding(1), y, y + 0.15 * error) == []
    assert low(Logits(1), y, y + 0.5 * error) == ["same top class in 65.0 %"]
    assert low(State(1), y, y + 0.25 * error) == []


def test_the_worst_group_of_channels_is_warned_of() -> None:
    """Scores that are lost beside boxes that are kept, whose power is a million times theirs."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.uniform(0, 300, (2, 50, 4)), rng.beta(0.2, 2, (2, 50, 3))], 2)
    z = np.concatenate([y[..., :4], y[..., 4:] * 0.5], 2)
    kind = Detection(2, (Group(0, 4), Group(4, 7, scores=True)))
    assert low(kind, y, z) == ["SQNR of scores (channels 4 to 6) 6.0 dB"]


def test_things_that_are_found_in_some_samples_only() -> None:
    """Three boxes and none; then one less than the float model finds."""
    three, two, none = (np.ones((count, 4), np.float32) for count in (3, 2, 0))
    kind = Regression(None)
    measure = OutputLoss.of({"y": kind}, [{"y": none}, {"y": three * np.arange(4, dtype=np.float32)}])
    result = _judged("y", measure, [({"y": none}, {"y": none}), ({"y": three}, {"y": two})])
    assert result.sqnr[""] == pytest.approx(10 * np.log10(3))
    nothing = _judged("y", measure, [({"y": none}, {"y": none})])
    assert (nothing.loss, nothing.sqnr[""], nothing.figures) == (0.0, BEST_SQNR, ())


def test_zeros_that_stay_zeros_are_equal(measured: Measured) -> None:
    zeros = measured.model.clone()
    value = zeros.graph.initializers["w"]
    value.const_value = ir.tensor(np.zeros((16, 8), np.float32), name="w")
    result = judge(zeros, ir.to_proto(zeros), measured.prepared.held_back, measured.context.kinds, None, SILENT)
    assert result.sqnr == BEST_SQNR


def test_scores_are_asked_for_both(measured: Measured) -> None:
    def largest(run: Run) -> float:
        return float(np.abs(run({"x": np.ones((1, 16), np.float32)})["y"]).max())

    result = judged(measured, lambda w: 2 * w, largest)
    assert result.float_score is not None
    assert result.compiled_score == pytest.approx(2 * result.float_score)


def test_the_document_holds_what_was_found(measured: Measured) -> None:
    result = judged(measured, lambda w: w)
    assert to_json(result)["top1_agreement"] == 1.0


RECURRENT = """g (float[N,4] x, float[N,4] h) => (float[N,3] y, float[N,4] h_next) {
    wide = Gemm(h, w)
    sum = Add(x, wide)
    h_next = Tanh(sum)
    y = Gemm(h_next, v)
}"""


def test_runs_that_read_their_own_states_are_judged_in_a_row(tmp_path: Path) -> None:
    """The changed network forgets less: its states move away from those of the float model run by run."""
    random = np.random.default_rng(5)
    data = {name: random.standard_normal((24, 4)).astype(np.float32) for name in ("x", "h")}
    model = proto(RECURRENT, w=0.4 * weight(4, 4), v=weight(4, 3))
    known = measured_model(model, data, tmp_path, bits=(4,))
    held = known.prepared.held_back
    result = judge(
        known.model, packed(known.model, lambda w: 1.3 * w), held, known.context.kinds, None, SILENT
    ).fed_back
    assert result is not None

    def logits(w: np.ndarray, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        after = np.tanh(x + h @ w)
        return after @ weight(4, 3), after

    state = [held[0]["h"], held[0]["h"]]
    rows = [list[np.ndarray](), list[np.ndarray]()]
    for feeds in held:
        for place, factor in enumerate((1.0, 1.3)):
            y, state[place] = logits(factor * 0.4 * weight(4, 4), feeds["x"], state[place])
            rows[place].append(y[0])
    real, other = (np.array(each, np.float64) for each in rows)
    p, q = (np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in (real, other))
    assert result.runs == len(held)
    assert result.agreement == pytest.approx((real.argmax(1) == other.argmax(1)).mean())
    assert result.loss == pytest.approx(float((p * np.log(p / q)).sum(1).mean()), rel=1e-3)
    assert result.loss != result.single_loss
    document = to_json(replace(Judged(1, 0.0, "nat", (), (), ()), fed_back=result))["fed_back"]
    assert document == {
        "runs": result.runs,
        "loss": result.loss,
        "single_loss": result.single_loss,
        "loss_unit": "nat",
        "top1_agreement": result.agreement,
    }


def test_a_state_of_another_shape_ends_the_row(tmp_path: Path) -> None:
    """A loader's last batch is smaller."""
    onnx.save(proto(RECURRENT, w=weight(4, 4), v=weight(4, 3)), tmp_path / "model.onnx")
    runner = Runner(tmp_path / "model.onnx")
    rows = [{name: np.ones((n, 4), np.float32) for name in ("x", "h")} for n in (2, 2, 2, 1)]
    result = list(_in_a_row((runner, runner), rows, {"h_next": "h"}))  # type: ignore[arg-type]
    assert [[*outputs] for outputs in result] == [["y"]] * 6


def test_answers_that_change_are_counted_by_sample(measured: Measured) -> None:
    assert not any(judged(measured, lambda w: 1.01 * w).differing)
    assert all(judged(measured, np.negative).differing)
