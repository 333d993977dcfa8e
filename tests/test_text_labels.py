"""Labelled texts: as labels of a compile, and read later with the tokenizer that the compile recorded."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, quick, weight
from writing import ROWS, SPECIAL, WORDS, encoder, sentences, tokenizer

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.calibration.texts import Texts
from ptqc.cli.main import main
from ptqc.errors import CalibrationError, UsageError

CLASSES, COUNT = 4, 40
CLASSIFIER = """g (int64[N,T] input_ids) => (float[N,4] scores) {
    words = Gather(table, input_ids)
    mean = ReduceMean<axes=[1], keepdims=0>(words)
    scores = MatMul(mean, w)
}"""
TABLE, HEAD = weight(ROWS, 16, seed=1), weight(16, CLASSES, seed=2)
CORPUS = sentences(COUNT)


def classifier() -> onnx.ModelProto:
    return proto(CLASSIFIER, 17, table=TABLE, w=HEAD)


def answers(texts: Sequence[str]) -> list[int]:
    """What NumPy makes of the same words, which stand between [CLS] and [SEP]."""
    numbers = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    rows = [[2, *(numbers[word] for word in text.split()), 3] for text in texts]
    return [int((TABLE[row].mean(0) @ HEAD).argmax()) for row in rows]


def table(place: Path, labels: Sequence[object], texts: Sequence[str] = CORPUS) -> Path:
    place.write_text("".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)))
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer, texts, and labels of which the model gets three in four."""
    folder = tmp_path_factory.mktemp("labels")
    onnx.save(classifier(), folder / "model.onnx")
    tokenizer(folder)
    (folder / "corpus.txt").write_text("\n".join(CORPUS))
    wrong = [(answer + (number % 4 == 0)) % CLASSES for number, answer in enumerate(answers(CORPUS))]
    table(folder / "labelled.tsv", wrong)
    return folder


@pytest.fixture(scope="module")
def artifact(place: Path) -> Artifact:
    """A compile with labels, as the command line writes it."""
    words = ["compile", place / "model.onnx", "--calibration", place / "corpus.txt", "-o", place / "out", "-q"]
    words += ["--tokenizer", place / "tokenizer.json", "--labels", place / "labelled.tsv", "--bits", "7"]
    with quick():
        assert main([str(word) for word in [*words, "--cache", place / "cache"]]) == 0
    return ptqc.load(place / "out")


def resolved(artifact: Artifact, place: Path, output: Path, **options: object) -> Artifact:
    """Of measurements in the store of `artifact`. place: of that."""
    with quick():
        return ptqc.resolve(artifact, output=output, cache=place / "cache", **options)  # type: ignore[arg-type]


def test_a_table_of_texts_scores_a_compile(artifact: Artifact) -> None:
    assert artifact.score is not None
    assert artifact.score.float_score == 75


def test_the_table_needs_no_calibration_on_texts(place: Path, tmp_path: Path) -> None:
    words = ["compile", place / "model.onnx", "--calibration", "synthetic", "-o", tmp_path / "out", "-q"]
    words += ["--tokenizer", place / "tokenizer.json", "--labels", place / "labelled.tsv", "--bits", "7"]
    with quick():
        assert main([str(word) for word in [*words, "--cache", tmp_path / "cache", "--samples", "32"]]) == 0
    score = ptqc.load(tmp_path / "out").score
    assert score is not None
    assert score.float_score == 75


def test_a_table_without_a_tokenizer_says_so(place: Path, tmp_path: Path) -> None:
    ids = np.ones((4, 5), np.int64)
    with pytest.raises(UsageError, match=r"labelled\.tsv holds text: give its --tokenizer too"):
        compiled(place / "model.onnx", ids, tmp_path, labels=place / "labelled.tsv")
    for data in (place / "corpus.txt", place):
        with pytest.raises(UsageError, match=r"holds text: give its --tokenizer too"):
            compiled(place / "model.onnx", data, tmp_path)


def test_the_tokenizer_is_recorded(artifact: Artifact, place: Path) -> None:
    texts = artifact.texts
    assert texts is not None
    assert (texts.tokenizer, texts.path, texts.length) == (str(place / "tokenizer.json"), place / "tokenizer.json", 128)
    assert artifact.manifest["texts"]["special_tokens"] is True


def test_a_later_resolve_reads_and_shows_texts(artifact: Artifact, place: Path, tmp_path: Path) -> None:
    later = resolved(artifact, place, tmp_path / "later", labels=place / "labelled.tsv")
    assert later.score is not None
    assert later.score.float_score == 75
    assert later.texts == artifact.texts
    assert later.most_changed is not None
    shown = ["".join(sample["text"]["tokens"]) for sample in later.most_changed["samples"]]
    assert shown
    assert set(shown) <= {f" [CLS] {text} [SEP]" for text in CORPUS}


