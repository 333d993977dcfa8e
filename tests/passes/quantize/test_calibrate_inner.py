from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import Integer
from ptqc.notes import Level, is_cut_short
from ptqc.passes.quantize import moments
from ptqc.passes.quantize.calibrate import CalibrateInner
from ptqc.passes.quantize.phases import CalibrationStats
from ptqc.passes.quantize.solve_weights import SolveWeights
from ptqc.utils.deadline import Deadline

MIXING = noise(3, 16)  # inputs that move together leave room for errors that cancel
W, V, K = noise(16, 24, seed=1), noise(16, 24, seed=2), noise(8, 4, 3, 3, seed=3)
IF = """g (float[N, 16] x, bool c) => (float[N, 24] y) {
    y = If(c) <then_branch = t () => (float[N, 24] a) { r = Relu(x) a = MatMul(r, w) },
               else_branch = e () => (float[N, 24] b) { b = MatMul(x, v) }>
}"""
# Each iteration adds a row to what is read.
GROWING = """g (float[N, 16] x, int64 n, bool go) => (float[M, 24] z) {
    s = Loop(n, go, x) <body = b (int64 i, bool d, float[P, 16] h) => (bool f, float[Q, 16] k) {
        f = Identity(d)
        m = MatMul(h, w)
        a = ReduceMax<keepdims = 0>(m)
        p = Mul(x, a)
        k = Concat<axis = 0>(h, p)
    }>
    z = MatMul(s, v)
}"""
CONV = """g (float[1, 4, 5, 5] x, int64 n, bool go) => (float[1, 4, 5, 5] y) {
    y = Loop(n, go, x) <body = b (int64 i, bool d, float[1, 4, 5, 5] s) => (bool e, float[1, 4, 5, 5] t) {
        e = Identity(d)
        c = Conv<pads = [1, 1, 1, 1]>(s, w)
        f, g = Split<axis = 1, num_outputs = 2>(c)
        t = Tanh(f)
    }>
}"""


def mixed(seed: int) -> np.ndarray:
    return noise(4, 3, seed=seed) @ MIXING


def context_of(model: ir.Model, feeds: Sequence[Feeds], folder: Path, held: int = 16) -> CalibrationStats:
    samples = collect(feeds, input_specs(model), folder, 10_000)
    return CalibrationStats.of(model, samples[:-held], samples[-held:])


@pytest.fixture
def branches(tmp_path: Path) -> tuple[ir.Model, CalibrationStats]:
    """An If of two products, whose samples take the first branch alone."""
    model = parse(IF, w=W, v=V)
    feeds: list[Feeds] = [{"x": mixed(seed), "c": np.array(True)} for seed in range(48)]
    return model, context_of(model, feeds, tmp_path)


def test_moments_are_those_of_what_the_branch_reads(branches: tuple[ir.Model, CalibrationStats]) -> None:
    _, context = branches
    context = CalibrateInner().apply(context).output
    for result, seeds in ((context.moments, range(32)), (context.held_moments, range(32, 48))):
        rows = np.maximum(np.concatenate([mixed(seed) for seed in seeds]), 0)
        assert set(result) == {"w"}
        np.testing.assert_allclose(
            result["w"].second(centred=False)[0], rows.T @ rows / len(rows), rtol=1e-3, atol=1e-3
        )


def test_weights_are_fitted_to_what_the_branch_reads(branches: tuple[ir.Model, CalibrationStats]) -> None:
    """Otherwise twice the error is made at the output."""
    _, blind = branches
    observed = CalibrateInner().apply(blind).output
    rows = np.maximum(np.concatenate([mixed(seed) for seed in range(100, 400)]), 0)
    errors = []
    for each in (observed, blind):
        solved = SolveWeights((3,)).apply(each).output
        errors.append(float(((rows @ (solved.solutions["w", Integer(3)].weight - W)) ** 2).sum()))
    assert errors[0] < 0.5 * errors[1]


def test_the_weight_of_a_branch_that_no_sample_takes_is_solved_without_data(
    branches: tuple[ir.Model, CalibrationStats],
) -> None:
    _, context = branches
    context = CalibrateInner().apply(context).output
    context = SolveWeights((2, 4)).apply(context).output
    solution = context.solutions["v", Integer(4)]
    assert solution.scale.shape == (24,)
    relative = float(((solution.weight - V) ** 2).sum() / (V**2).sum())
    assert relative < 0.02
    assert context.errors["v", Integer(4)] == pytest.approx(relative, rel=1e-3)


