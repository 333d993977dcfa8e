"""The words of output names."""

import pytest

from ptqc.losses.words import CLASSES, EMBEDDINGS, PLACES, STATES, says, words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("predBoxes_2", {"pred", "boxes"}),
        ("/model.22/Concat_output_0", {"model", "concat", "output"}),
        ("present.0.key", {"present", "key"}),
        ("RNNState", {"rnn", "state"}),
        ("1234", set()),
    ],
)
def test_words(name: str, expected: set[str]) -> None:
    assert words(name) == expected


def test_only_whole_words_count() -> None:
    assert says("start_logits", CLASSES)
    assert says("sentence_embedding", EMBEDDINGS)
    assert says("bbox_8", PLACES)
    assert says("hn", STATES)
    assert not any(says("regional_newspaper", known) for known in (CLASSES, PLACES, STATES))
