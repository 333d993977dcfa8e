from itertools import product

import numpy as np
import pytest
from graphs import noise, parse

from ptqc.codegen.program.expansion import expanded
from ptqc.codegen.program.recurrent import CELLS, MOST_STEPS, refusal
from ptqc.execution.onnxruntime import Feeds, run

STEPS, BATCH, WIDTH, HIDDEN, OPSET = 4, 3, 5, 6, 22
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def graph(operator: str, direction: str, inputs: str, attributes: str = "", steps: int = STEPS) -> tuple[str, Feeds]:
    """A network of one node, and its weights."""
    count, gates = DIRECTIONS[direction], CELLS[operator].gates
    weights = {
        "w": noise(count, gates * HIDDEN, WIDTH, seed=1),
        "r": noise(count, gates * HIDDEN, HIDDEN, seed=2),
        "b": noise(count, 2 * gates * HIDDEN, seed=3),
    }
    states = CELLS[operator].states
    outputs = ", ".join(f"float[{count}, {BATCH}, {HIDDEN}] y{state}" for state in states)
    body = f"""g (float[{steps}, {BATCH}, {WIDTH}] x, float[{count}, {BATCH}, {HIDDEN}] h,
        float[{count}, {BATCH}, {HIDDEN}] c) => (float[{steps}, {count}, {BATCH}, {HIDDEN}] y, {outputs}) {{
        y, {", ".join(f"y{state}" for state in states)} = {operator} <hidden_size = {HIDDEN},
            direction = "{direction}" {attributes}> ({inputs}) }}"""
    return body, {name: array for name, array in weights.items() if name in inputs.split(", ")}


INPUTS = {
    "LSTM": ["x, w, r", "x, w, r, b", "x, w, r, b, , h, c"],
    "GRU": ["x, w, r", "x, w, r, b", "x, w, r, b, , h"],
    "RNN": ["x, w, r", "x, w, r, b, , h"],
}
CASES = [
    (operator, direction, inputs, attributes)
    for operator, direction in product(CELLS, DIRECTIONS)
    for inputs in INPUTS[operator]
    for attributes in ["", *([", linear_before_reset = 1"] if operator == "GRU" else [])]
]
FEEDS: Feeds = {"x": noise(STEPS, BATCH, WIDTH, seed=4)}
OTHERS = FEEDS | {name: noise(1, BATCH, HIDDEN, seed=seed) for seed, name in enumerate("hc", 5)}


@pytest.mark.parametrize(("operator", "direction", "inputs", "attributes"), CASES)
def test_gives_what_onnxruntime_gives(operator: str, direction: str, inputs: str, attributes: str) -> None:
    body, weights = graph(operator, direction, inputs, attributes)
    model, count = parse(body, OPSET, **weights), DIRECTIONS[direction]
    feeds = FEEDS | {name: noise(count, BATCH, HIDDEN, seed=seed) for seed, name in enumerate("hc", 5)}
    written = expanded(model, unrolls=True)
    assert operator not in {node.op_type for node in written.graph}
    wanted, result = run(model, feeds), run(written, feeds)
    for name, value in wanted.items():
        np.testing.assert_allclose(result[name], value, atol=2e-6, err_msg=name)


REFUSED = {
    "its activations are not the usual ones": ', activations = ["Tanh", "Tanh", "Tanh"]',
    "it has layout, clip or input_forget": ", clip = 1.0",
}


@pytest.mark.parametrize(("reason", "attributes"), REFUSED.items())
def test_says_what_it_does_not_take(reason: str, attributes: str) -> None:
    body, weights = graph("LSTM", "forward", "x, w, r", attributes)
    model = parse(body, OPSET, **weights)
    assert refusal(next(iter(model.graph))) == reason
    assert expanded(model, unrolls=True) is model


def test_long_sequences_stay_as_they_are() -> None:
    body, weights = graph("RNN", "bidirectional", "x, w, r", steps=MOST_STEPS)
    model = parse(body, OPSET, **weights)
    assert refusal(next(iter(model.graph))) == f"it has {2 * MOST_STEPS} steps, and up to {MOST_STEPS} are written out"


@pytest.mark.parametrize(("length", "reason"), [(STEPS, None), (STEPS - 1, "its sequences have lengths of their own")])
def test_lengths_of_sequences_may_be_those_of_all(length: int, reason: str | None) -> None:
    body, weights = graph("GRU", "forward", "x, w, r, b, lengths")
    model = parse(body, OPSET, **weights, lengths=np.full(BATCH, length, np.int32))
    assert refusal(next(iter(model.graph))) == reason
    if reason is None:
        np.testing.assert_allclose(run(expanded(model, unrolls=True), OTHERS)["y"], run(model, OTHERS)["y"], atol=2e-6)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
def test_an_rnn_with_another_activation(activation: str) -> None:
    body, weights = graph("RNN", "forward", "x, w, r, b", f', activations = ["{activation}"]')
    model = parse(body, OPSET, **weights)
    np.testing.assert_allclose(run(expanded(model, unrolls=True), OTHERS)["yh"], run(model, OTHERS)["yh"], atol=2e-6)


def test_outputs_that_nobody_reads_may_be_left_out() -> None:
    _, weights = graph("LSTM", "forward", "x, w, r, b")
    model = parse(
        f"""g (float[{STEPS}, {BATCH}, {WIDTH}] x) => (float[1, {BATCH}, {HIDDEN}] y) {{
            , , c = LSTM <hidden_size = {HIDDEN}> (x, w, r, b) y = Neg(c) }}""",
        OPSET,
        **weights,
    )
    written = expanded(model, unrolls=True)
    assert "LSTM" not in {node.op_type for node in written.graph}
    np.testing.assert_allclose(run(written, FEEDS)["y"], run(model, FEEDS)["y"], atol=2e-6)
