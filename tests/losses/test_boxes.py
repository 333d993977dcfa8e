"""Detectors whose boxes and scores are separate outputs lose what the same detector with one output loses."""

import numpy as np
import pytest
from graphs import noise
from hypothesis import given
from hypothesis import strategies as st
from outputs import COUNT, inputs, kinds

from ptqc.errors import UsageError
from ptqc.losses import OutputLoss, from_json, to_json
from ptqc.losses.base import PER_DETECTION, Group
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Logits, Probabilities
from ptqc.losses.detection import Detection
from ptqc.losses.scores import Scores

seeds = st.integers(0, 1000).map(np.random.default_rng)
ONE = Detection(2, (Group(0, 4), Group(4, 9, scores=True)))
Detected = dict[str, np.ndarray]


def detected(rng: np.random.Generator) -> tuple[Detected, Detected]:
    """Boxes and scores of 40 anchors in two samples, and the same a little wrong."""
    real = {"b": rng.uniform(0, 300, (2, 40, 4)), "s": rng.beta(0.1, 3, (2, 40, 5))}
    wrong = {"b": real["b"] + rng.standard_normal((2, 40, 4)), "s": np.clip(real["s"] + 0.03, 0, 1)}
    return real, wrong


def joined(outputs: Detected) -> Detected:
    return {"y": np.concatenate([outputs["b"], outputs["s"]], 2)}


@given(rng=seeds)
def test_two_outputs_lose_what_one_loses(rng: np.random.Generator) -> None:
    real, wrong = detected(rng)
    head = Scores(2, places=True)
    two = OutputLoss.of({"b": Boxes(2, "s", head), "s": head}, [real])
    one = OutputLoss.of({"y": ONE}, [joined(real)])
    assert two.unit == one.unit == PER_DETECTION.name
    assert two(real, wrong) == pytest.approx(one(joined(real), joined(wrong)), rel=1e-6)


@given(rng=seeds)
def test_the_layout_does_not_matter(rng: np.random.Generator) -> None:
    """Anchors last, and maps of 5 by 8 pixels."""
    real, wrong = detected(rng)
    expected = OutputLoss.of({"b": Boxes(2, "s", Scores(2, places=True))}, [real])(real, wrong)
    for shape in ((2, -1, 40), (2, -1, 5, 8)):
        moved = [{name: x.transpose(0, 2, 1).reshape(shape) for name, x in of.items()} for of in (real, wrong)]
        measure = OutputLoss.of({"b": Boxes(1, "s", Scores(1, places=True))}, [moved[0]])
        assert measure(*moved) == pytest.approx(expected, rel=1e-6)


def test_boxes_by_hand() -> None:
    """A softmax with the background in front: anchors weigh 0.9 and 0.2, and the box of the second moves by 6."""
    p = np.array([[[0.1, 0.7, 0.2], [0.8, 0.1, 0.1]]], np.float32)
    real = {"b": np.array([[[10, 0, 0, 0], [30, 0, 0, 0]]], np.float32), "s": p}
    wrong = {"b": real["b"] + np.array([[[0, 0, 0, 0], [6, 0, 0, 0]]]), "s": p}
    mean = (0.9 * 10 + 0.2 * 30) / 1.1
    variance = (0.9 * (10 - mean) ** 2 + 0.2 * (30 - mean) ** 2) / 1.1
    for head, scores in ((Probabilities(2, 0), p), (Logits(2, 0), np.log(p))):
        value, result = ({**of, "s": scores} for of in (real, wrong))
        measure = OutputLoss.of({"b": Boxes(2, "s", head)}, [value])
        assert measure(value, result) == pytest.approx(2 * 0.2 * 36 / variance / 4 / 1.1, rel=1e-5)


def test_classes_of_a_detector_are_said_per_thing_found() -> None:
    p = np.full((1, 100, 2), [0.99, 0.01])
    p[0, :2] = [0.1, 0.9]
    q = p.copy()
    q[0, 0] = [0.5, 0.5]
    lost = 0.1 * np.log(0.1 / 0.5) + 0.9 * np.log(0.9 / 0.5)
    measure = OutputLoss.of({"s": Probabilities(2, 0)}, [{"s": p}])
    assert measure({"s": p}, {"s": q}) == pytest.approx(lost / (2 * 0.9 + 98 * 0.01), rel=1e-6)
    same = Probabilities(2, 0).figures([(p, q[:, ::-1])], 0.0, {})[0]
    assert same.value == 0.0, "the places of the background count for nothing"


RARE = "s = Conv(x, wc) t = Add(s, low) c = Sigmoid(t)"
HEADS = {
    "wb": noise(4, 3, 1, 1, scale=30),
    "wc": noise(6, 3, 1, 1, seed=2),
    "low": np.array(-6, np.float32),
    "wide": noise(12, 3, 1, 1),
    "anchors": np.array([0, 4, 64]),
    "classes": np.array([0, 6, 64]),
    "background": np.array([9, 0, 0, 0, 0, 0], np.float32).reshape(6, 1, 1),
}
FLAT = """f = Reshape(b, anchors) {0} = Transpose <perm = [0, 2, 1]> (f)
    g = Reshape(c, classes) scores = Transpose <perm = [0, 2, 1]> (g)"""
