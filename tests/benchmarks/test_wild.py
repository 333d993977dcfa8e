"""The benchmark of foreign models: its list, its judges, and what it makes of a compile's end."""

import argparse
import ast
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
import wild
from onnx import helper
from wild_environments import ENVIRONMENT_OF, STEPS
from wild_judges import KINDS, Judgement, as_array, judge
from wild_list import SCRIPTS, Model, chosen, listed

MODELS, LEAST = listed()


@pytest.fixture(scope="module")
def common() -> ModuleType:
    """The module that recipes share; they are no package and run in other environments."""
    specification = importlib.util.spec_from_file_location("wild_common", SCRIPTS / "common.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["wild_common"] = module
    specification.loader.exec_module(module)
    return module


def defined(recipe: str) -> set[str]:
    """Names that a recipe file defines, without importing what it needs."""
    body = ast.parse((SCRIPTS / f"{recipe}.py").read_text(encoding="utf-8")).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    targets = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    return functions | {target.id for target in targets if isinstance(target, ast.Name)}


# -- the list


def test_every_listed_model_has_a_recipe() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert model.name in defined(model.recipe), model
        assert ENVIRONMENT_OF[model.recipe] in STEPS


def test_the_list_is_as_wide_as_it_promises() -> None:
    assert len(MODELS) >= 40
    assert len({model.exporter.split(" (")[0] for model in MODELS}) >= 5
    assert {model.opset for model in MODELS} >= {7, 24}
    features = " ".join(feature for model in MODELS for feature in model.features)
    assert all(wanted in features for wanted in ("float16", "external data", "free height and width"))


def test_every_family_can_reach_what_it_has_to() -> None:
    able = Counter(model.family for model in MODELS if model.refused is None)
    assert LEAST.keys() == able.keys()
    assert all(able[family] >= count for family, count in LEAST.items())
    assert sum(LEAST.values()) >= 36


def test_packages_are_pinned_and_outputs_are_of_known_kinds() -> None:
    assert all("==" in model.package for model in MODELS if model.package)
    assert {kind.split(":")[0] for model in MODELS for kind in model.outputs} <= KINDS.keys() | {"yolo"}


def test_an_unknown_model_is_named() -> None:
    assert [model.name for model in chosen("shapes_vit,nudenet", MODELS)] == ["shapes_vit", "nudenet"]
    assert {model.family for model in chosen("ocr", MODELS)} == {"ocr"}
    with pytest.raises(SystemExit, match="no model or family yolo"):
        chosen("yolo", MODELS)


# -- judges


def one(kind: str, real: np.ndarray, result: np.ndarray) -> Judgement:
    """The one judgement of one output in one sample."""
    (judgement,) = judge([kind], ["y"], [[real]], [[result]])
    return judgement


def test_classes_are_compared_along_their_axis() -> None:
    real = np.zeros((2, 3, 50))
    real[:, 1] = 1
    result = real.copy()
    result[0, :, 0] = (2, 1, 0)
    assert one("classes:1", real, result) == Judgement("y", "classes", 0.99)
    assert one("classes:1", real, result).agrees
    assert not one("classes:1", real, np.roll(real, 1, 1)).agrees


def test_a_large_offset_earns_no_decibels() -> None:
    real = np.random.default_rng(0).normal(size=1000)
    noise = np.random.default_rng(1).normal(size=1000) * 0.1
    assert one("values", real, real + noise).figure == pytest.approx(20, abs=0.5)
    assert one("values", real + 1000, real + 1000 + noise).figure == pytest.approx(20, abs=0.5)


def test_what_is_not_a_number_never_agrees() -> None:
    real = np.ones((4, 3))
    for kind in ("values", "image", "embedding"):
        assert not one(kind, real, np.full((4, 3), np.nan)).agrees


def test_boxes_do_not_drown_class_scores() -> None:
    rng = np.random.default_rng(0)
    real = np.concatenate([rng.uniform(0, 300, (1, 4, 100)), rng.uniform(0, 1, (1, 6, 100))], 1)
    result = real.copy()
    result[:, 4:] = 0.5
    boxes, scores = judge(["yolo:1"], ["out"], [[real]], [[result]])
    assert boxes.agrees
    assert not scores.agrees
    assert (boxes.output, scores.output) == ("out boxes", "out classes")


def test_a_pitch_counts_where_the_float_model_is_sure() -> None:
    pitch, sure = np.array([[440.0, 440.0, 100.0]]), np.array([[0.9, 0.8, 0.1]])
    result = np.array([[440.0 * 2 ** (40 / 1200), 440.0 * 2 ** (60 / 1200), 900.0]])
    figures = [
        judgement.figure
        for judgement in judge(["pitch:1", "values"], ["f", "c"], [[pitch], [sure]], [[result], [sure]])
    ]
    assert figures[0] == 0.5
    assert figures[1] > 100


def test_the_other_kinds_on_known_answers() -> None:
    assert one("mask:0.3", np.array([0.1, 0.4, 0.5, 0.9]), np.array([0.4, 0.2, 0.5, 0.9])).figure == 0.5
    assert one("binary", np.array([0.1, 0.9]), np.array([0.4, 0.2])).figure == 0.5
    assert one("labels", np.array(["a", "b"]), np.array(["a", "c"])).figure == 0.5
    assert one("embedding", np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])).figure == pytest.approx(0.5**0.5)
    assert one("image", np.zeros(10), np.full(10, 0.01)).figure == pytest.approx(40)
    assert one("tokens", np.log([[[0.5, 0.5]]]), np.log([[[0.9, 0.1]]])).figure == pytest.approx(0.5108, abs=1e-3)