def test_an_evaluation_reads_texts_as_the_compile_did(
    artifact: Artifact, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", place / "model.onnx", artifact.folder, "--metric", "top-1", "--data", place / "labelled.tsv"]
    assert main([str(word) for word in words]) == 0
    assert f"on 40 cases; texts are read with {place / 'tokenizer.json'}" in capsys.readouterr().out
    result = ptqc.evaluate(place / "model.onnx", artifact, metric="top-1", data=place / "labelled.tsv")
    assert result.models[0].score.value == 75
    assert result.notes == ()


def test_a_run_reads_texts_as_the_compile_did(artifact: Artifact, place: Path, tmp_path: Path) -> None:
    assert main(["run", str(artifact.folder), str(place / "corpus.txt"), "-o", str(tmp_path / "y.npz")]) == 0
    ptqc.run(artifact, Texts(place / "corpus.txt", place / "tokenizer.json"), output=tmp_path / "stated.npz")
    with np.load(tmp_path / "y.npz") as result, np.load(tmp_path / "stated.npz") as stated:
        assert np.array_equal(result["scores"], stated["scores"])


def test_a_comparison_reads_texts_as_the_compile_did(artifact: Artifact, place: Path) -> None:
    with quick():
        result = ptqc.compare(place / "model.onnx", artifact, data=place / "corpus.txt", samples=8)
    assert result.samples == "8 samples"
    assert result.models[1].top1_agreement == 1.0


def test_another_tokenizer_is_warned_of_and_a_lost_one_refused(artifact: Artifact, place: Path, tmp_path: Path) -> None:
    other = tokenizer(tmp_path, WORDS[::-1])
    data = Texts(place / "labelled.tsv", other)
    (note, *_) = ptqc.evaluate(artifact, metric="top-1", data=data).notes
    assert note.startswith(f"texts are read with {other}, but {artifact.folder} was compiled with another tokenizer")
    moved = tmp_path / "moved"
    shutil.copytree(artifact.folder, moved)
    manifest = json.loads((moved / "manifest.json").read_text())
    manifest["texts"]["tokenizer"] = str(other)
    (moved / "manifest.json").write_text(json.dumps(manifest))
    for path in (place / "labelled.tsv", str(place / "corpus.txt")):
        with pytest.raises(UsageError, match="is gone or has changed: give its --tokenizer"):
            ptqc.evaluate(moved, metric="top-1", data=path)
    assert resolved(ptqc.load(moved), place, tmp_path / "later").most_changed is not None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, "sports"], "line 3: the label 'sports' is no class number: write the place of its class"),
        ([0, -1, 2], "line 2: the label '-1' is no class number"),
        ([0, 1, 4], "line 3: the label is class 4, but the model has 4 classes: class numbers start at 0"),
    ],
)
def test_labels_that_are_no_classes_are_named_with_their_line(
    place: Path, tmp_path: Path, labels: list[object], expected: str
) -> None:
    wrong = table(tmp_path / "wrong.tsv", labels, CORPUS[:3])
    data = Texts(place / "corpus.txt", place / "tokenizer.json")
    with pytest.raises(CalibrationError, match=f"wrong.tsv, {expected}"):
        compiled(place / "model.onnx", data, tmp_path, labels=wrong)


def test_classes_of_arrays_are_checked_as_well(place: Path, artifact: Artifact, tmp_path: Path) -> None:
    labels = {"input_ids": np.ones((3, 5), np.int64), "labels": np.array([0, 1, CLASSES])}
    with pytest.raises(CalibrationError, match=r"samples\[2\]: the label is class 4, but the model has 4 classes"):
        resolved(artifact, place, tmp_path / "out", labels=labels)


def test_labels_of_other_kinds_say_what_to_write(artifact: Artifact, place: Path, tmp_path: Path) -> None:
    words = {"input_ids": np.ones((2, 5), np.int64), "labels": np.array(["billing", "refund"])}
    with pytest.raises(CalibrationError, match="labels, `labels`: the label 'billing' is no class number: write"):
        resolved(artifact, place, tmp_path / "out", labels=words)
    with pytest.raises(CalibrationError, match=r"labelled\.tsv has its texts beside the labels: give it as the data"):
        ptqc.evaluate(artifact, metric="top-1", data=words, labels=place / "labelled.tsv")


def test_a_score_no_better_than_guessing_is_warned_of(place: Path, artifact: Artifact, tmp_path: Path) -> None:
    shifted = table(tmp_path / "shifted.tsv", [(answer + 1) % CLASSES for answer in answers(CORPUS)])
    result = ptqc.evaluate(artifact, metric="top-1", data=shifted)
    assert [note for note in result.notes if "where guessing scores 25 %: check the labels" in note]
    later = resolved(artifact, place, tmp_path / "later", labels=shifted)
    assert [w.step for w in later.warnings if w.message.startswith("the float model scores 0 % on the labels")] == [
        "score"
    ]
    few = table(tmp_path / "few.tsv", [(answer + 1) % CLASSES for answer in answers(CORPUS[:8])], CORPUS[:8])
    assert ptqc.evaluate(artifact, metric="top-1", data=few).notes == ()


def test_a_folder_of_tables_says_to_give_one(place: Path, tmp_path: Path) -> None:
    table(tmp_path / "labelled.tsv", [0] * COUNT)
    with pytest.raises(CalibrationError, match=r"holds tables of texts: give one, such as labelled\.tsv, alone"):
        ptqc.compile(place / "model.onnx", calibration=tmp_path, output=tmp_path / "out")


def test_a_csv_of_texts_says_what_to_write(place: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\nthe cat,1\n")
    text = r"texts\.csv: a CSV can only list images, and this model reads token ids: save the column of texts as \.txt"
    for data in (texts, Texts(texts, place / "tokenizer.json")):
        with pytest.raises(CalibrationError, match=text):
            compiled(encoder(), data, tmp_path)
        with pytest.raises(CalibrationError, match=text):
            ptqc.evaluate(place / "model.onnx", metric="top-1", data=data)
    with pytest.raises(CalibrationError, match=text):
        compiled(place / "model.onnx", np.ones((4, 5), np.int64), tmp_path, labels=texts)