def test_a_branch_that_no_sample_takes_is_remarked_on(branches: tuple[ir.Model, CalibrationStats]) -> None:
    (note,) = CalibrateInner().apply(branches[1]).notes
    assert (note.subject, note.level) == ("b", Level.WARNING)
    assert "no calibration sample enters the branch" in note.message
    assert "its weight v" in note.message


SHARED_WITH_OUTSIDE = """g (float[N, 16] x, bool c) => (float[N, 24] y, float[N, 24] z) {
    y = If(c) <then_branch = t () => (float[N, 24] a) { a = Relu(z) },
               else_branch = e () => (float[N, 24] b) { n = Neg(x) b = MatMul(n, w) }>
}"""


def test_a_branch_is_remarked_on_where_its_weight_is_that_of_a_layer_outside(tmp_path: Path) -> None:
    graph = SHARED_WITH_OUTSIDE.replace("    y = If", "    z = MatMul(x, w)\n    y = If")
    feeds: list[Feeds] = [{"x": mixed(seed), "c": np.array(True)} for seed in range(6)]
    (note,) = CalibrateInner().apply(context_of(parse(graph, w=W), feeds, tmp_path, 2)).notes
    assert note.subject == "b"
    feeds[5]["c"] = np.array(False)
    assert CalibrateInner().apply(context_of(parse(graph, w=W), feeds, tmp_path / "both", 2)).notes == ()


def test_convolutions_in_a_loop_see_every_iteration(tmp_path: Path) -> None:
    model = parse(CONV, w=K)
    feeds: list[Feeds] = [
        {"x": noise(1, 4, 5, 5, seed=seed), "n": np.array(3), "go": np.array(True)} for seed in range(6)
    ]
    context = context_of(model, feeds, tmp_path, 2)
    result = CalibrateInner().apply(context)
    context, notes = result.output, result.notes
    assert notes == ()
    assert context.moments["w"].count == 4 * 3 * 25
    (weight,) = context.weights
    assert moments.total_error(weight.inner[0].matrix(K), context.moments["w"].second()) > 0


def test_what_grows_from_iteration_to_iteration_is_told(tmp_path: Path) -> None:
    model = parse(GROWING, w=W, v=V)
    feeds: list[Feeds] = [{"x": mixed(seed), "n": np.array(3), "go": np.array(True)} for seed in range(6)]
    context = context_of(model, feeds, tmp_path, 2)
    result = CalibrateInner().apply(context)
    context, (note,) = result.output, result.notes
    assert note.level == Level.SKIPPED
    assert note.subject == "w"
    assert context.moments == context.held_moments == {}


def test_without_time_few_samples_are_looked_at(branches: tuple[ir.Model, CalibrationStats]) -> None:
    _, context = branches
    result = CalibrateInner().apply(replace(context, deadline=Deadline(0.0)))
    assert is_cut_short(result.notes)
    context = result.output
    assert context.is_thinned
    assert context.moments["w"].count == 4  # rows of one sample


def test_a_model_without_subgraphs_is_left_alone(tmp_path: Path) -> None:
    model = parse("g (float[N, 16] x) => (float[N, 24] y) { y = MatMul(x, w) }", w=W)
    context = context_of(model, [{"x": mixed(seed)} for seed in range(4)], tmp_path, 1)
    result = CalibrateInner().apply(context)
    context, notes = result.output, result.notes
    assert notes == ()
    assert not context.moments


SHARING = """g (float[4, 16] x, bool c) => (float[N, M] y) {
    y = If(c) <
        then_branch = yes () => (float[A, B] p) { r = Relu(x) a = MatMul(r, w) b = MatMul(r, v) p = Add(a, b) },
        else_branch = no () => (float[C, D] n) { r2 = Neg(x) n = MatMul(r2, w) }
    >
}"""


def test_a_weight_that_another_branch_uses_too_shares_nothing(tmp_path: Path) -> None:
    """Both weights read the same in one branch; in the other one is alone."""
    model = parse(SHARING, w=W, v=V)
    feeds: list[Feeds] = [{"x": mixed(seed), "c": np.array(seed % 2 == 0)} for seed in range(12)]
    result = CalibrateInner().apply(context_of(model, feeds, tmp_path, 4)).output.moments
    rows = [np.maximum(mixed(seed), 0) if seed % 2 == 0 else -mixed(seed) for seed in range(8)]
    for name, own in (("w", rows), ("v", rows[::2])):
        columns = np.concatenate(own)
        assert result[name].count == len(columns)
        second = result[name].second(centred=False)[0]
        np.testing.assert_allclose(second, columns.T @ columns / len(columns), rtol=1e-3, atol=1e-3)
