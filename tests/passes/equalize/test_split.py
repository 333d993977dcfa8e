from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, digests, quick, residual, samples
from onnx.reference import ReferenceEvaluator
from planted import CHANNELS, ROWS, planted, token_samples, tokens

import ptqc
import ptqc.passes.analyze
from ptqc.artifact.folder import Artifact
from ptqc.execution.onnxruntime import Runner
from ptqc.notes import Note
from ptqc.passes.base import Result
from ptqc.passes.equalize.outliers import Remedy
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.passes.quantize.prepare import CanonicalModel

DATA = samples(ROWS, CHANNELS, count=32)
OPTIONS: dict[str, Any] = {"bits": (4, 7)}


def without_splits(whole: CanonicalModel, *_: object) -> CanonicalModel:
    """In the place of the stage."""
    return whole


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The planted network with its wide channels split off."""
    return compiled(planted(300), DATA, tmp_path_factory.mktemp("split"), **OPTIONS)


@pytest.mark.slow
def test_more_arithmetic_is_on_integers_and_no_more_is_lost(
    split: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ptqc.passes.analyze, "with_splits", without_splits)
    whole = compiled(planted(300), DATA, tmp_path, **OPTIONS)
    kernels = [artifact.manifest["verification"]["integer_nodes"] for artifact in (split, whole)]
    losses = [artifact.manifest["activation_loss"] for artifact in (split, whole)]
    assert kernels[0] > kernels[1] or (kernels[0] == kernels[1] and losses[0] < losses[1]), losses
    assert max(losses) <= 0.02
    assert split.path.stat().st_size < 1.1 * whole.path.stat().st_size
    assert whole.manifest["split_channels"] == {}


@pytest.mark.long
def test_what_is_split_is_told(split: Artifact) -> None:
    assert split.manifest["activation_loss"] <= 0.02
    subjects = {note["subject"] for note in split.manifest["notes"] if note["step"] == ChooseSplits.name}
    assert subjects == {"n1", "n2"} == split.manifest["split_channels"].keys()


@pytest.mark.long
def test_why_the_wide_channels_stay_in_float_is_told(split: Artifact) -> None:
    messages = [note["message"] for note in split.manifest["notes"]]
    assert "MatMul computes in float: it multiplies the outlier channels of n1, which 8 bits cannot hold" in messages


def test_the_file_computes_what_the_network_computes(split: Artifact) -> None:
    feeds = {"x": samples(ROWS, CHANNELS, count=8, seed=99)}
    reference = np.asarray(ReferenceEvaluator(planted(300)).run(None, feeds)[0])  # type: ignore[index]
    result = Runner(ir.load(split.path)).run(feeds)["y"]
    assert np.abs(result - reference).max() < 0.1 * np.abs(reference).max()


def test_resolve_has_the_split_network(split: Artifact, tmp_path: Path) -> None:
    with quick():
        again = ptqc.resolve(split.folder, output=tmp_path / "again", cache=split.folder.parent / "cache")
    assert digests(again.folder) == digests(split.folder)


@pytest.mark.slow
def test_a_second_compile_takes_the_choice_from_the_store(split: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ChooseSplits, "apply")
    folder = split.folder.parent
    again = compiled(planted(300), DATA, folder, output=folder / "again", **OPTIONS)
    assert digests(again.folder) == digests(split.folder)


@pytest.mark.slow
def test_without_wide_channels_the_artifact_is_that_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = samples(3, 8, 8)
    looked = compiled(residual(), data, tmp_path / "looked", "30%", **OPTIONS)
    monkeypatch.setattr(ptqc.passes.analyze, "with_splits", without_splits)
    assert digests(looked.folder) == digests(compiled(residual(), data, tmp_path / "not", "30%", **OPTIONS).folder)


@pytest.mark.slow
def test_what_gains_nothing_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split, and scaled by rows, for no reason, with a limit that leaves everything in float."""

    def everything(_self: ChooseSplits, _given: AnalysisInput) -> Result[tuple[Remedy, ...]]:
        several = Remedy("n1", (0,)), Remedy("r1", by_row=True), Remedy("r2", (5, 9)), Remedy("n2", (3,), by_row=True)
        return Result(several, True, (Note(ChooseSplits.name, "n1", "split"),))

    options = {**OPTIONS, "activation_limit": 1e-12}
    monkeypatch.setattr(ChooseSplits, "apply", everything)
    tried = compiled(planted(1), DATA, tmp_path / "tried", **options)
    monkeypatch.setattr(ptqc.passes.analyze, "with_splits", without_splits)
    never = compiled(planted(1), DATA, tmp_path / "never", **options)
    assert tried.path.read_bytes() == never.path.read_bytes()
    subjects = [note["subject"] for note in tried.manifest["notes"] if "after all" in note["message"]]
    assert subjects == ["n1", "r1", "r2", "n2"]


