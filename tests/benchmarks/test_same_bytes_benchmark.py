"""What counts as the same: every delivered file, without times and words; what was compiled is not compiled again."""

import json
from pathlib import Path
from typing import Any

import pytest
import same_bytes
from same_bytes import Mode, Runner, State

MANIFEST = {"notes": ["slow"], "latency": {"measured_ms": 1.5, "predicted_ms": 1.0}, "file": {"bytes": 7}}


def artifact(folder: Path, manifest: dict[str, Any], model: bytes = b"model") -> dict[str, str]:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "run.json").write_text(str(folder))
    (folder / "model.onnx").write_bytes(model)
    return same_bytes.digests(folder)


def test_times_and_words_do_not_count(tmp_path: Path) -> None:
    other = {"notes": ["slower"], "latency": {"measured_ms": 9.5, "predicted_ms": 1.0}, "file": {"bytes": 7}}
    first = artifact(tmp_path / "a", MANIFEST)
    assert artifact(tmp_path / "b", other) == first
    assert sorted(first) == ["manifest.json", "model.onnx"]


@pytest.mark.parametrize(
    ("manifest", "model"),
    [
        ({**MANIFEST, "file": {"bytes": 8}}, b"model"),
        ({**MANIFEST, "latency": {"measured_ms": 1.5, "predicted_ms": 1.1}}, b"model"),
        (MANIFEST, b"other"),
    ],
)
def test_numbers_and_files_count(tmp_path: Path, manifest: dict[str, Any], model: bytes) -> None:
    assert artifact(tmp_path / "a", MANIFEST) != artifact(tmp_path / "b", manifest, model)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """States and budgets that were compiled; the state "new" delivers another file for 20 %."""
    jobs: list[tuple[str, str]] = []

    def in_state(state: State, job: dict[str, Any]) -> dict[str, Any]:
        budget = job["options"]["budget"]
        jobs.append((state.name, budget))
        is_other = state.name == "new" and budget == "20%"
        return {"files": {"model.onnx": "1" if is_other else "0", "plan.json": "2"}, "error": None}

    monkeypatch.setattr(same_bytes, "_in_state", in_state)
    return jobs


def test_rows_that_are_there_are_not_compiled_again(tmp_path: Path, compiles: list[tuple[str, str]]) -> None:
    modes = [Mode("size", {"budget": "25%"}), Mode("resolve", {"budget": "20%"}, resolves=True)]
    old, new = (State(tmp_path, name) for name in ("old", "new"))
    runner = Runner(tmp_path, 8)
    rows = list(runner.compare("tiny_mlp", modes[:1], old, new))
    rows += runner.compare("tiny_mlp", modes, old, new)
    assert [row["different"] for row in rows] == [[], [], ["model.onnx"]]
    assert compiles == [("old", "25%"), ("new", "25%"), ("old", "20%"), ("new", "20%")]


def test_times_are_recorded_by_the_first_state_alone(tmp_path: Path, compiles: list[tuple[str, str]]) -> None:
    old, new = (State(tmp_path, name) for name in ("old", "new"))
    modes = [Mode("record", {"budget": "9s"}, measures=True)]
    assert list(Runner(tmp_path, 8).compare("tiny_mlp", modes, old, new)) == []
    assert compiles == [("old", "9s")]


def test_modes_of_decoders_are_for_decoders(tmp_path: Path, compiles: list[tuple[str, str]]) -> None:
    state = State(tmp_path, "old")
    modes = [Mode("caches", {"budget": "25%"}, of_decoders=True), Mode("cpu", {"budget": "30%"}, of_decoders=False)]
    (tmp_path / "tiny_llama.onnx").touch()
    rows = [
        row for name in ("tiny_mlp", "tiny_llama") for row in Runner(tmp_path, 8).compare(name, modes, state, state)
    ]
    assert [(row["network"], row["mode"]) for row in rows] == [("tiny_mlp", "cpu"), ("tiny_llama", "caches")]
    assert len(compiles) == 2


def test_budgets_are_filled_with_figures(tmp_path: Path) -> None:
    size = {"memory": {"needed_bytes": 1000}, "results": {"loss": 0.01, "loss_unit": "nat"}}
    artifact(tmp_path / "size", size)
    artifact(tmp_path / "record", {"latency": {"predicted_ms": 2.0}})
    options = {"budget": ["30%", "{latency_us}us", "{memory}Bram", "{loss}{loss_unit}"], "times": "record"}
    assert same_bytes._filled(options, tmp_path) == {
        "budget": ["30%", "1940us", "950Bram", "0.02nat"],
        "times": str(tmp_path / "record"),
    }


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"unknown mode speed; known: size, cpu"):
        same_bytes.chosen("size,speed", ["size", "cpu"], "mode")
