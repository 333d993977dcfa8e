"""Second moments by blocks of weights are those that all weights have together."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import noise, parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.ir import external
from ptqc.passes.quantize import moment_stream
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.moment_stream import blocks_of
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.passes.quantize.solve_weights import SolveWeights
from ptqc.utils.deadline import Deadline

GRAPH = """g (float[N,L,12] x) => (float[N,L,6] y) {
    a = MatMul(x, u) b = Relu(a) c = MatMul(b, v) d = Add(c, x) e = Relu(d) f = MatMul(e, u) h = Add(a, f)
    y = MatMul(h, w)
}"""


def setting(folder: Path) -> AnalysisInput:
    """u is read by two layers, one before and one behind that of v."""
    model = parse(GRAPH, u=noise(12, 20), v=noise(20, 12, seed=1), w=noise(20, 6, seed=2))
    feeds = [{"x": noise(1, 9, 12, seed=i)} for i in range(40)]
    samples: Samples = replace(collect(feeds, input_specs(model), folder, 40), batchable=True)
    return AnalysisInput.of(model, samples[8:], samples[:8])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 1)
    monkeypatch.setattr(moment_stream, "SMALL_BLOCK_BYTES", 1)


def test_a_block_has_at_least_one_weight_and_at_most_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = setting(tmp_path)
    assert blocks_of(value) == [("u", "v", "w")]
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 2 * 4 * (12**2 + 20**2))
    assert blocks_of(value) == [("u", "v"), ("w",)]
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 1)
    assert blocks_of(value) == [("u",), ("v",), ("w",)]


def observed(folder: Path) -> CalibrationStats:
    return Calibrate("minmax").apply(setting(folder)).output


@pytest.mark.parametrize("limit", [1, 10**9])
def test_moments_of_blocks_are_those_of_the_whole(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit where the model is in memory, up to the sums that ONNX Runtime orders otherwise where it is not."""
    whole = observed(tmp_path / "whole")
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", limit)
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 1)
    monkeypatch.setattr(moment_stream, "SMALL_BLOCK_BYTES", 1)
    value = observed(tmp_path / "blocks")
    assert value.later is not None
    assert value.ranges == whole.ranges
    for name in ("v", "w"):
        assert not value.moments[name].gram.size
        assert np.array_equal(value.moments[name].mean, whole.moments[name].mean)
        assert value.later.observe([name], value, Deadline())
        for result, wanted in (
            (value.moments[name], whole.moments[name]),
            (value.held_moments[name], whole.held_moments[name]),
        ):
            assert result.count == wanted.count
            if limit == 1:
                assert np.allclose(result.second(), wanted.second(), rtol=1e-4, atol=1e-4)
            else:
                assert np.array_equal(result.second(), wanted.second())
    assert np.array_equal(value.moments["u"].second(), whole.moments["u"].second())


@pytest.mark.usefixtures("small_blocks")
def test_weights_are_solved_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value, held = observed(tmp_path / "blocks"), list[set[str]]()
    right = moment_stream.LaterMoments.observe

    def observe(self: moment_stream.LaterMoments, names: list[str], seen: CalibrationStats, deadline: Deadline) -> bool:
        result = right(self, names, seen, deadline)
        held.append({name for name, moments in seen.moments.items() if moments.gram.size})
        return result

    monkeypatch.setattr(moment_stream.LaterMoments, "observe", observe)
    monkeypatch.setattr("ptqc.passes.quantize.solve_weights.TOGETHER", 1)
    solved = SolveWeights((3,)).apply(value).output
    assert held == [{"u"}, {"v"}, {"w"}]
    monkeypatch.undo()
    whole = SolveWeights((3,)).apply(observed(tmp_path / "whole")).output
    for key, solution in whole.solutions.items():
        assert np.array_equal(solved.solutions[key].codes, solution.codes)
        assert np.array_equal(solved.solutions[key].scale, solution.scale)
    assert solved.errors == whole.errors


@pytest.mark.usefixtures("small_blocks")
def test_what_there_is_no_time_to_observe_is_not_kept_as_the_whole(tmp_path: Path) -> None:
    value, cut_short = observed(tmp_path), dict[str, bool]()

    class Cache:
        def find(self, weights: object) -> None:  # noqa: ARG002
            return None

        def put(self, weights: object, candidates: dict[str, object], cut: bool = False) -> dict[str, object]:  # noqa: ARG002
            cut_short.update(dict.fromkeys(candidates, cut))
            return candidates

    short = replace(value, deadline=Deadline(0.0))
    SolveWeights((3,), Cache()).apply(short)  # type: ignore[arg-type]
    assert cut_short["v"]
    assert cut_short["w"]


SHARED = """g (float[N,L,12] x) => (float[N,L,6] y) {
    a = MatMul(x, u) b = MatMul(x, v) c = Add(a, b) d = Relu(c) y = MatMul(d, w)
}"""


def test_moments_that_weights_share_count_once_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(SHARED, u=noise(12, 20), v=noise(12, 20, seed=1), w=noise(20, 6, seed=2))
    value = AnalysisInput.of(model, [], [])  # type: ignore[arg-type]
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 2 * 4 * 12**2)
    assert blocks_of(value) == [("u", "v"), ("w",)]
    monkeypatch.setattr(moment_stream, "BLOCK_BYTES", 2 * 4 * (12**2 + 20**2))
    assert blocks_of(value) == [("u", "v", "w")]
