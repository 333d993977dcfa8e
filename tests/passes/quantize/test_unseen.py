"""What is behind a branch that no sample enters stays in float, and the branch is remarked on."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, proto, samples, weight
from graphs import noise, parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.layers import find_layers
from ptqc.ir.sites import find_kernels, find_sites
from ptqc.notes import Level
from ptqc.passes.quantize.unseen import leave_unseen_in_float

GRAPH = """g (float[N,16] x, bool flag) => (float[N,8] y) {
    h = MatMul(x, v)
    t = If(flag) <then_branch = t1 () => (float[N,16] p) { p = MatMul(h, w) },
                  else_branch = e1 () => (float[N,16] q) { m = MatMul(h, w) q = Tanh(m) }>
    r = Relu(t)
    y = MatMul(r, u)
}"""
WEIGHTS = {"v": noise(16, 16), "w": noise(16, 16, seed=1), "u": noise(16, 8, seed=2)}


def spooled(model: ir.Model, feeds: list[Feeds], folder: Path) -> Samples:
    return collect(feeds, input_specs(model), folder, 100)


def quantizable(model: ir.Model) -> set[str]:
    kernels = find_kernels(model, find_layers(model))
    return {tensor for site in find_sites(model, kernels) for tensor in site.tensors}


@pytest.mark.parametrize("taken", [True, False])
def test_what_is_behind_is_not_quantized(taken: bool, tmp_path: Path) -> None:
    model = parse(GRAPH, **WEIGHTS)
    assert {"x", "r"} <= quantizable(model)
    samples_ = spooled(model, [{"x": noise(1, 16, seed=i), "flag": np.array(taken)} for i in range(6)], tmp_path)
    (note,) = leave_unseen_in_float(model, samples_)
    assert quantizable(model) == {"x"} | ({"h"} & quantizable(model))
    assert (note.subject, note.level) == ("t", Level.WARNING)
    assert f"enters the {'else' if taken else 'then'}_branch" in note.message


def test_branches_that_samples_enter_change_nothing(tmp_path: Path) -> None:
    model = parse(GRAPH, **WEIGHTS)
    before = quantizable(model)
    feeds: list[Feeds] = [{"x": noise(1, 16, seed=i), "flag": np.array(i == 5)} for i in range(6)]
    assert leave_unseen_in_float(model, spooled(model, feeds, tmp_path)) == []
    assert quantizable(model) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"If(flag)": "If(one)", "h = MatMul": "s = Shape<end=1>(x) d = Squeeze(s) one = Equal(d, d) h = MatMul"},
        {"p = MatMul(h, w)": "p = Neg(h)"},
    ],
    ids=["a condition on sizes", "no layer in the branch"],
)
def test_other_branches_are_left_alone(changes: dict[str, str], tmp_path: Path) -> None:
    graph = GRAPH
    for old, new in changes.items():
        graph = graph.replace(old, new)
    model = parse(graph, **WEIGHTS)
    taken = np.array(False)
    feeds: list[Feeds] = [{"x": noise(1, 16, seed=i), "flag": taken} for i in range(4)]
    assert leave_unseen_in_float(model, spooled(model, feeds, tmp_path)) == []


def test_the_branch_works_all_the_same(tmp_path: Path) -> None:
    """Ranges of the other branch, which ends in Tanh, would cut off what this one gives."""
    weights = {"v": weight(16, 16), "w": 2 * weight(16, 16, seed=1), "u": weight(16, 8, seed=2)}
    model = proto(GRAPH, **weights)
    data = [{"x": x[None], "flag": np.array(False)} for x in samples(16)]
    artifact = compiled(model, data, tmp_path, bits=(6, 7))
    assert any("enters the then_branch" in note["message"] for note in artifact.manifest["notes"])
    unseen = [{**feeds, "flag": np.array(True)} for feeds in data]
    pairs = [(Runner(model).run(feeds)["y"], artifact.run(feeds)["y"]) for feeds in unseen]
    assert relative([wanted for wanted, _ in pairs], [result for _, result in pairs]) < 0.06
