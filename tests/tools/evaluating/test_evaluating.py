"""Scores of models side by side: from data and labels of every form, with metrics of ptqc and of the user."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, samples, weight
from onnx import numpy_helper
from PIL import Image
from writing import encoder, sentences, tokenizer

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.texts import Texts
from ptqc.cli.main import main
from ptqc.errors import CalibrationError, Missed, PtqcError, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.tools.evaluating import Evaluation
from ptqc.tools.evaluating.metric import Case
from ptqc.tools.evaluating.metrics.top_k import TopK
from ptqc.tools.evaluating.own import OwnMetric
from ptqc.utils.store import write_npz

COUNT = 40
DECODER = """g (int64[N,T] ids) => (float[N,T,20] y) {
    e = Gather(table, ids)
    h = Relu(e)
    y = MatMul(h, w)
}"""


@pytest.fixture(scope="module")
def float_file(coarse: Artifact) -> Path:
    return coarse.folder.parent / "model.onnx"


@pytest.fixture(scope="module")
def labelled(float_file: Path) -> dict[str, np.ndarray]:
    """Pictures with labels, most of which are what the float network says."""
    x, random = samples(3, 8, 8, count=COUNT, seed=3), np.random.default_rng(0)
    labels = Runner(float_file).run({"x": x})["y"].argmax(1)
    labels[::4] = random.integers(0, 10, len(labels[::4]))
    return {"x": x, "labels": labels}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder, an encoder, a tokenizer and texts."""
    folder = tmp_path_factory.mktemp("language")
    onnx.save(proto(DECODER, table=weight(20, 16), w=weight(16, 20)), folder / "decoder.onnx")
    onnx.save(encoder(), folder / "encoder.onnx")
    tokenizer(folder)
    (folder / "corpus.txt").write_text("\n".join(sentences(12)))
    pairs = zip(sentences(12, 1), sentences(12, 2), range(12), strict=True)
    (folder / "pairs.tsv").write_text("\n".join(f"{one}\t{other}\t{number / 2}" for one, other, number in pairs))
    return folder


def hits(path: Path, data: Mapping[str, np.ndarray]) -> np.ndarray:
    run = Runner(path).run
    rows = (run({"x": row[None]})["y"].argmax() for row in data["x"])
    return np.array([*rows]) == data["labels"]


def proto_of_other_classes(path: Path, folder: Path) -> Path:
    """The same network with the rows of its classifier in another order."""
    model = onnx.load(path)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w4")
    weight.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(weight), 1, 0), "w4"))
    onnx.save(model, folder / "shifted.onnx")
    return folder / "shifted.onnx"


