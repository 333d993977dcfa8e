"""Whole compiles of models of texts: from a corpus and its tokenizer, and without any data."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_llama_model
from compiling import compiled, quick
from writing import encoder, sentences, tokenizer

from ptqc.artifact.folder import load
from ptqc.calibration.texts import Texts
from ptqc.cli.main import main
from ptqc.errors import CalibrationError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer and a corpus."""
    folder = tmp_path_factory.mktemp("texts")
    onnx.save(encoder(), folder / "encoder.onnx")
    tokenizer(folder)
    (folder / "corpus.txt").write_text("\n".join(sentences(40)))
    return folder


@pytest.mark.long
def test_texts_on_the_command_line_and_in_python_give_the_same(place: Path, tmp_path: Path) -> None:
    words = ["compile", place / "encoder.onnx", "--calibration", place / "corpus.txt", "-o", tmp_path / "out", "-q"]
    words += ["--tokenizer", place / "tokenizer.json", "--length", 9, "--bits", "7", "--cache", tmp_path / "cache"]
    with quick():
        assert main([str(word) for word in words]) == 0
    artifact = load(tmp_path / "out")
    assert artifact.manifest["calibration"]["samples"] == 40
    assert artifact.manifest["results"]["sqnr_db"] > 25
    assert artifact.most_changed is not None
    texts = {"".join(sample["text"]["tokens"]) for sample in artifact.most_changed["samples"]}
    assert texts <= {f" [CLS] {' '.join(text.split()[:7])} [SEP]" for text in sentences(40)}
    listed = Texts(sentences(40), place / "tokenizer.json", length=9)
    of_list = compiled(place / "encoder.onnx", listed, tmp_path / "list", bits=(7,))
    assert of_list.path.read_bytes() == artifact.path.read_bytes()


def test_a_text_longer_than_the_model_is_named_with_its_length(place: Path, tmp_path: Path) -> None:
    data = Texts(["cat", "cat " * 60], place / "tokenizer.json")
    with pytest.raises(
        CalibrationError, match=r"samples\[1\]: the model does not run on 'input_ids' of shape \(1, 62\)"
    ):
        compiled(encoder(), data, tmp_path)


def test_options_of_texts_need_a_tokenizer_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", "encoder.onnx", "-o", "out"]
    assert main([*words, "--calibration", "corpus.txt", "--length", "10"]) == 2
    assert "--length applies to text only: give its --tokenizer, too" in capsys.readouterr().err
    assert main([*words, "--tokenizer", "tokenizer.json"]) == 2
    assert "give it with --calibration FILE" in capsys.readouterr().err


def test_a_fault_on_texts_tells_how_to_shrink_the_model(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ptqc.passes.analyze.with_splits", fails)
    texts = ["--tokenizer", str(place / "tokenizer.json"), "--length=9", "--no-special-tokens"]
    words = ["compile", str(place / "encoder.onnx"), "--calibration", str(place / "corpus.txt"), *texts, "-o", "out"]
    assert main([*words, "--cache", "cache", "-q"]) == 70
    text = (tmp_path / "ptqc-fault.txt").read_text()
    data = f"--data {place / 'corpus.txt'} {' '.join(texts)}"
    trial = "compile '{model}' --calibration '{data}' -o out --cache cache -q"
    assert f"ptqc reduce {place / 'encoder.onnx'} -o small.onnx {data} -- {trial}" in text


@pytest.mark.slow
def test_an_encoder_without_data(tmp_path: Path) -> None:
    artifact = compiled(encoder(), "synthetic", tmp_path, bits=(7,), samples=32)
    assert artifact.manifest["results"]["sqnr_db"] > 25
    assert artifact.run({name: np.ones((1, 5), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")})


class ReachedError(Exception):
    """The compile came so far."""


def test_a_cache_without_elements_is_not_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the prepared model shows that a cache is nothing but copied."""

    def reached(*_given: object) -> None:
        raise ReachedError

    monkeypatch.setattr("ptqc.compiler.check_early", reached)
    with pytest.raises(ReachedError):
        compiled(tiny_llama_model.tiny_llama.build(), "synthetic", tmp_path, samples=8, target="cpu")


@pytest.mark.slow
def test_a_decoder_with_a_cache_without_data(tmp_path: Path) -> None:
    model = tiny_llama_model.tiny_llama.build()
    artifact = compiled(model, "synthetic", tmp_path, bits=(4,), samples=8, activations="float", target="cpu")
    assert any("goes on from a cache" in note["message"] for note in artifact.manifest["notes"])
    for past in (9, 40):  # in the library, which is made for any length of the cache
        feeds = tiny_llama_model.tiny_llama.sample(1, past=past)
        assert artifact.run(feeds)["logits"].shape == (1, 1, 256)
