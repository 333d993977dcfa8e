"""Preparing: the normal form keeps the function, samples are split, and wrong preprocessing is noticed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, residual, samples, weight

from ptqc import api
from ptqc.errors import CalibrationError, UsageError
from ptqc.execution.onnxruntime import Runner
from ptqc.frontend import read_model
from ptqc.notes import Level
from ptqc.passes.dump import Dump
from ptqc.passes.quantize.prepare import HELD_BACK, CanonicalModel, gather, prepare
from ptqc.utils.progress import SILENT

NORMALIZED = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = BatchNormalization(a, scale, shift, mean, variance)
    y = Relu(b)
}"""


def prepared(model: onnx.ModelProto, data: object, folder: Path, dump: Path | None = None) -> CanonicalModel:
    onnx.save(model, folder / "model.onnx")
    source = read_model(folder / "model.onnx")
    return prepare(source, gather(source, data, folder / "samples", 64, None, SILENT), SILENT, Dump(dump))


def normalized() -> onnx.ModelProto:
    ones = np.ones(4, np.float32)
    return proto(
        NORMALIZED, w=weight(4, 3, 3, 3), scale=ones * 0.7, shift=ones * 0.1, mean=ones * 0.2, variance=ones * 2
    )


def test_the_normal_form_computes_the_same(tmp_path: Path) -> None:
    result = prepared(normalized(), samples(3, 8, 8), tmp_path)
    feeds = {"x": samples(3, 8, 8, seed=5)}
    wanted = Runner(tmp_path / "model.onnx").run(feeds)["y"]
    assert [node.op_type for node in result.model.graph] == ["Conv", "Relu"]
    assert np.abs(Runner(result.model).run(feeds)["y"] - wanted).max() < 1e-5


def test_the_origin_describes_the_file(tmp_path: Path) -> None:
    origin = prepared(residual(), samples(3, 8, 8), tmp_path).origin
    assert (origin.name, origin.size, origin.weights) == ("model.onnx", 59_172, 14_666)
    assert len(origin.digest) == 64


def test_the_splits_do_not_overlap_and_miss_nothing(tmp_path: Path) -> None:
    result = prepared(residual(), samples(3, 8, 8, count=10), tmp_path)
    tuning, held = ([x["x"].tobytes() for x in split] for split in (result.tuning, result.held_back))
    assert len(held) == -(-10 // HELD_BACK)
    assert not set(tuning) & set(held)
    assert set(tuning) | set(held) == {x["x"].tobytes() for x in result.samples}


@pytest.mark.parametrize("kinds", [2, 3, 4, 8])
def test_kinds_of_samples_that_take_turns_are_in_both_splits(tmp_path: Path, kinds: int) -> None:
    feeds = [{"x": np.full((1, 3, 8, 8), i % kinds, np.float32)} for i in range(64)]
    result = prepared(residual(), feeds, tmp_path)
    for split in (result.tuning, result.held_back):
        assert {int(feed["x"].flat[0]) for feed in split} == set(range(kinds))


def test_copies_are_in_one_split(tmp_path: Path) -> None:
    each = np.random.default_rng(0).random((32, 1, 3, 8, 8), np.float32)
    result = prepared(residual(), [{"x": x} for x in each.repeat(2, 0)], tmp_path)
    tuning, held = ({x["x"].tobytes() for x in split} for split in (result.tuning, result.held_back))
    assert not tuning & held
    assert len(result.tuning) + 2 * len(result.held_back) == 64
    assert len(held) == len(result.held_back) >= 8


def test_a_frequent_copy_is_held_back_once(tmp_path: Path) -> None:
    each = np.random.default_rng(0).random((40, 1, 3, 8, 8), np.float32)
    result = prepared(residual(), [{"x": each[0 if i < 24 else i - 24]} for i in range(64)], tmp_path)
    held = [x["x"].tobytes() for x in result.held_back]
    assert len(held) == len(set(held)) >= 8
    assert len(result.tuning) >= 24


def test_what_earlier_releases_held_back_stays(tmp_path: Path) -> None:
    each = np.random.default_rng(0).random((32, 1, 3, 8, 8), np.float32)
    result = replace(prepared(residual(), [{"x": x} for x in each.repeat(2, 0)], tmp_path), holds_back_first=True)
    assert (len(result.tuning), len(result.held_back)) == (48, 16)


@pytest.mark.parametrize(("tokens", "is_told"), [(12, True), (15, False)])
@pytest.mark.parametrize("output", ["float[N,T,4] y", "float[N,4] y"])
def test_answers_at_places_of_padding_are_told(tokens: int, is_told: bool, output: str, tmp_path: Path) -> None:
    head = "y = MatMul(z, w)" if "T" in output else "m = ReduceMean<keepdims=0>(z, axis) y = MatMul(m, w)"
    graph = f"""g (int64[N,T] input_ids, int64[N,T] attention_mask) => ({output}) {{
        e = Gather(table, input_ids)
        s = Cast<to=1>(attention_mask)
        u = Unsqueeze(s, last)
        z = Mul(e, u)
        {head}
    }}"""
    model = proto(graph, table=weight(20, 8), w=weight(8, 4), last=np.array([2]), axis=np.array([1]))
    mask = (np.arange(16) < tokens).astype(np.int64)[None]
    ids = np.random.default_rng(0).integers(0, 20, (8, 1, 16))
    result = prepared(model, [{"input_ids": one, "attention_mask": mask} for one in ids], tmp_path)
    said = [note for note in result.notes if note.message.startswith("25% of the places are padding")]
    assert [note.level for note in said] == [Level.WARNING] * (is_told and "T" in output)


@pytest.mark.parametrize("mask", [np.zeros((1, 16), np.int64), np.arange(16)[None] > 12], ids=["zeros", "truth values"])
def test_masks_of_unknown_sense_are_not_taken_for_padding(mask: np.ndarray, tmp_path: Path) -> None:
    kind = "bool" if mask.dtype == bool else "int64"
    graph = f"""g (int64[N,T] input_ids, {kind}[N,T] attention_mask) => (float[N,T,8] y) {{
        e = Gather(table, input_ids)
        s = Cast<to=1>(attention_mask)
        u = Unsqueeze(s, last)
        y = Sub(e, u)
    }}"""
    model = proto(graph, table=weight(20, 8), last=np.array([2]))
    ids = np.random.default_rng(0).integers(0, 20, (8, 1, 16))
    result = prepared(model, [{"input_ids": one, "attention_mask": mask} for one in ids], tmp_path)
    assert not [note for note in result.notes if "are padding" in note.message]


def test_an_earlier_compile_held_back_the_first_of_four(tmp_path: Path) -> None:
    result = replace(prepared(residual(), samples(3, 8, 8, count=10), tmp_path), holds_back_first=True)
    assert result.held_back.names == [result.samples.names[i] for i in (0, 4, 8)]


@pytest.mark.parametrize(("batch", "batchable"), [("N", True), ("1", False)])
def test_samples_are_joined_only_where_the_model_takes_any_batch(tmp_path: Path, batch: str, batchable: bool) -> None:
    model = proto(f"g (float[{batch},8] x) => (float[{batch},4] y) {{ y = Gemm(x, w) }}", w=weight(8, 4))
    assert prepared(model, samples(8), tmp_path).samples.batchable is batchable


def test_one_sample_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="at least 2"):
        prepared(residual(), samples(3, 8, 8, count=1), tmp_path)


