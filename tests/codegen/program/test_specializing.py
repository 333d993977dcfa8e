import numpy as np
import pytest
from graphs import noise, parse

from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.specializing import specialized
from ptqc.execution.onnxruntime import run

# What exporters make of x.squeeze(2): the axis goes if it has one element.
SQUEEZED = """g (float[N, 3, K] x, bool turns) => (float[A, B, C] y) {
    sizes = Shape(x) count = Gather(sizes, two) is_one = Equal(count, one)
    y = If (is_one) <
        then_branch = g1 () => (float[A, B] a) { s = Squeeze(x, two) a = Neg(s) },
        else_branch = g2 () => (float[A, B, C] b) {
            many = Greater(count, one)
            b = If (many) <
                then_branch = g3 () => (float[A, B, C] c) { c = Abs(x) },
                else_branch = g4 () => (float[A, B, C] d) { d = Identity(x) }> }> }"""
TURNED = """g (float[N, 3, 4] x, bool turns) => (float[N, 3, 4] y) {
    y = If (turns) <then_branch = g1 () => (float[N, 3, 4] a) { a = Neg(x) },
                    else_branch = g2 () => (float[N, 3, 4] b) { b = Abs(x) }> }"""
CONSTANTS = {"one": np.array([1]), "two": np.array([2])}
ALONE = Batching(None)


@pytest.mark.parametrize(("width", "kept"), [(1, {"Neg"}), (4, {"Abs"})])
def test_sizes_decide_on_branches_within_branches(width: int, kept: set[str]) -> None:
    model, feeds = parse(SQUEEZED, **CONSTANTS), {"x": noise(1, 3, width), "turns": np.array(False)}
    made = specialized(model, [feeds], ALONE)
    kinds = {node.op_type for node in made.graph}
    assert "If" not in kinds
    assert kinds & {"Neg", "Abs"} == kept
    np.testing.assert_array_equal(run(made, feeds)["y"], run(model, feeds)["y"])
    assert "If" in {node.op_type for node in model.graph}


def test_values_do_not_decide() -> None:
    feeds = {"x": noise(1, 3, 4), "turns": np.array(True)}
    assert "If" in {node.op_type for node in specialized(parse(TURNED), [feeds], ALONE).graph}


def test_nothing_is_decided_where_sizes_vary() -> None:
    model, feeds = parse(SQUEEZED, **CONSTANTS), {"x": noise(1, 3, 4), "turns": np.array(True)}
    assert specialized(model, [feeds], Batching(None, varies=True)) is model


def test_a_batch_of_another_size_does_not_take_another_branch() -> None:
    text = SQUEEZED.replace("Gather(sizes, two)", "Gather(sizes, zero)")
    model = parse(text, **CONSTANTS, zero=np.array([0]))
    feeds = {"x": noise(2, 3, 1), "turns": np.array(True)}
    assert "If" in {node.op_type for node in specialized(model, [feeds], Batching(2)).graph}


def test_lengths_of_recurrent_nodes_are_learnt_where_steps_are_written_out() -> None:
    text = "g (float[N,T,4] x) => (float[T,1,N,3] y) { s = Transpose<perm=[1,0,2]>(x) y = RNN<hidden_size=3>(s, w, r) }"
    model, feeds = parse(text, w=noise(1, 3, 4), r=noise(1, 3, 3)), {"x": noise(1, 5, 4)}
    assert specialized(model, [feeds], ALONE) is model
    (node,) = (node for node in specialized(model, [feeds], ALONE, unrolls=True).graph if node.op_type == "RNN")
    assert node.inputs[0] is not None
    assert node.inputs[0].shape == [5, 1, 4]