@pytest.mark.slow
def test_nothing_is_split_where_the_budget_has_no_room_for_it(split: Artifact, tmp_path: Path) -> None:
    """The choice of another budget is in the store, and the smallest file with its splits has 42,167 bytes."""
    options = {**OPTIONS, "cache": split.folder.parent / "cache"}
    result = compiled(planted(300), DATA, tmp_path, "39000B", **options)
    assert result.path.stat().st_size <= 39_000
    assert result.manifest["split_channels"] == {}
    subjects = [note["subject"] for note in result.manifest["notes"] if "has no room" in note["message"]]
    assert subjects == ["n1", "n2"]


@pytest.mark.slow
def test_splits_that_a_budget_leaves_without_use_are_told(tmp_path: Path) -> None:
    result = compiled(planted(300), DATA, tmp_path, "0.0000001nat", **OPTIONS)
    assert result.manifest["verification"]["integer_nodes"] == 0
    assert result.manifest["split_channels"] == {}
    subjects = [note["subject"] for note in result.manifest["notes"] if "stays split without use" in note["message"]]
    assert subjects == ["n1", "n2"]


@pytest.fixture(scope="module")
def by_row(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The network whose tokens are wide."""
    return compiled(tokens(), token_samples(300), tmp_path_factory.mktemp("tokens"), **OPTIONS)


@pytest.mark.slow
def test_products_of_wide_tokens_are_on_integers(by_row: Artifact) -> None:
    assert by_row.manifest["scaled_rows"] == ["x", "r1"]
    assert by_row.manifest["activation_loss"] <= 0.02
    computed = {name: how for weight in by_row.plan["weights"] for name, how in weight["layers"].items()}
    assert computed["h1_by_row"] == computed["d1_by_row"] == "integer"


@pytest.mark.slow
def test_what_scales_rows_is_told_by_what_it_does(by_row: Artifact) -> None:
    notes = {note["subject"]: note["message"] for note in by_row.manifest["notes"] if note["step"] == "lower"}
    parts = [notes[f"r1_rows{part}"] for part in ("_sizes", "_largest", "_scale", "")]
    assert all(message.endswith(" computes in float: it finds a scale for each row of r1") for message in parts)


@pytest.mark.slow
def test_rows_of_other_sizes_than_those_seen(by_row: Artifact) -> None:
    feeds = {"x": token_samples(1e4, count=8)[::-1]}
    feeds["x"][0] = 0
    reference = np.asarray(ReferenceEvaluator(tokens()).run(None, feeds)[0])  # type: ignore[index]
    result = Runner(ir.load(by_row.path)).run(feeds)["y"]
    assert np.abs(result - reference).max() < 0.1 * np.abs(reference).max()


@pytest.mark.slow
def test_rows_are_resolved_and_compiled_again_from_the_store(
    by_row: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ChooseSplits, "apply")
    cache = by_row.folder.parent / "cache"
    with quick():
        resolved = ptqc.resolve(by_row.folder, output=tmp_path / "resolved", cache=cache)
    again = compiled(tokens(), token_samples(300), tmp_path, output=tmp_path / "again", cache=cache, **OPTIONS)
    assert digests(resolved.folder) == digests(by_row.folder) == digests(again.folder)