SOFTMAX = "s = Conv(x, wc) t = Add(s, background) c = Softmax <axis = 1> (t)"


def found(body: str, outputs: str, asked: str | dict[str, str] = "auto") -> dict[str, dict[str, object]]:
    text = f"g (float[N, 3, 8, 8] x) => ({outputs}) {{ b = Conv(x, wb) {body} }}"
    return to_json(kinds(text, inputs(1, 3, 8, 8), asked, **HEADS))


def test_boxes_beside_scores() -> None:
    scores = {"kind": "scores", "axis": 2, "places": True}
    for name in ("y", "pred_boxes"):
        head = found(RARE + FLAT.format(name), f"float[N, 64, 4] {name}, float[N, 64, 6] scores")
        assert head == {name: {"kind": "boxes", "axis": 2, "scores": "scores", "head": scores}, "scores": scores}


def test_maps_beside_scores() -> None:
    head = found(RARE, "float[N, 4, 8, 8] b, float[N, 6, 8, 8] c")
    assert head["b"] == {"kind": "boxes", "axis": 1, "scores": "c", "head": head["c"]}


def test_boxes_beside_a_softmax_with_a_background() -> None:
    head = found(SOFTMAX + FLAT.format("y"), "float[N, 64, 4] y, float[N, 64, 6] scores")
    assert head["y"] == {"kind": "boxes", "axis": 2, "scores": "scores", "head": head["scores"]}
    assert head["scores"] == {"kind": "probabilities", "axis": 2, "background": 0}


def test_scores_without_an_axis_of_classes() -> None:
    """(N, A) beside (N, A, 4)."""
    body = RARE + FLAT.format("y") + " m = ReduceMax <keepdims = 0> (scores, last)"
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 64, 4] y, float[N, 64] m) {{ b = Conv(x, wb) {body} }}"
    head = to_json(kinds(text, inputs(1, 3, 8, 8), {"m": "scores"}, **HEADS, last=np.array([2])))
    assert head["m"] == {"kind": "scores", "axis": None, "places": True}
    assert head["y"] == {"kind": "boxes", "axis": 2, "scores": "m", "head": head["m"]}


def test_the_rarest_scores_weigh() -> None:
    """Objectness, which is rarer than the classes."""
    body = RARE + " u = Conv(x, wo) v = Add(u, low) w = Add(v, low) o = Sigmoid(w)"
    outputs = "float[N, 4, 8, 8] b, float[N, 6, 8, 8] c, float[N, 1, 8, 8] o"
    text = f"g (float[N, 3, 8, 8] x) => ({outputs}) {{ b = Conv(x, wb) {body} }}"
    head = to_json(kinds(text, inputs(1, 3, 8, 8), **HEADS, wo=noise(1, 3, 1, 1)))
    assert head["b"]["scores"] == "o"


ELSEWHERE = {
    "scores everywhere": ("s = Conv(x, wc) c = Sigmoid(s) y = Identity(b)", "float[N, 4, 8, 8] y"),
    "other places": (RARE + " y = MaxPool <kernel_shape = [2, 2]> (b)", "float[N, 4, 7, 7] y"),
    "no box": (RARE + " y = Conv(x, wide)", "float[N, 12, 8, 8] y"),
    "no background": ("t = Conv(x, wc) c = Softmax <axis = 1> (t) y = Identity(b)", "float[N, 4, 8, 8] y"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_other_maps_stay_maps(case: str) -> None:
    body, output = ELSEWHERE[case]
    assert found(body, f"{output}, float[N, 6, 8, 8] c")["y"]["kind"] == "map"


def test_what_the_user_says_of_boxes() -> None:
    outputs = "float[N, 12, 8, 8] y, float[N, 6, 8, 8] c"
    body = RARE + " y = Conv(x, wide)"
    assert found(body, outputs, {"y": "boxes"})["y"]["kind"] == "boxes"
    assert found(RARE, "float[N, 4, 8, 8] b, float[N, 6, 8, 8] c", {"b": "map"})["b"]["kind"] == "map"
    with pytest.raises(
        UsageError, match="output 'y' cannot be boxes: no other output has scores for the same positions"
    ):
        found("y = Conv(x, wide)", "float[N, 12, 8, 8] y", {"y": "boxes"})


def test_to_json_and_back() -> None:
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] b, float[N, 6, 8, 8] c) {{ b = Conv(x, wb) {SOFTMAX} }}"
    both = kinds(text, inputs(1, 3, 8, 8, count=COUNT), **HEADS)
    assert isinstance(both["b"], Boxes)
    assert from_json(to_json(both)) == both


def test_nothing_is_wrong_behind_the_end_of_an_output() -> None:
    """Where the compiled model has fewer anchors, those that are missing count as zeros, and others not at all."""
    real = {"b": np.full((1, 5, 4), 10.0), "s": np.array([[[0.9], [0.0], [0.0], [0.0], [0.0]]])}
    fewer = {name: value[:, :3] for name, value in real.items()}
    measure = OutputLoss.of({"b": Boxes(2, "s", Scores(2, places=True))}, [real])
    assert measure(real, fewer) == 0.0
    assert measure(fewer, real) == 0.0
