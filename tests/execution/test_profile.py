"""Profiles: every node is charged to what it belongs to, and the charges add up to the whole."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL

from ptqc.errors import Interrupted
from ptqc.execution import speed
from ptqc.execution.speed import Subject, _by_node, _charged, _Node, kernel_events, undisturbed

FEEDS = {"x": noise(1, 3, 8, 8)}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ir.Model:
    monkeypatch.setattr(speed, "ROUNDS", (1, 1))
    return parse(RESIDUAL, **CONSTANTS)


def test_charges_add_up_to_the_whole(model: ir.Model) -> None:
    names = [str(node.outputs[0].name) for node in model.graph]
    before = [node.name for node in model.graph]
    (result,) = speed.profile([Subject(model, FEEDS, {name: name for name in names})], 0.01)
    assert sum(result.charges.values()) == pytest.approx(result.nanoseconds)
    assert set(result.charges) <= set(names)
    assert {node.outputs[0].name for node in model.graph if node.op_type in ("Conv", "Gemm")} & set(result.charges)
    assert [node.name for node in model.graph] == before


def test_several_models_are_timed_in_order(model: ir.Model) -> None:
    assert len(speed.latencies([Subject(model, FEEDS), Subject(ir.to_proto(model), FEEDS)], 0.01)) == 2


@pytest.mark.parametrize(("times", "mean"), [([3.0], 3), ([9.0, 1, 2], 1), ([8.0, 1, 2, 3, 90, 4], 1.5)])
def test_the_fastest_quarter(times: list[float], mean: float) -> None:
    assert undisturbed(times) == mean


def test_what_the_optimizer_added_goes_with_its_neighbours() -> None:
    nodes = [_Node("", op, (), [1.0]) for op in ("Transpose", "Conv", "ReorderOutput", "QuantizeLinear", "Transpose")]
    assert list(_charged(nodes, [None, "a", None, "q", None])) == ["a", "a", "q", "q", "q"]


def test_nodes_of_subgraphs_belong_to_the_node_that_runs_them() -> None:
    spans = [(";0;", 0, 5), (";1;", 5, 20), ("inner", 6, 4), ("inner", 12, 4), (";2;", 26, 3), (";0;", 40, 7)]
    events = [
        {"name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {"op_name": "Loop"}} for name, ts, dur in spans
    ]
    result = _by_node(events)
    assert Counter({node.name: len(node.times) for node in result}) == {";0;": 2, ";1;": 1, ";2;": 1}
    assert np.sum(result[0].times) == 12_000


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_profile_that_a_full_disk_cut_short_is_told(model: ir.Model, tmp_path: Path, share: float) -> None:
    runner = Subject(model, FEEDS).session(tmp_path)
    runner.run(FEEDS)
    path = Path(runner.session.end_profiling())
    assert all(event["name"].endswith("_kernel_time") for event in kernel_events(path))
    path.write_text(path.read_text()[: int(share * path.stat().st_size)])
    with pytest.raises(Interrupted, match=r"is not whole: .* Free some space there, or set TMPDIR"):
        kernel_events(path)
