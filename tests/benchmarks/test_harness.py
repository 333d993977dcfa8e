"""The pure parts of the benchmarks: tables, children, agreement, ratios, counting kernels."""

import json
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import accuracy
import agreement
import compat
import harness
import latency
import numpy as np
import onnx
import pytest
import tasks
import without_avx512
from harness import ROOT, Column, in_child, number, percent, significant


def refuse(reason: str) -> None:
    raise ValueError(reason)


def write_artifact(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"source": {"name": "tiny_mlp.onnx"}}))
    (folder / "model.onnx").write_bytes(b"")
    return folder


def test_a_table_has_a_dash_where_a_value_is_missing() -> None:
    rows = [{"task": "a|b", "bytes": 1234567}, {"task": "c", "share": 0.13}]
    table = harness.markdown(
        rows, (Column("task", "task"), Column("size", "bytes", number(0)), Column("of float", "share", percent(2)))
    )
    assert table.splitlines() == [
        "| task | size | of float |",
        "| --- | --- | --- |",
        "| a\\|b | 1,234,567 | – |",
        "| c | – | 13.00 % |",
    ]


def test_numbers_are_written_as_asked() -> None:
    assert number(2, sign=True)(0.126) == "+0.13"
    assert significant(3)(0.00012345) == "0.000123"


@pytest.mark.parametrize(("text", "name"), [("13%", "13pct"), ("4.5MB", "4.5MB"), ("4.2 bit", "4.2-bit")])
def test_a_budget_becomes_part_of_a_file_name(text: str, name: str) -> None:
    assert harness.slug(text) == name


def test_a_child_returns_its_value_and_its_own_memory() -> None:
    ballast = bytearray(os.urandom(1)) * 200_000_000
    outcome = in_child(max, 2, 3)
    assert (outcome.value, outcome.error) == (3, None)
    assert outcome.peak_mb is not None
    assert outcome.peak_mb < len(ballast) / 1e6


def test_a_failure_in_a_child_is_an_outcome() -> None:
    assert in_child(int, "seven").error == "ValueError: invalid literal for int() with base 10: 'seven'"


def test_the_end_of_a_child_is_an_outcome() -> None:
    assert in_child(os._exit, 7).error == "the process ended with exit code 7"


def test_an_error_is_described_in_one_line() -> None:
    with pytest.raises(ValueError, match="first") as caught:
        refuse("first\n  second")
    assert harness.describe(caught.value) == "ValueError: first second"


def test_artifacts_are_found_in_a_folder_and_given_directly(tmp_path: Path) -> None:
    first, second = write_artifact(tmp_path / "all" / "a"), write_artifact(tmp_path / "b")
    (tmp_path / "all" / "cache").mkdir()
    assert harness.artifacts_below([tmp_path / "all", second]) == [first, second]


def test_an_artifact_belongs_to_the_task_of_its_model(tmp_path: Path) -> None:
    artifact, known = write_artifact(tmp_path / "a"), tasks.all_tasks()
    assert tasks.task_of(artifact, known.values()) is known["tiny_mlp"]
    assert tasks.task_of(artifact, [known["tiny_gru_tagger"]]) is None


def test_own_tasks_give_single_samples() -> None:
    task = tasks.chosen("digits_resnet_dw")[0]
    assert [feeds["input"].shape for feeds in task.calibration(3)] == [(1, 1, 16, 16)] * 3
    assert task.higher_is_better
    assert task.has_classes


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="unknown task nothing; known: digits_resnet_dw"):
        tasks.chosen("tiny_mlp,nothing")


def test_equal_outputs_agree() -> None:
    result = agreement.Agreement(has_classes=True)
    scores = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0]], np.float32)
    result.add([scores], [scores])
    assert result.to_json() == {"predictions": 2, "top1_agreement": 1.0, "kl_nat": 0.0, "relative_error": 0.0}


def test_agreement_counts_predictions_and_divergence() -> None:
    actual = agreement.Agreement(has_classes=True)
    real, other = np.array([[0.75, 0.25]], np.float32), np.array([[0.25, 0.75]], np.float32)
    actual.add([real], [other])
    result = actual.to_json()
    assert result["top1_agreement"] == 0
    assert result["kl_nat"] == pytest.approx(0.5 * np.log(3))
    assert result["relative_error"] == pytest.approx(np.sqrt(2 * 0.5**2 / (0.75**2 + 0.25**2)))


def test_scores_and_probabilities_mean_the_same() -> None:
    scores = np.array([[2.0, 1.0, -1.0]])
    probabilities = np.exp(agreement.log_probabilities(scores))
    assert agreement.log_probabilities(probabilities) == pytest.approx(np.log(probabilities))


def test_class_scores_ignore_empty_image_axes() -> None:
    assert agreement.class_scores(np.zeros((2, 5, 1, 1), np.float32)).shape == (2, 5)
    assert agreement.class_scores(np.zeros((1, 7, 5), np.float32)).shape == (7, 5)


