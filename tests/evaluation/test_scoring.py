"""Scores of the user's own: what is percent, what is stated to be, and what cannot be counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, product, proto, samples

import ptqc
from ptqc.errors import UsageError
from ptqc.evaluation.scoring import OwnScore, Scoring, scoring_of
from ptqc.utils.progress import SILENT

DROP = "1%drop"


def scored(value: object, perfect: float | None = None, budget: str = DROP) -> Scoring:
    model = ir.from_proto(proto("g (float[N,3] x) => (float[N,3] y) { y = Identity(x) }"))
    result = scoring_of(model, OwnScore(lambda _: value, perfect), None, budget, SILENT)  # type: ignore[arg-type, return-value]
    assert result is not None
    return result


@pytest.mark.parametrize("value", [90.75, np.float32(90.75), np.array(90.75), 100, 1.01])
def test_percent_stay_as_they_are(value: float) -> None:
    assert scored(value).float_score == float(value)


@pytest.mark.parametrize("value", [0.9075, 1, 1.0, 0, -3.5, 375])
def test_what_does_not_look_like_percent_is_refused_with_what_to_do(value: float) -> None:
    with pytest.raises(UsageError, match=r"1%drop counts points .* in percent.*return percent.*perfect_score=1"):
        scored(value)
    assert scored(value, budget="").float_score == value


def test_a_stated_scale_makes_percent() -> None:
    assert scored(0.9075, 1).float_score == pytest.approx(90.75)
    assert scored(375, 400).float_score == pytest.approx(93.75)
    assert scored(0.9, 100).float_score == pytest.approx(0.9)


@pytest.mark.parametrize("value", [None, "x", np.zeros(3), float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"evaluate returned .*; let it return"):
        scored(value, budget="")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"evaluate": "x"}, "evaluate is 'x'; give a function"),
        ({"evaluate": len, "perfect_score": 0}, "perfect_score is 0; give what evaluate gives a perfect model"),
        ({"perfect_score": 1}, "perfect_score is 1, which is of evaluate"),
    ],
)
def test_what_is_no_score_is_refused_at_once(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        ptqc.compile(tmp_path / "missing.onnx", calibration="missing", output=tmp_path / "out", **options)


def test_a_share_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"evaluate gives the float model 0\.9: return percent"):
        compiled(product(), samples(16), tmp_path, "1%drop", evaluate=lambda _: 0.9)
    assert not (tmp_path / "out").exists()


def share_right(x: np.ndarray, right: np.ndarray) -> Callable[[Any], float]:
    """Accuracy from 0 to 1, as most libraries give it."""
    return lambda run: float(np.mean(run({"x": x})["y"].argmax(1) == right))


def test_one_percent_of_a_share_is_one_point(tmp_path: Path) -> None:
    """The float model is right everywhere, so what the file may lose is counted by hand."""
    weight = product().graph.initializer[0]
    x = samples(16, count=400, seed=3)
    right = (x @ np.frombuffer(weight.raw_data, np.float32).reshape(16, 32)).argmax(1)
    result = compiled(product(), samples(16), tmp_path, "2%drop", evaluate=share_right(x, right), perfect_score=1)
    accuracy = 100 * share_right(x, right)(result.run)
    results = result.manifest["results"]
    assert (results["float_score"], results["compiled_score"]) == (100, pytest.approx(accuracy))
    assert results["score_title"] == "score, %"
    assert accuracy >= 98
    assert result.manifest["loss_budget"]["kept"]