def test_float_and_artifact_on_the_same_samples(
    coarse: Artifact, float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_npz(tmp_path / "labelled.npz", labelled)
    result = ptqc.evaluate(float_file, coarse.folder, metric="top-1", data=tmp_path / "labelled.npz")
    first, second = (100.0 * hits(path, labelled) for path in (float_file, coarse.path))
    assert result.cases == COUNT
    for row, wanted in zip(result.models, (first, second), strict=True):
        assert row.score.value == pytest.approx(wanted.mean())
        assert row.score.standard_error == pytest.approx(wanted.std(ddof=1) / np.sqrt(COUNT))
    assert result.models[0].difference is None
    assert result.models[1].difference is not None
    assert result.models[1].difference.value == pytest.approx((second - first).mean())
    assert result.models[1].difference.standard_error == pytest.approx((second - first).std(ddof=1) / np.sqrt(COUNT))
    assert "top-1 accuracy, % (more is better), with its standard error, on 40 cases" in str(result)


@pytest.mark.parametrize("is_json", [False, True])
def test_a_drop_of_more_than_is_allowed_ends_with_2(
    float_file: Path,
    labelled: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_json: bool,
) -> None:
    right = {**labelled, "labels": Runner(float_file).run({"x": labelled["x"]})["y"].argmax(1)}
    shifted = proto_of_other_classes(float_file, tmp_path)
    write_npz(tmp_path / "labelled.npz", right)
    options = ["--metric", "top-1", "--data", str(tmp_path / "labelled.npz"), *(["--json"] if is_json else [])]
    assert main(["eval", str(float_file), str(float_file), *options, "--max-drop", "0"]) == 0
    capsys.readouterr()
    assert main(["eval", str(float_file), str(shifted), *options, "--max-drop", "1"]) == 2
    printed, text = capsys.readouterr()
    drop = 100 - 100 * hits(shifted, right).mean()
    assert f"is worse than that of {float_file} by {drop:.3g}" in text
    if is_json:
        document = json.loads(printed)
        assert document["error"]["value"] == pytest.approx(drop)
        assert document["error"]["limit"] == 1
        assert document["models"][1]["difference"]["value"] == pytest.approx(-drop)
    else:
        assert "vs. first" in printed
    alone = ptqc.evaluate(float_file, metric="top-1", data=right)
    with pytest.raises(UsageError, match="give a second model"):
        alone.check_drop(1)
    with pytest.raises(Missed, match=r"out \(cpu\) has no score, so that its drop is not known: a reason"):
        replace(alone, left_out={"out (cpu)": "a reason"}).check_drop(1)


def test_the_document_says_the_same(
    coarse: Artifact,
    float_file: Path,
    labelled: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_npz(tmp_path / "labelled.npz", labelled)
    words = ["eval", str(float_file), str(coarse.folder), "--metric", "top-3", "--data", str(tmp_path / "labelled.npz")]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    result = ptqc.evaluate(float_file, coarse.folder, metric=TopK(3), data=labelled)
    assert document == {"schema": 1, "command": "eval", **result.to_json()}
    assert document["models"][0]["difference"] is None
    assert set(document["models"][1]["difference"]) == {"value", "standard_error"}
    assert main(words) == 0
    assert str(result) in (printed := capsys.readouterr()).out
    assert main([*words, "-q"]) == 0
    assert capsys.readouterr() == (printed.out, "")


def files(folder: Path, data: dict[str, np.ndarray]) -> Path:
    for number, (x, label) in enumerate(zip(data["x"], data["labels"], strict=True)):
        write_npz(folder / "files" / f"{number:03}.npz", {"x": x[None], "labels": label})
    return folder / "files"


def apart(folder: Path, data: dict[str, np.ndarray]) -> object:
    np.save(folder / "labels.npy", data["labels"])
    return ({"x": x[None]} for x in data["x"])


def test_labels_lie_in_many_places(float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    wanted = ptqc.evaluate(float_file, metric="top-1", data=labelled)
    assert ptqc.evaluate(float_file, metric="top-1", data=files(tmp_path, labelled)) == wanted
    data = apart(tmp_path, labelled)
    assert ptqc.evaluate(float_file, metric="top-1", data=data, labels=tmp_path / "labels.npy") == wanted
    write_npz(tmp_path / "labels.npz", {"labels": labelled["labels"]})
    values = {"x": labelled["x"]}
    assert ptqc.evaluate(float_file, metric="top-1", data=values, labels=tmp_path / "labels.npz") == wanted
    assert ptqc.evaluate(float_file, metric="top-1", data=values, labels=list(labelled["labels"])) == wanted


def test_labels_are_told_apart_by_the_names_of_files(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    wanted = ptqc.evaluate(float_file, metric="top-1", data=labelled, samples=7)
    folder = files(tmp_path, {"x": labelled["x"], "labels": np.zeros(COUNT, int)})
    names = {f"{number:03}.npz": label for number, label in reversed(list(enumerate(labelled["labels"])))}
    assert ptqc.evaluate(float_file, metric="top-1", data=folder, labels=names, samples=7) == wanted
    with pytest.raises(CalibrationError, match=rf"labels has none for {COUNT} of the {COUNT} files of folder .*'000'"):
        ptqc.evaluate(float_file, metric="top-1", data=folder, labels={"000": 1})
    with pytest.raises(CalibrationError, match="the samples of the dict of arrays have no names: give one label for"):
        ptqc.evaluate(float_file, metric="top-1", data={"x": labelled["x"]}, labels=names)


@pytest.mark.parametrize("data", ["arrays", "files"])
def test_some_of_the_samples_keep_their_labels(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path, data: str
) -> None:
    (tmp_path / "files").mkdir()
    chosen = [0, 13, 26, 39]
    wanted = ptqc.evaluate(float_file, metric="top-1", data={name: a[chosen] for name, a in labelled.items()})
    value = labelled if data == "arrays" else files(tmp_path, labelled)
    assert ptqc.evaluate(float_file, metric="top-1", data=value, samples=4) == wanted


def test_some_of_the_samples_have_labels_apart(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    wanted = ptqc.evaluate(float_file, metric="top-1", data=labelled, samples=4)
    value = files(tmp_path, labelled | {"labels": np.zeros(COUNT, int)})
    assert ptqc.evaluate(float_file, metric="top-1", data=value, labels=labelled["labels"], samples=4) == wanted


def test_a_sample_is_read_when_the_one_before_is_judged(float_file: Path) -> None:
    """Of data beyond memory and disk one sample is held at a time; the reader may fill one array again and again."""
    done, shared = list[object](), np.empty((1, 3, 8, 8), np.float32)

    def read() -> Iterator[np.ndarray]:
        for number in range(4):
            done.append(number)
            shared[...] = number
            yield shared

    class Pairs(OwnMetric):
        samples = 2

        def measure(self, case: Case) -> tuple[float, ...]:
            done.append([feeds["x"].max() for feeds in case.feeds])
            return (0.0,)

    result = ptqc.evaluate(float_file, metric=Pairs(min), data=read())
    assert done == [0, 1, [0, 1], 2, 3, [2, 3]]
    assert result.cases == 2


@pytest.mark.parametrize(("count", "expected"), [(3, "at least 4 samples and 3 labels"), (5, "4 samples and 5 labels")])
def test_a_stream_has_as_many_samples_as_labels(float_file: Path, count: int, expected: str) -> None:
    data = iter(samples(3, 8, 8, count=4)[:, None])
    with pytest.raises(CalibrationError, match=f"there are {expected}; give one for each"):
        ptqc.evaluate(float_file, metric="top-1", data=data, labels=[0] * count)


@pytest.mark.parametrize(("names", "classes"), [(("cat", "dog"), (0, 1)), (("9", "5"), (9, 5))])
def test_images_lie_in_folders_of_their_classes(
    float_file: Path, tmp_path: Path, names: tuple[str, str], classes: tuple[int, int]
) -> None:
    random, x, labels = np.random.default_rng(0), [], []
    for name, number in zip(names, classes, strict=True):
        (tmp_path / name).mkdir()
        for place in range(3):
            pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{place}.png")
            x.append((pixels / 255 / 0.25).transpose(2, 0, 1).astype(np.float32))
            labels.append(number)
    result = ptqc.evaluate(float_file, metric="top-2", data=tmp_path, preprocessing=Preprocessing(std=0.25))
    wanted = ptqc.evaluate(float_file, metric="top-2", data={"x": np.stack(x), "labels": np.array(labels)})
    assert result == wanted


def test_of_the_images_of_a_csv_only_those_asked_for_are_read(float_file: Path, tmp_path: Path) -> None:
    for number in (0, 4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "a.csv").write_text("".join(f"{number}.png,{number}\n" for number in range(5)))
    result = list[int]()
    ptqc.evaluate(float_file, metric=lambda _, label: result.append(label) or 0.0, data=tmp_path / "a.csv", samples=2)
    assert result == [0, 4]


def test_an_empty_class_counts_and_a_hidden_folder_is_none(float_file: Path, tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "ant", "bee", "cat"):
        (tmp_path / name).mkdir()
        if name != "ant":
            Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    result = list[int]()
    ptqc.evaluate(float_file, metric=lambda _, label: result.append(label) or 0.0, data=tmp_path)
    assert result == [1, 2]


def test_a_single_case_has_a_score_without_an_error(float_file: Path) -> None:
    result = ptqc.evaluate(
        float_file, metric="top-1", data={"x": samples(3, 8, 8, count=1), "labels": np.zeros(1, int)}
    )
    assert str(result).split()[-1] == "nan"


def test_perplexity_needs_no_labels(language: Path) -> None:
    data = Texts(language / "corpus.txt", language / "tokenizer.json")
    nats = ptqc.evaluate(language / "decoder.onnx", metric="cross-entropy", data=data).models[0].score
    result = ptqc.evaluate(language / "decoder.onnx", metric="perplexity", data=data)
    assert result.cases == 12
    assert result.models[0].score.value == pytest.approx(np.exp(nats.value))
    assert result.models[0].score.standard_error == pytest.approx(np.exp(nats.value) * nats.standard_error, rel=0.1)
    some = ptqc.evaluate(language / "decoder.onnx", metric="perplexity", data=data, samples=5)
    assert some.cases == 5


def test_pairs_of_texts_with_labels(language: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", language / "encoder.onnx", "--metric", "similarity", "--data", language / "pairs.tsv"]
    assert main([str(word) for word in [*words, "--tokenizer", language / "tokenizer.json", "--json"]]) == 0
    document = json.loads(capsys.readouterr().out)
    ones, others = (encoded(language, list(column)) for column in (sentences(12, 1), sentences(12, 2)))
    interleaved = [feeds for pair in zip(ones, others, strict=True) for feeds in pair]
    result = ptqc.evaluate(language / "encoder.onnx", metric="similarity", data=interleaved, labels=np.arange(12) / 2)
    tokenizer = str(language / "tokenizer.json")
    assert document == {"schema": 1, "command": "eval", **result.to_json(), "tokenizer": tokenizer}
    assert document["cases"] == 12


def encoded(language: Path, texts: list[str]) -> list[Feeds]:
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(language / "tokenizer.json"))
    result = []
    for text in texts:
        ids = np.array([read.encode(text).ids])
        result.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})
    return result


def test_what_is_heard_is_turned_into_words(language: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Frames of sound whose likeliest token is known; the labels are ragged, too."""
    model = proto("g (float[N,T,20] sound) => (float[N,T,20] y) { y = Identity(sound) }")
    onnx.save(model, tmp_path / "listener.onnx")
    frames = np.eye(20, dtype=np.float32)[[6, 6, 0, 9, 7, 0, 9]]  # cat sees, dog sees
    data = {"sound": frames, "sound.lengths": np.array([4, 3])}
    write_npz(
        tmp_path / "tokens.npz", {**data, "labels": np.array([6, 9, 7, 9, 4]), "labels.lengths": np.array([2, 3])}
    )
    words = ["eval", str(tmp_path / "listener.onnx"), "--metric", "word-errors"]
    assert main([*words, "--data", str(tmp_path / "tokens.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["score"]["value"] == pytest.approx(100 / 5)
    write_npz(tmp_path / "words.npz", {**data, "labels": np.array(["cat sees", "the dog sees it"])})
    more = ["--data", str(tmp_path / "words.npz"), "--tokenizer", str(language / "tokenizer.json"), "--json"]
    assert main([*words, *more]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["score"]["value"] == pytest.approx(100 * 2 / 6)


def test_without_labels_answers_are_held_to_the_first_model(coarse: Artifact, float_file: Path) -> None:
    x = samples(3, 8, 8, count=6, seed=3)
    result = ptqc.evaluate(float_file, coarse.folder, metric="cosine", data=x)
    first, second = (Runner(path).run({"x": x})["y"].astype(np.float64) for path in (float_file, coarse.path))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert result.models[0].score.value == pytest.approx(1)
    assert result.models[1].score.value == pytest.approx(cosines.mean(), abs=1e-4)
    assert result.models[1].details == {"worst": pytest.approx(cosines.min(), abs=1e-4)}


OWN = """def largest(outputs, label):
    return outputs["y"].max() + label
def fails(outputs, label):
    raise KeyError(3)
"""


def test_a_metric_of_ones_own(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_metric.py").write_text(OWN)
    result = ptqc.evaluate(float_file, metric="own_metric:largest", data=labelled)
    run = Runner(float_file).run
    wanted = np.mean([run({"x": x[None]})["y"].max() for x in labelled["x"]])
    assert result.models[0].score.value == pytest.approx(wanted + labelled["labels"].mean())
    by_function = ptqc.evaluate(float_file, metric=lambda outputs, label: outputs["y"].max() + label, data=labelled)
    assert by_function.models == result.models
    with pytest.raises(CalibrationError, match=r"samples\[0\]: the metric raised KeyError: 3"):
        ptqc.evaluate(float_file, metric="own_metric:fails", data=labelled)
    with pytest.raises(UsageError, match="has no attribute 'absent'"):
        ptqc.evaluate(float_file, metric="own_metric:absent", data=labelled)
    with pytest.raises(UsageError, match="metric 'own_metric:__name__' is 'own_metric'; give a function"):
        ptqc.evaluate(float_file, metric="own_metric:__name__", data=labelled)


CLASSES = """from ptqc.tools.evaluating.metric import Metric
class Largest(Metric):
    name, title = "largest", "largest value"
    @classmethod
    def of(cls, parameter):
        return None
    def measure(self, case):
        return (float(case.answers[0].max()),)
    def score(self, measured):
        return float(measured.mean())
class Scaled(Largest):
    def __init__(self, factor):
        self.factor = factor
"""


def test_a_class_of_metrics_is_made_one(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_classes.py").write_text(CLASSES)
    result = ptqc.evaluate(float_file, metric="own_classes:Largest", data=labelled)
    assert result.title == "largest value"
    run = Runner(float_file).run
    wanted = np.mean([run({"x": x[None]})["y"].max() for x in labelled["x"]])
    assert result.models[0].score.value == pytest.approx(wanted)
    with pytest.raises(UsageError, match=r"metric Scaled is a class .*'factor'\); give an object of it"):
        ptqc.evaluate(float_file, metric="own_classes:Scaled", data=labelled)


def test_another_output_is_judged_where_it_is_named(tmp_path: Path) -> None:
    model = proto("g (float[N,3] x) => (float[N,3] a, float[N,3] b) { a = Identity(x) b = Neg(x) }")
    onnx.save(model, tmp_path / "two.onnx")
    data = {"x": np.eye(3, dtype=np.float32), "labels": np.arange(3)}
    scores = [
        ptqc.evaluate(tmp_path / "two.onnx", metric="top-1", data=data, score_output=o).models[0].score for o in "ab"
    ]
    assert [score.value for score in scores] == [100, 0]
    with pytest.raises(UsageError, match="has no output 'c'; it has a, b"):
        ptqc.evaluate(tmp_path / "two.onnx", metric="top-1", data=data, score_output="c")


def test_all_models_have_the_output(tmp_path: Path) -> None:
    for name in "ab":
        onnx.save(
            proto(f"g (float[N,3] x) => (float[N,3] {name}) {{ {name} = Identity(x) }}"), tmp_path / f"{name}.onnx"
        )
    data = {"x": np.eye(3, dtype=np.float32), "labels": np.arange(3)}
    with pytest.raises(CalibrationError, match="output 'a' is judged, and one of the models has only b"):
        ptqc.evaluate(tmp_path / "a.onnx", tmp_path / "b.onnx", metric="top-1", data=data)


REFUSED: dict[str, tuple[dict[str, object], type[PtqcError], str]] = {
    "metric": ({"metric": "f1"}, UsageError, "metric is 'f1'; known: top-1, top-5, map, map-50, mean-iou, .*psnr"),
    "k": ({"metric": "top-0"}, UsageError, "metric is 'top-0'"),
    "no metric": ({"metric": 3}, UsageError, "metric is 3; give a function"),
    "samples": ({"samples": 0}, UsageError, "samples = 0"),
    "no labels": ({"data": samples(3, 8, 8, count=4)}, CalibrationError, "the metric top-1 needs labels"),
    "too few": ({"labels": [1, 2]}, CalibrationError, "there are 40 samples and 2 labels; give one for each"),
    "no pairs": ({"metric": "similarity"}, CalibrationError, "40 samples and 40 labels; give one for 2"),
    "one label": ({"labels": 5}, UsageError, "labels is 5; give a path, or one label for each sample"),
    "lengths": (
        {"data": {"x": samples(3, 8, 8, count=2), "labels": np.arange(5), "labels.lengths": np.array([1, 3])}},
        CalibrationError,
        r"`labels.lengths`: sums up to 4, but `labels` has shape \(5,\)",
    ),
    "no such labels": ({"labels": "gone.npy"}, CalibrationError, "gone.npy do not exist"),
}


@pytest.mark.parametrize(("change", "error", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_told(
    float_file: Path, labelled: dict[str, np.ndarray], change: dict[str, object], error: type[PtqcError], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        ptqc.evaluate(float_file, **{"metric": "top-1", "data": labelled, **change})  # type: ignore[arg-type]


def test_there_is_something_to_evaluate(labelled: dict[str, np.ndarray]) -> None:
    with pytest.raises(UsageError, match="nothing to evaluate"):
        ptqc.evaluate(metric="top-1", data=labelled)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("cat sees\tdog\n", "line 1: .* is not text and text and label"),
        ("cat\t\t3\n", "line 1"),
        ("a\tb\t1\nonly one\n", "line 2: 'only one'"),
    ],
)
def test_lines_of_a_table_that_do_not_fit(language: Path, tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "pairs.tsv").write_text(content)
    data = Texts(tmp_path / "pairs.tsv", language / "tokenizer.json")
    with pytest.raises(CalibrationError, match=expected):
        ptqc.evaluate(language / "encoder.onnx", metric="similarity", data=data)


def test_labels_of_a_table_are_numbers_where_they_are_written_as_such(language: Path, tmp_path: Path) -> None:
    words = ["3", " -2 ", "0.5", ".5e1", "nan", "infinity", "1_000", "1 2", "", "9" * 5000]
    (tmp_path / "words.tsv").write_text("".join(f"cat\t{word}\n" for word in words))
    result = list[object]()
    data = Texts(tmp_path / "words.tsv", language / "tokenizer.json")
    ptqc.evaluate(language / "encoder.onnx", metric=lambda _, label: result.append(label) or 0.0, data=data)
    assert result == [3, -2, 0.5, 5.0, *words[4:]]
    assert [type(label) for label in result[:2]] == [int, int]


def test_only_new_lines_end_the_lines_of_a_table(language: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("cat\u2028sees\tdog\t1\r\nthe cat\x85\tit\t2\n", encoding="utf-8")
    data = Texts(tmp_path / "pairs.tsv", language / "tokenizer.json")
    assert ptqc.evaluate(language / "encoder.onnx", metric="similarity", data=data).cases == 2


def test_a_table_is_not_split_and_needs_a_tokenizer(language: Path) -> None:
    data = Texts(language / "pairs.tsv", language / "tokenizer.json", overlong="split")
    with pytest.raises(UsageError, match="so texts cannot be split"):
        ptqc.evaluate(language / "encoder.onnx", metric="similarity", data=data)
    with pytest.raises(UsageError, match=r"pairs\.tsv holds text: give its --tokenizer too"):
        ptqc.evaluate(language / "encoder.onnx", metric="similarity", data=language / "pairs.tsv")


# Whatever it sees, it finds a box of class 1 in the middle, and something that is nothing.
CONSTANT_DETECTOR = """g (float[1,3,32,32] x) => (float[1,2,4] boxes, float[1,2,3] scores) {
    mean = ReduceMean <keepdims = 0> (x)
    nothing = Mul(mean, zero)
    boxes = Add(corners, nothing)
    scores = Add(sure, nothing)
}"""


def test_a_detector_is_scored_on_pictures_with_their_boxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constants = {
        "zero": np.zeros(1, np.float32),
        "corners": np.array([[[8, 8, 24, 24], [0, 0, 4, 4]]], np.float32),
        "sure": np.array([[[0, 0.9, 0], [0, 0, 0]]], np.float32),
    }
    onnx.save(proto(CONSTANT_DETECTOR, **constants), tmp_path / "detector.onnx")
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for name, line in (("a", "1 0.5 0.5 0.5 0.5"), ("b", "1 0.5 0.5 0.5 0.35"), ("c", "1 0.1 0.1 0.1 0.1")):
        Image.new("RGB", (64, 64)).save(tmp_path / "images" / f"{name}.png")
        (tmp_path / "labels" / f"{name}.txt").write_text(line)
    words = ["eval", str(tmp_path / "detector.onnx"), "--metric", "map", "--data", str(tmp_path / "images")]
    assert main([*words, "--fit", "stretch", "--boxes", "xyxy", "--box-unit", "pixels", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    # Two of three are found, the second one up to an overlap of 0.7: shares 0.35 / 0.5.
    assert row["details"]["AP50"] == pytest.approx(100 * 67 / 101)
    assert row["details"]["AP75"] == pytest.approx(100 * 34 / 101)
    assert main(words) == 2
    assert "a.png: nothing says how the model writes boxes: give --detector" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the metric top-1 is not one for detectors"):
        ptqc.evaluate(tmp_path / "detector.onnx", metric="top-1", data=tmp_path, detector=Detector())


@pytest.mark.slow
def test_the_library_is_scored_too_and_left_out_where_it_takes_another_size(tmp_path: Path) -> None:
    """Windows slide over the axis that varies: its size in a library is that of the samples."""
    graph = "g (float[N,4,T] x) => (float[N,10] y) { c = Conv(x, w) m = GlobalAveragePool(c) y = Flatten(m) }"
    data, labels = samples(4, 8, count=20), np.arange(20) % 10

    def score(outputs: Feeds, label: int) -> float:
        return float(outputs["y"][0, label])

    artifact = compiled(proto(graph, w=weight(10, 4, 3)), data, tmp_path, bits=(7,), target="cpu")
    result = ptqc.evaluate(artifact.folder, metric=score, data=data, labels=labels)
    scores = [row.score.value for row in result.models]
    assert [row.runtime.split()[0] for row in result.models] == ["ONNX", "native"]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
    longer = samples(4, 9, count=3)
    alone: Evaluation = ptqc.evaluate(artifact.folder, metric=score, data=longer, labels=labels[:3])
    assert len(alone.models) == 1
    assert "input 'x' is float32 [1, 4, 9]" in next(iter(alone.left_out.values()))
    assert "left out: " in str(alone)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval.csv", "names its images: give it in place of the data, or the folder of these images as the data"),
        ("y.txt", "neither .npz nor .npy"),
    ],
)
def test_labels_of_another_kind_say_where_they_belong(
    float_file: Path, labelled: dict[str, np.ndarray], tmp_path: Path, name: str, expected: str
) -> None:
    (tmp_path / name).write_text("a.png,1\n")
    with pytest.raises(CalibrationError, match=expected):
        ptqc.evaluate(float_file, metric="top-1", data={"x": labelled["x"]}, labels=tmp_path / name)


def with_an_input_named_labels(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A model that reads tags beside its rows, under the name of what evaluations are scored by."""
    graph = "g (float[N,6] x, float[N,3] labels) => (float[N,4] y) { j = Concat<axis=1>(x, labels) y = MatMul(j, w) }"
    onnx.save(proto(graph, w=weight(9, 4)), folder / "model.onnx")
    return folder / "model.onnx", {"x": samples(6), "labels": samples(3, seed=1)}


@pytest.mark.parametrize("form", ["arrays", "file", "folder"])
def test_an_input_named_labels_is_fed(form: str, tmp_path: Path) -> None:
    path, data = with_an_input_named_labels(tmp_path)
    classes = np.arange(len(data["x"])) % 4
    value: object = data
    if form == "file":
        write_npz(tmp_path / "data.npz", data)
        value = tmp_path / "data.npz"
    elif form == "folder":
        value = tmp_path / "data"
        (tmp_path / "data").mkdir()
        for number in range(len(classes)):
            rows = {name: rows[number : number + 1] for name, rows in data.items()}
            write_npz(tmp_path / "data" / f"{number:02}.npz", rows)
    result = ptqc.evaluate(path, metric="top-1", data=value, labels=classes)
    scores = Runner(path).run(data)["y"]
    assert result.models[0].score.value == pytest.approx(100 * (scores.argmax(1) == classes).mean())


def test_labels_beside_an_input_of_that_name_are_asked_for_apart(tmp_path: Path) -> None:
    path, data = with_an_input_named_labels(tmp_path)
    with pytest.raises(CalibrationError, match="give them apart, with --labels"):
        ptqc.evaluate(path, metric="top-1", data=data)