def test_comparing_hands_on_the_tested_model_outputs() -> None:
    result = agreement.Agreement(has_classes=False)
    run = agreement.compared(lambda feeds: [feeds["x"]], lambda feeds: [feeds["x"] * 1.5], result)
    assert run({"x": np.ones(4, np.float32)})[0].tolist() == [1.5] * 4
    assert result.to_json()["relative_error"] == pytest.approx(0.5)


def test_infeasible_names_the_largest_blockers() -> None:
    text = accuracy.infeasible(250, 1000, [["a", 100], ["b", 50], ["c", 40], ["d", 1]])
    assert text == "infeasible: at least 250 B (25.00 %): a 100 B, b 50 B, c 40 B"


def test_a_ratio_is_taken_round_by_round() -> None:
    # Round 2 was slow for both; round by round the second is always twice as slow.
    assert latency.ratio([2.0, 20.0, 2.2], [1.0, 10.0, 1.1]) == pytest.approx(2)
    assert latency.ratio([1.0], None) is None


@pytest.mark.parametrize(
    ("flags", "isa", "kernels"),
    [
        (["avx2"], "", "AVX2"),
        (["avx2", "avx512f", "avx512_vnni"], "", "AVX-512 VNNI"),
        (["avx2", "avx512f", "avx512_vnni", "amx_int8"], "", "AMX"),
        (["avx2", "avx512f", "avx512_vnni"], "avx2", "AVX2"),
    ],
)
def test_speed_is_of_the_widest_instructions(flags: list[str], isa: str, kernels: str) -> None:
    assert latency.instructions({"flags": flags}, isa) == kernels


def test_every_entrant_runs_in_every_round() -> None:
    calls: list[str] = []
    entrants = {(name, "x"): partial(latency.timed, partial(calls.append, name)) for name in ("a", "b")}
    times = latency.take_turns(entrants, blocks=3, seconds=0.0)
    assert {name: len(blocks) for name, blocks in times.items()} == {("a", "x"): 3, ("b", "x"): 3}
    # Two to learn the speed, then in each round one to warm up and one that counts.
    assert calls == [*"aabb", *"aabb", *"bbaa", *"aabb"]


def test_kernels_are_counted_by_kind() -> None:
    operators = {"QLinearConv": 3, "QGemm": 1, "Conv": 2, "Relu": 9, "BitShift": 4}
    assert compat.count_kernels(operators) == {"integer_kernels": 4, "float_layers": 2}


def test_what_is_computed_anew_in_every_run_is_counted() -> None:
    branch = "{ z = Mul(u, w) }"
    graph = onnx.parser.parse_graph(f"""g (float[2] x, bool b) => (float[2] y) <float[2] w = {{1, 2}}> {{
        c = Constant <value = float[2] {{3, 4}}> ()
        u = Add(w, c)
        v = Neg(u)
        r = Mul(x, v)
        s = If (b) <then_branch = t () => (float[2] z) {branch}, else_branch = e () => (float[2] z) {branch}>
        y = Add(r, s)
    }}""")
    assert [node.op_type for node in compat.not_folded(graph)] == ["Add", "Neg", "Mul", "Mul"]


def test_verdict_names_what_changed() -> None:
    installed = {"integer_kernels": 4, "float_layers": 0, "not_folded": 0}
    older = {"integer_kernels": 3, "float_layers": 1, "not_folded": 2}
    assert compat.verdict(installed, installed) == "as planned"
    assert compat.verdict(older, installed) == "unpacks at every run, -1 integer kernels, +1 float layers"
    assert compat.verdict({"error": "no"}, installed) == "does not run: no"


def test_difference_is_zero_only_for_equal_outputs() -> None:
    wanted = {"y": np.array([3.0, 4.0], np.float32)}
    assert compat.difference(wanted, wanted) == {"relative_difference": 0, "largest_difference": 0}
    result = compat.difference(wanted, {"y": np.array([3.0, 5.0], np.float32)})
    assert result == {"relative_difference": pytest.approx(0.2), "largest_difference": 1}


def test_an_onnx_file_is_a_task_without_data() -> None:
    (task,) = tasks.chosen(str(ROOT / "models" / "tiny_mlp.onnx"))
    first, second = task.calibration(2)
    assert task.unit == ""
    for name, array in first.items():
        assert array.shape == second[name].shape
        assert (array.dtype, len(array)) == (np.float32, 1)


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="is about x86-64 Linux")
def test_the_runtime_without_avx512_runs(tmp_path: Path) -> None:
    without_avx512.copy(tmp_path)
    code = """
import sys, without_avx512
from pathlib import Path
without_avx512.use(Path(sys.argv[1]))
import harness, numpy as np, onnxruntime
assert onnxruntime.__file__.startswith(sys.argv[1])
harness.open_model(sys.argv[2])
"""
    model, folder = ROOT / "models" / "tiny_mlp.onnx", str(ROOT / "benchmarks")
    subprocess.run([sys.executable, "-c", code, tmp_path, model], env={**os.environ, "PYTHONPATH": folder}, check=True)
