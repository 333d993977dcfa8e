"""The pure parts of the comparison with other quantizers: packing samples, reading answers, counting bytes."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import peers
import pytest
import tasks
from harness import Outcome
from install_peers import STEPS
from onnx import TensorProto, helper

from ptqc.utils.store import write_npz

sys.path.append(str(peers.SCRIPTS))
import recipe


def write_model(path: Path, **where: Any) -> Path:
    """A model that adds 1,000 floats to its input."""
    weight = onnx.numpy_helper.from_array(np.ones(1000, np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph), path, **where)
    return path


def setting(folder: Path) -> peers.Setting:
    arguments = argparse.Namespace(peers=folder / "none", artifacts=folder, effort=1.0, timeout=1.0)
    return peers.Setting(tasks.chosen("tiny_mlp")[0], folder / "samples.npz", Outcome(1.0, None, 0.0, None), arguments)


def test_a_recipe_gets_the_samples_in_their_order(tmp_path: Path) -> None:
    samples = [{"a:b": np.full((1, length), length), "c": np.zeros(1)} for length in range(12, 0, -1)]
    write_npz(tmp_path / "samples.npz", peers.pack(samples))
    result = recipe.read_samples(tmp_path / "samples.npz")
    assert [feeds["a:b"].shape for feeds in result] == [feeds["a:b"].shape for feeds in samples]
    assert [feeds["a:b"][0, 0] for feeds in result] == list(range(12, 0, -1))


def test_batches_hold_every_sample_once() -> None:
    samples = [{"x": np.full((1, 2), value)} for value in range(5)]
    result = recipe.batches(samples, 2)
    assert [len(feeds["x"]) for feeds in result] == [2, 2, 1]
    assert np.concatenate([feeds["x"] for feeds in result])[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_effort_is_a_share_of_the_recommended_steps() -> None:
    job = recipe.Job(Path("m"), [], Path("t"), 0.1)
    assert (job.steps(15_000), job.steps(3)) == (1500, 1)


def test_the_reader_gives_each_sample_and_then_none() -> None:
    samples = [{"x": np.zeros(1)}, {"x": np.ones(1)}]
    reader = recipe.Reader(samples)
    assert [reader.get_next() for _ in range(3)] == [*samples, None]
    reader.rewind()
    assert reader.get_next() is samples[0]


@pytest.mark.parametrize(
    ("stdout", "stderr", "row"),
    [
        ('noise\n{"seconds": 2.5, "note": "n"}\n', "", {"seconds": 2.5, "note": "n"}),
        ('{"version": "p 1", "error": "E: no"}\n', "", {"version": "p 1", "note": "failed: E: no"}),
        ("noise\n", "Killed\n  here", {"note": "failed: ended with exit code 9: Killed here"}),
    ],
)
def test_what_a_recipe_says_becomes_part_of_a_row(stdout: str, stderr: str, row: dict[str, object]) -> None:
    assert peers.answer(stdout, stderr, 9) == row


def test_bytes_include_the_files_of_external_tensors(tmp_path: Path) -> None:
    inside = write_model(tmp_path / "inside.onnx")
    outside = write_model(tmp_path / "outside.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    assert peers.written_bytes(inside) == inside.stat().st_size > 4000
    assert peers.written_bytes(outside) == outside.stat().st_size + (tmp_path / "data.bin").stat().st_size > 4000


def test_a_peer_that_is_not_installed_is_a_row(tmp_path: Path) -> None:
    row = peers.peer_row("aimet:w4a8", setting(tmp_path))
    assert row == {"task": "tiny_mlp", "peer": "aimet w4a8", "note": "not installed"}


def test_every_recipe_has_a_script_and_an_environment() -> None:
    for name in peers.RECIPES:
        peer, _ = name.split(":")
        assert peer in STEPS
        assert (peers.SCRIPTS / f"{peer}_recipes.py").is_file()


def test_both_notes_of_a_row_are_kept() -> None:
    assert peers.joined({"bytes": 9, "note": "a"}, {"note": "b"}) == {"bytes": 9, "note": "a; b"}
    assert peers.joined({"bytes": 9}, {"ptqc_bytes": 8}) == {"bytes": 9, "ptqc_bytes": 8}


def test_ptqc_is_built_with_what_the_command_line_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--peers", str(tmp_path), "--artifacts", str(tmp_path)])
    arguments = peers.parse()
    arguments.cache = str(tmp_path / "cache")
    size = tasks.chosen("tiny_mlp")[0].path.stat().st_size // 4
    row = peers.ptqc_row(size, None, replace(setting(tmp_path), arguments=arguments))
    assert "note" not in row
    assert row["ptqc_bytes"] <= size
    assert row["ptqc_relative_error"] < 0.5


def test_nothing_is_recorded_where_files_of_other_tools_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--peers", str(tmp_path), "--record"])
    monkeypatch.setattr(peers, "saturates", lambda: False)
    assert peers.parse().record
    monkeypatch.setattr(peers, "saturates", lambda: True)
    with pytest.raises(SystemExit):
        peers.parse()
    assert "saturate on this processor" in capsys.readouterr().err