def test_the_limit_of_samples_is_kept(tmp_path: Path) -> None:
    assert len(prepared(residual(), samples(3, 8, 8, count=70), tmp_path).samples) == 64


def warnings_of(result: CanonicalModel) -> list[str]:
    return [note.message for note in result.notes if note.step == "calibration" and note.level == Level.WARNING]


@pytest.mark.parametrize(("factor", "word"), [(1.0, None), (200.0, "larger"), (0.004, "smaller")])
def test_wrong_preprocessing_is_noticed_at_the_first_normalization(
    tmp_path: Path, factor: float, word: str | None
) -> None:
    result = warnings_of(prepared(normalized(), samples(3, 8, 8) * np.float32(factor), tmp_path))
    assert len(result) == (word is not None)
    assert all(str(word) in message for message in result)


def test_raw_pixels_without_statistics_are_only_a_remark(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 3, 8, 8)).astype(np.float32)
    result = prepared(residual(), pixels, tmp_path)
    assert warnings_of(result) == []
    assert any("like raw pixels" in note.message for note in result.notes)


def test_a_sample_far_larger_than_the_others_is_a_warning(tmp_path: Path) -> None:
    pictures = samples(3, 8, 8)
    pictures[20] *= 1e5
    (message,) = warnings_of(prepared(residual(), pictures, tmp_path))
    assert message.startswith("samples[20] of 32 samples")


def test_few_samples_are_a_warning(tmp_path: Path) -> None:
    notes = prepared(residual(), samples(3, 8, 8, count=8), tmp_path).notes
    assert any("only 8 calibration samples" in note.message for note in notes)


def test_a_dump_holds_the_model_after_every_pass(tmp_path: Path) -> None:
    prepared(normalized(), samples(3, 8, 8), tmp_path, tmp_path / "a" / "dump")
    dumped = {path.name.partition("_")[2]: path.read_text() for path in (tmp_path / "a" / "dump").iterdir()}
    assert "BatchNormalization" in dumped["fold-constants.txt"]
    assert "BatchNormalization" not in dumped["fold-batch-norm.txt"]


def test_a_dump_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot make the folder"):
        api._dump(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
