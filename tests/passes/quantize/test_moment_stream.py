"""A model beyond memory is observed in one pass, block by block, up to the 16 bits in which values wait."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import noise, parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError
from ptqc.execution import tensors
from ptqc.ir import external
from ptqc.passes.quantize import moment_stream
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.moment_stream import MomentStream
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.passes.quantize.solve_weights import SolveWeights
from ptqc.utils.deadline import Deadline

# u is read before and behind v, and the input x by layers of two blocks.
GRAPH = """g (float[N,L,12] x) => (float[N,L,6] y) {
    a = MatMul(x, u) b = Relu(a) c = MatMul(b, v) d = Add(c, x) e = Relu(d) f = MatMul(e, u) h = Add(a, f)
    i = MatMul(x, t) j = Add(h, i) y = MatMul(j, w)
}"""


def setting(folder: Path) -> AnalysisInput:
    model = parse(GRAPH, u=noise(12, 20), v=noise(20, 12, seed=1), w=noise(20, 6, seed=2), t=noise(12, 20, seed=3))
    feeds = [{"x": noise(1, 9, 12, seed=i)} for i in range(40)]
    samples: Samples = replace(collect(feeds, input_specs(model), folder, 40), batchable=True)
    return replace(AnalysisInput.of(model, samples[8:], samples[:8]), sites=())


def observed(folder: Path) -> CalibrationStats:
    return Calibrate("minmax").apply(setting(folder)).output


@pytest.fixture
def beyond_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    monkeypatch.setattr(moment_stream, "SMALL_BLOCK_BYTES", 1)
    monkeypatch.setattr(tensors, "SMALL", 0)


@pytest.mark.usefixtures("beyond_memory")
def test_moments_are_those_of_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = observed(tmp_path / "stream")
    assert isinstance(value.later, MomentStream)
    assert value.later.blocks == [("u",), ("v",), ("t",), ("w",)]
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 10**9)
    whole = observed(tmp_path / "whole")
    assert whole.later is None
    assert value.macs == whole.macs
    for (name,) in value.later.blocks:
        assert value.later.observe([name], value, Deadline())
        for result, wanted in (
            (value.moments[name], whole.moments[name]),
            (value.held_moments[name], whole.held_moments[name]),
        ):
            assert result.count == wanted.count
            assert np.allclose(result.mean, wanted.mean, atol=2e-3)
            assert np.allclose(result.second(), wanted.second(), rtol=2e-3, atol=2e-3 * wanted.second().max())


@pytest.mark.usefixtures("beyond_memory")
def test_blocks_may_be_left_out(tmp_path: Path) -> None:
    """Those that an earlier compile solved."""
    every, some = observed(tmp_path / "every"), observed(tmp_path / "some")
    assert every.later is not None
    assert some.later is not None
    for name in ("u", "v", "t", "w"):
        every.later.observe([name], every, Deadline())
    some.later.observe(["w"], some, Deadline())
    assert np.allclose(some.moments["w"].second(), every.moments["w"].second(), rtol=1e-3, atol=0.5)


@pytest.mark.usefixtures("beyond_memory")
def test_nothing_waits_that_nobody_reads(tmp_path: Path) -> None:
    value = observed(tmp_path)
    assert isinstance(value.later, MomentStream)
    held = []
    for (name,) in value.later.blocks:
        value.later.observe([name], value, Deadline())
        held.append({key for batches in value.later._batches for batch in batches for key in batch.values})
    # v's input was passed by on the way to the second reader of u.
    assert held == [{"x", "a", "b", "e"}, {"x", "a", "e"}, {"x", "a", "e"}, {"j"}]


@pytest.mark.usefixtures("beyond_memory")
def test_samples_without_time_are_left_out_for_good(tmp_path: Path) -> None:
    value = observed(tmp_path)
    assert value.later is not None
    assert not value.later.observe(["u"], value, Deadline(0.0))
    assert 0 < value.moments["u"].count < 32 * 9
    assert value.later.observe(["v"], value, Deadline())
    assert value.moments["v"].count == 8 * 9


@pytest.mark.usefixtures("beyond_memory")
def test_weights_are_solved_as_from_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved = SolveWeights((3,)).apply(observed(tmp_path / "stream")).output
    assert not any(moments.gram.size for moments in solved.moments.values())
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 10**9)
    whole = SolveWeights((3,)).apply(observed(tmp_path / "whole")).output
    assert solved.errors.keys() == whole.errors.keys()
    for key, error in whole.errors.items():
        assert solved.errors[key] == pytest.approx(error, rel=0.1)


@pytest.mark.usefixtures("beyond_memory")
def test_a_sample_that_the_model_refuses_is_named(tmp_path: Path) -> None:
    graph = "g (float[N,L,4] x) => (float[1,10,3] y) { e = Reshape(x, k) y = MatMul(e, w) }"
    model = parse(graph, k=np.array([1, 10, 4]), w=noise(4, 3))
    feeds = [{"x": noise(1, length, 4)} for length in (10, 10, 10, 9, 10, 10)]
    samples = collect(feeds, input_specs(model), tmp_path, 6)
    value = Calibrate().apply(replace(AnalysisInput.of(model, samples[:5], samples[5:]), sites=())).output
    assert value.later is not None
    with pytest.raises(CalibrationError, match=r"samples\[3\]"):
        value.later.observe(["w"], value, Deadline())