def test_samples_of_different_sizes_count_by_their_elements() -> None:
    real, result = [np.zeros((1, 3)), np.zeros((1, 1))], [np.zeros((1, 3)), np.ones((1, 1))]
    (judgement,) = judge(["binary"], ["y"], [real], [result])
    assert judgement.figure == 0.75


def test_a_sequence_of_maps_becomes_rows() -> None:
    assert as_array([{1: 0.2, 0: 0.8}, {0: 0.1, 1: 0.9}]).tolist() == [[0.8, 0.2], [0.1, 0.9]]


# -- compiling


def ended(code: str, tmp_path: Path, limit: float = 60) -> wild.Row:
    """The row of a process that runs some code instead of a compile."""
    arguments = argparse.Namespace(work=tmp_path, timeout=limit)
    return wild.run_compile([sys.executable, "-c", code], arguments)


def test_exit_codes_become_verdicts(tmp_path: Path) -> None:
    said = "import sys; print('a heartbeat\\nptqc: no\\n  such file', file=sys.stderr); sys.exit({})"
    refused, fault = (ended(said.format(code), tmp_path) for code in (2, 70))
    assert (refused["verdict"], refused["note"]) == (wild.REFUSED, "ptqc: no such file")
    assert fault["verdict"] == "FAULT (exit 70)"
    assert "verdict" not in ended("", tmp_path)
    assert ended("import time; time.sleep(9)", tmp_path, 0.2)["verdict"] == wild.SLOW


def test_a_model_that_was_not_built_is_a_row(tmp_path: Path) -> None:
    row = wild.compile_row(MODELS[0], argparse.Namespace(work=tmp_path))
    assert (row["model"], row["verdict"]) == (MODELS[0].name, wild.MISSING)


def test_a_difference_says_what_the_compile_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    out.mkdir()
    for written in (path, out / "model.onnx"):
        onnx.save(helper.make_model(helper.make_graph([], "empty", [], [])), written)
    notes = [{"level": level, "message": f"a {level}"} for level in ("warning", "info", "warning")]
    (out / "manifest.json").write_text(json.dumps({"notes": notes}))
    monkeypatch.setattr(wild, "run_compile", lambda *_: {"exit_code": 0})
    monkeypatch.setattr(wild, "command", lambda *_: [])
    monkeypatch.setattr(wild, "agreement_row", lambda *_: {"verdict": wild.DIFFERS, "note": "y: values 3 dB"})
    row = wild.attempt(MODELS[0], path, out, argparse.Namespace())
    assert row["note"] == "y: values 3 dB (the compile warned: a warning)"


