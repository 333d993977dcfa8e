"""Channels of images whose shape says nothing are those of the convolution that reads them."""

import numpy as np
import pytest
from graphs import noise, parse

from ptqc.calibration.inputs import channels_of, input_specs
from ptqc.calibration.runnable import runnable_side
from ptqc.calibration.synthetic import draw

OPEN = "g (float[N,C,H,W] x) => (float[N,K,R,S] y) {{ {} }}"
WEIGHTS = {"w": noise(4, 3, 2, 2), "grouped": noise(6, 1, 2, 2), "half": noise(1)}
# A vision transformer: patches of 8 by 8 pixels, 16 of them, and a table of their positions.
PATCHES = """g (float[N,C,H,W] x) => (float[N,T,4] y) {
    p = Conv <strides = [8, 8]> (x, w) f = Reshape(p, form) t = Transpose <perm = [0, 2, 1]> (f) y = Add(t, places)
}"""


@pytest.mark.parametrize(
    ("body", "channels"),
    [
        ("y = Conv(x, w)", 3),
        ("a = Sub(x, half) b = Div(a, half) c = Cast <to = 1> (b) y = Conv(c, w)", 3),
        ("s = Shape(x) r = Relu(x) y = Conv(x, w)", 3),
        ("y = Conv <group = 3> (x, grouped)", 3),
        ("y = Relu(x)", None),
    ],
)
def test_the_convolution_behind_an_input_says_them(body: str, channels: int | None) -> None:
    model = parse(OPEN.format(body), **WEIGHTS)
    assert channels_of(model.graph.inputs[0]) == channels
    (spec,) = input_specs(model)
    assert spec.shape == ("N", channels or "C", "H", "W")


def test_values_that_meet_again_are_followed_once() -> None:
    rounds = "".join(f"a{i} = Add(x{i}, half) b{i} = Mul(x{i}, half) x{i + 1} = Add(a{i}, b{i}) " for i in range(60))
    model = parse(OPEN.format(f"x0 = Sub(x, half) {rounds} y = Relu(x60)"), **WEIGHTS)
    assert channels_of(model.graph.inputs[0]) is None


def test_a_long_chain_needs_no_recursion() -> None:
    chain = "".join(f"x{i + 1} = Add(x{i}, half) " for i in range(1500))
    model = parse(OPEN.format(f"x0 = Sub(x, half) {chain} y = Conv(x1500, w)"), **WEIGHTS)
    assert channels_of(model.graph.inputs[0]) == 3


def test_pictures_have_the_only_side_on_which_a_model_runs() -> None:
    model = parse(PATCHES, w=noise(4, 3, 8, 8), places=noise(1, 16, 4), form=np.array([0, 0, -1]))
    assert runnable_side(model, 0) == 32
    (feeds,) = draw(model, 1, 0, {}, runnable_side(model, 0))
    assert feeds["x"].shape == (1, 3, 32, 32)


def test_pictures_have_the_usual_side_where_any_will_do() -> None:
    assert runnable_side(parse(OPEN.format("y = Conv(x, w)"), **WEIGHTS), 0) == 224
    assert runnable_side(parse("g (float[N,3,64,64] x) => (float[N,3,64,64] y) { y = Relu(x) }"), 0) == 224
