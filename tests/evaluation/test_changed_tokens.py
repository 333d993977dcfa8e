"""The tokens of a text are shown as words where a tokenizer is known, and answers that differ at each of them."""

from pathlib import Path

import numpy as np
import pytest
from writing import WORDS, tokenizer

from ptqc.calibration.inputs import InputSpec
from ptqc.evaluation.changed import TokenInput
from ptqc.losses.classes import Logits, Probabilities

ROWS = 20
IDS = InputSpec("ids", np.dtype(np.int64), (None, None), rows=ROWS)


def logits(answers: list[int], classes: int = ROWS) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[answers][None]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return tokenizer(tmp_path)


def test_tokens_are_words_with_a_tokenizer(words: Path) -> None:
    tokens = TokenInput.of((IDS,), words)
    assert tokens is not None
    said = {"y": Logits(2)}
    feeds = {"ids": np.array([[4, 5, 6]])}
    result = tokens.changes(said, feeds, {"y": logits([5, 6, 7])}, {"y": logits([5, 8, 7])})
    assert result is not None
    assert result["tokens"] == [f" {word}" for word in WORDS[:3]]
    assert result["outputs"] == [
        {"output": "y", "of": 3, "differing": 1, "changed": [[1, f" {WORDS[2]}", f" {WORDS[4]}"]]}
    ]
    assert tokens.says_tokens(said["y"], logits([5]))


def test_tokens_are_numbers_without_one_and_other_classes_are_called_so() -> None:
    tokens = TokenInput.of((IDS,), None)
    assert tokens is not None
    feeds = {"ids": np.array([[4, 5]])}
    result = tokens.changes({"tags": Probabilities(2)}, feeds, {"tags": logits([0, 1], 3)}, {"tags": logits([2, 1], 3)})
    assert result is not None
    assert result["tokens"] == [" 4", " 5"]
    assert result["outputs"][0]["changed"] == [[0, "class 0", "class 2"]]


def test_padding_is_left_out() -> None:
    mask = InputSpec("attention_mask", np.dtype(np.int64), (None, None), masks=True)
    tokens = TokenInput.of((IDS, mask), None)
    assert tokens is not None
    feeds = {"ids": np.array([[4, 5, 0]]), "attention_mask": np.array([[1, 1, 0]])}
    result = tokens.changes({"y": Logits(2)}, feeds, {"y": logits([1, 2, 3])}, {"y": logits([1, 2, 9])})
    assert result is not None
    assert result["tokens"] == [" 4", " 5"]
    assert result["outputs"] == [{"output": "y", "of": 2, "differing": 0, "changed": []}]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [(("▁On", "ce", "<0x0A>"), " Once↵"), (("ĠOn", "ce", "Ċ"), " Once↵"), (("On", "##ce", "up"), " Once up")],
)
def test_pieces_are_joined_as_their_tokenizer_means_them(pieces: tuple[str, ...], text: str, tmp_path: Path) -> None:
    tokens = TokenInput.of((IDS,), tokenizer(tmp_path, pieces, ()))
    assert tokens is not None
    result = tokens.changes({}, {"ids": np.array([[0, 1, 2]])}, {}, {})
    assert result is not None
    assert "".join(result["tokens"]) == text


def test_an_output_without_places_changes_no_token() -> None:
    tokens = TokenInput.of((IDS,), None)
    assert tokens is not None
    result = tokens.changes({"y": Logits(1)}, {"ids": np.array([[4]])}, {"y": logits([1])[0]}, {"y": logits([2])[0]})
    assert result == {"input": "ids", "tokens": [" 4"], "outputs": []}


def test_a_model_of_images_has_no_tokens() -> None:
    assert TokenInput.of((InputSpec("x", np.dtype(np.float32), (1, 3, 8, 8)),), None) is None