def test_a_message_names_the_file_without_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "empty", [], [])), path)
    said = {"exit_code": 2, "verdict": wild.REFUSED, "note": f"ptqc: {path}: has decision trees"}
    monkeypatch.setattr(wild, "run_compile", lambda *_: said)
    monkeypatch.setattr(wild, "command", lambda *_: [])
    row = wild.attempt(MODELS[0], path, tmp_path / "out", argparse.Namespace())
    assert row["note"] == "ptqc: model.onnx: has decision trees"


@pytest.mark.parametrize(("stored", "budget"), [("remedied.onnx", "25%"), ("larger_budget", "50%")])
def test_the_remedy_of_a_refusal_is_tried(
    stored: str, budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / MODELS[0].name
    folder.mkdir(parents=True)
    for name in ("built", "model.onnx", stored):
        (folder / name).write_text(budget)
    values: list[tuple[str, str]] = []

    def attempt(_model: Model, path: Path, _out: Path, arguments: argparse.Namespace) -> wild.Row:
        values.append((path.name, arguments.budget))
        return {"verdict": wild.REFUSED if len(values) == 1 else wild.AGREES}

    monkeypatch.setattr(wild, "attempt", attempt)
    row = wild.compile_row(MODELS[0], argparse.Namespace(work=tmp_path, budget="25%"))
    assert (row["verdict"], row["remedy"]) == (wild.REFUSED, wild.AGREES)
    assert values == [("model.onnx", "25%"), (wild.REMEDIED if stored == wild.REMEDIED else "model.onnx", budget)]


def test_a_family_with_too_few_is_marked() -> None:
    rows = [{"family": "ocr", "verdict": wild.AGREES}, {"family": "text", "verdict": wild.DIFFERS}]
    assert wild.tally(rows, {"ocr": 1, "text": 1}) == [
        "ocr: 1 of 1 agree, 1 have to",
        "text: 0 of 1 agree, 1 have to (TOO FEW)",
        "all 2: 1 agrees, 1 DIFFERS",
    ]


def test_a_row_that_is_compiled_again_replaces_the_first(tmp_path: Path) -> None:
    model = Model("a", "ocr", "shipped", "shipped", "spox", 16, (), ("classes",))
    for verdict in (wild.SLOW, wild.AGREES):
        wild.store_row({"model": "a", "verdict": verdict}, tmp_path)
    assert [row["verdict"] for row in wild.stored_rows([model], tmp_path)] == [wild.AGREES]


# -- what recipes share


def test_samples_are_stored_as_a_user_would_have_them(common: ModuleType, tmp_path: Path) -> None:
    data = common.split({"x": np.arange(20).reshape(10, 2)}, 6, 3)
    common.save(data, tmp_path)
    with np.load(tmp_path / "calibration.npz") as stored:
        assert stored["x"].shape == (6, 2)
    assert [feeds["x"].tolist() for feeds in wild.feeds_of(tmp_path / "evaluation")] == [
        [[14, 15]],
        [[16, 17]],
        [[18, 19]],
    ]


def test_samples_of_different_sizes_have_a_file_each(common: ModuleType, tmp_path: Path) -> None:
    common.save(common.apart([{"x": np.zeros((1, size))} for size in (3, 4, 5)], 2), tmp_path)
    assert [feeds["x"].shape for feeds in wild.feeds_of(tmp_path / "calibration")] == [(1, 3), (1, 4)]
    assert [feeds["x"].shape for feeds in wild.feeds_of(tmp_path / "evaluation")] == [(1, 5)]


def test_pictures_come_with_the_options_that_prepare_them(common: ModuleType, tmp_path: Path) -> None:
    pictures = common.Pictures(np.zeros((2, 4, 4, 3), np.uint8), ["--scale", "1"])
    common.save(common.Data(pictures, [{"x": np.zeros(1)}], "50%"), tmp_path)
    assert (tmp_path / wild.BUDGET).read_text() == "50%"
    assert len(list((tmp_path / "calibration").glob("*.png"))) == 2
    value = wild.command(tmp_path / "model.onnx", tmp_path / "out", argparse.Namespace(budget="25%"))
    assert value[value.index("--scale") + 1] == "1"
    assert value[value.index("--budget") + 1] == "25%"
