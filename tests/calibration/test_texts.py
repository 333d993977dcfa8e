"""Texts as samples: what is a text, what the model takes beside its tokens, and what is refused."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tokenizers import Tokenizer, normalizers
from writing import ROWS, WORDS, encoder, sentences, tokenizer

from ptqc.calibration.inputs import InputSpec, conform, input_specs
from ptqc.calibration.sources import open_source
from ptqc.calibration.texts import LENGTH, Texts, tokenizer_calls
from ptqc.cli.commands import TEXTS
from ptqc.errors import CalibrationError, Interrupted, PtqcError, UsageError
from ptqc.execution.onnxruntime import Feeds

BERT = input_specs(ir.from_proto(encoder()))
TOKENS = InputSpec("tokens", np.dtype(np.int64), ("N", "T"), ROWS)
FIXED = InputSpec("tokens", np.dtype(np.int32), (1, 8), ROWS)
CLS, SEP, CAT, DOG, BIRD = 2, 3, 6, 7, 8


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer(tmp_path_factory.mktemp("vocabulary"))


def read(texts: Texts, inputs: tuple[InputSpec, ...] = (TOKENS,), limit: int = 100) -> list[Feeds]:
    """Samples, each as the model takes it."""
    return [conform(sample, inputs, i) for i, sample in enumerate(open_source(texts, inputs, limit).samples)]


def tokens(result: list[Feeds]) -> list[list[int]]:
    return [feeds["tokens"][0].tolist() for feeds in result]


def saved(folder: Path, text: str, name: str = "corpus.txt") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_every_option_is_one_of_the_command_line() -> None:
    assert tuple(field.name for field in fields(Texts))[2:] == TEXTS


def test_lines_paragraphs_and_files(tmp_path: Path, vocabulary: Path) -> None:
    path = saved(tmp_path, "cat\ndog dog\n\n  \ncat cat\n")
    lines = [[CLS, CAT, SEP], [CLS, DOG, DOG, SEP], [CLS, CAT, CAT, SEP]]
    assert tokens(read(Texts(path, vocabulary))) == lines
    paragraphs = [[CLS, CAT, DOG, DOG, SEP], [CLS, CAT, CAT, SEP]]
    assert tokens(read(Texts(path, vocabulary, unit="paragraphs"))) == paragraphs
    assert tokens(read(Texts(path, vocabulary, unit="files"))) == [[CLS, CAT, DOG, DOG, CAT, CAT, SEP]]


def test_the_mark_that_windows_puts_in_front_is_no_text(tmp_path: Path, vocabulary: Path) -> None:
    assert tokens(read(Texts(saved(tmp_path, "\ufeffcat\n"), vocabulary))) == [[CLS, CAT, SEP]]


def test_of_a_table_the_texts_count_and_no_labels(tmp_path: Path, vocabulary: Path) -> None:
    path = saved(tmp_path, "cat\tdog\ndog\tcat\t1\n\ncat dog\n\t3\n", "corpus.tsv")
    assert tokens(read(Texts(path, vocabulary, special_tokens=False))) == [[CAT], [DOG], [CAT], [CAT, DOG]]
    with pytest.raises(UsageError, match=r"unit is 'files', but .*corpus\.tsv is a table of lines"):
        read(Texts(path, vocabulary, unit="files"))


def test_a_folder_is_a_text_for_each_file_unless_lines_are_asked_for(tmp_path: Path, vocabulary: Path) -> None:
    saved(tmp_path, "dog\ncat\n", "corpus/b.txt")
    saved(tmp_path, "cat\n", "corpus/a/1.txt")
    saved(tmp_path, "\n \n", "corpus/blank.txt")
    saved(tmp_path, "dog", "corpus/.hidden.txt")
    saved(tmp_path, "dog", "corpus/.git/copy.txt")
    assert tokens(read(Texts(tmp_path / "corpus", vocabulary))) == [[CLS, CAT, SEP], [CLS, DOG, CAT, SEP]]
    assert len(read(Texts(tmp_path / "corpus", vocabulary, unit="lines"))) == 3


def test_some_of_many_are_evenly_spread(tmp_path: Path, vocabulary: Path) -> None:
    path = saved(tmp_path, "\n".join(WORDS))
    source = open_source(Texts(path, vocabulary, special_tokens=False), (TOKENS,), 3)
    assert (source.count, source.available) == (3, len(WORDS))
    assert [sample["tokens"].item() for sample in source.samples] == [4, 4 + round(13 / 2), 4 + 13]


def test_long_texts_are_cut_or_split(vocabulary: Path) -> None:
    values = ["cat dog cat dog cat", "dog"]
    assert tokens(read(Texts(values, vocabulary, length=4))) == [[CLS, CAT, DOG, SEP], [CLS, DOG, SEP]]
    split = Texts(values, vocabulary, length=4, overlong="split")
    parts = [[CLS, CAT, DOG, SEP], [CLS, CAT, DOG, SEP], [CLS, CAT, SEP], [CLS, DOG, SEP]]
    assert tokens(read(split)) == parts
    assert tokens(read(split, limit=4)) == [parts[0], parts[2], parts[3]]
    assert tokens(read(Texts(values, vocabulary, length=4, special_tokens=False)))[0] == [CAT, DOG, CAT, DOG]


@pytest.mark.parametrize(("overlong", "count"), [("cut", 1), ("split", 0)])
def test_texts_that_are_cut_are_told(vocabulary: Path, overlong: str, count: int) -> None:
    texts = Texts(["cat dog cat dog cat", "dog"], vocabulary, length=4, overlong=overlong)  # type: ignore[arg-type]
    source = open_source(texts, (TOKENS,), 100)
    assert len(list(source.samples)) == (2 if count else 4)
    assert [note.message.split(",")[0] for note in source.notes()] == ["1 of 2 texts have more than 4 tokens"] * count


@pytest.mark.parametrize(("length", "advice"), [(4, "a larger --length, or --overlong split"), (6, "--overlong split")])
def test_texts_that_are_cut_for_a_fixed_length_are_told(vocabulary: Path, length: int, advice: str) -> None:
    source = open_source(Texts(["cat " * 8], vocabulary, length=length), (replace(TOKENS, shape=(1, 6)),), 100)
    assert len(list(source.samples)) == 1
    assert [note.message for note in source.notes()] == [
        f"1 of 1 texts have more than {length} tokens, and the rest of them is not used: {advice} would use more"
    ]


@pytest.mark.parametrize("name", ["texts.json", "texts.JSONL"])
def test_json_is_no_text(tmp_path: Path, vocabulary: Path, name: str) -> None:
    with pytest.raises(CalibrationError, match="holds JSON, not plain text: save its texts"):
        read(Texts(saved(tmp_path, '{"text": "cat"}', name), vocabulary))


def test_parts_of_texts_are_no_more_than_asked_for_and_none_of_the_last_text_is_forgotten(vocabulary: Path) -> None:
    texts = Texts(["cat " * 8, "dog", "bird " * 8], vocabulary, length=2, special_tokens=False, overlong="split")
    result = [[CAT, CAT], [CAT, CAT], [DOG], [BIRD, BIRD], [BIRD, BIRD]]
    assert [feeds["tokens"].tolist() for feeds in open_source(texts, (TOKENS,), 5).samples] == [[one] for one in result]


def test_the_tokenizer_says_which_end_is_cut(tmp_path: Path, vocabulary: Path) -> None:
    own = Tokenizer.from_file(str(vocabulary))
    own.enable_truncation(4, direction="left")
    own.save(str(tmp_path / "own.json"))
    texts = ["cat dog cat dog dog"]
    assert tokens(read(Texts(texts, tmp_path / "own.json"))) == [[CLS, DOG, DOG, SEP]]
    assert tokens(read(Texts(texts, tmp_path / "own.json", length=3))) == [[CLS, DOG, SEP]]
    split = Texts(texts, tmp_path / "own.json", overlong="split", special_tokens=False)
    assert tokens(read(split)) == [[CAT, DOG, CAT, DOG], [DOG]]


def test_a_text_has_as_many_tokens_as_model_tokenizer_or_default_say(tmp_path: Path, vocabulary: Path) -> None:
    long = ["cat " * 300]
    assert len(tokens(read(Texts(long, vocabulary)))[0]) == LENGTH
    assert len(tokens(read(Texts(long, vocabulary), (FIXED,)))[0]) == 8
    own = Tokenizer.from_file(str(vocabulary))
    own.enable_truncation(11)
    own.save(str(tmp_path / "own.json"))
    assert len(tokens(read(Texts(long, tmp_path / "own.json")))[0]) == 11


def test_all_that_the_model_takes_is_filled_in(vocabulary: Path) -> None:
    (feeds,) = read(Texts(["cat dog"], vocabulary, length=6, padding="full"), BERT)
    assert {name: array[0].tolist() for name, array in feeds.items()} == {
        "input_ids": [CLS, CAT, DOG, SEP, 0, 0],
        "attention_mask": [1, 1, 1, 1, 0, 0],
        "token_type_ids": [0] * 6,
    }


def test_a_decoder_gets_positions_and_an_empty_cache(vocabulary: Path) -> None:
    def spec(name: str, kind: type, *shape: int | str, **more: object) -> InputSpec:
        return InputSpec(name, np.dtype(kind), shape, **more)  # type: ignore[arg-type]

    inputs = (
        spec("input_ids", np.int64, "N", "T", rows=ROWS),
        spec("attention_mask", np.bool_, "N", "all", masks=True),
        spec("position_ids", np.int32, "N", "T"),
        spec("past_key_values.0.key", np.float32, "N", 2, "past", 8),
    )
    texts = Texts(["cat dog"], vocabulary, length=4, padding="full", padding_side="left", special_tokens=False)
    (feeds,) = read(texts, inputs)
    assert feeds["input_ids"].tolist() == [[0, 0, CAT, DOG]]
    assert feeds["attention_mask"].tolist() == [[False, False, True, True]]
    assert feeds["position_ids"].tolist() == [[0, 0, 0, 1]]
    assert feeds["past_key_values.0.key"].shape == (1, 2, 0, 8)


@pytest.mark.parametrize(("name", "masks"), [("attention_mask", False), ("m", True)])
def test_masks_of_floats_are_filled_in(vocabulary: Path, name: str, masks: bool) -> None:
    mask = InputSpec(name, np.dtype(np.float32), ("N", "T"), masks=masks)
    (feeds,) = read(Texts(["cat dog"], vocabulary, length=6, padding="full"), (TOKENS, mask))
    assert feeds[name].dtype == np.float32
    assert feeds[name].tolist() == [[1, 1, 1, 1, 0, 0]]


def test_a_model_of_one_length_is_padded(vocabulary: Path) -> None:
    result = read(Texts(["cat", "dog " * 20], vocabulary, length=6), (FIXED,))
    assert tokens(result) == [[CLS, CAT, SEP, 0, 0, 0, 0, 0], [CLS, DOG, DOG, DOG, DOG, SEP, 0, 0]]
    assert result[0]["tokens"].dtype == np.int32


@pytest.mark.parametrize(("value", "fill"), [(None, 1), ("dog", 3)])
def test_what_pads(tmp_path: Path, value: str | None, fill: int) -> None:
    own = tokenizer(tmp_path, ("cat", "dog"), ("[UNK]", "<pad>"))
    (feeds,) = read(Texts(["cat"], own, length=3, padding="full", padding_token=value))
    assert feeds["tokens"].tolist() == [[2, fill, fill]]


REFUSED: dict[str, tuple[dict[str, object], type[PtqcError], str]] = {
    "no corpus": ({"corpus": "nowhere.txt"}, CalibrationError, "'nowhere.txt': no such file or folder"),
    "blank": ({"corpus": ["", " \n"]}, CalibrationError, "the texts holds no text: every line is blank"),
    "numbers": ({"corpus": [1, 2]}, UsageError, "corpus is .1, 2.; give a path, or a list of texts"),
    "no tokenizer": ({"tokenizer": "nowhere.json"}, CalibrationError, "nowhere.json: no such file"),
    "unit": ({"unit": "words"}, UsageError, "unit is 'words'; known: lines, paragraphs, files"),
    "overlong": ({"overlong": None}, UsageError, "overlong is None; known: cut, split"),
    "length": ({"length": 0}, UsageError, "length is 0; give a positive number of tokens"),
    "too short": ({"length": 2}, UsageError, "length is 2, but .* adds 2 tokens to every text"),
    "padding token": ({"padding": "full", "padding_token": "zzz"}, UsageError, "has no token 'zzz'"),
}


@pytest.mark.parametrize(("change", "error", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_told(
    vocabulary: Path, change: dict[str, object], error: type[PtqcError], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        read(Texts(**{"corpus": ["cat"], "tokenizer": vocabulary, **change}))  # type: ignore[arg-type]


def test_files_that_hold_no_text_are_named(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CalibrationError, match=r"cannot read the texts of .*binary\.txt"):
        read(Texts(tmp_path / "binary.txt", vocabulary))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CalibrationError, match=r"empty holds no texts, expected files ending in \.txt"):
        read(Texts(tmp_path / "empty", vocabulary))
    for content in ("{}", "[" * 100_000):
        saved(tmp_path, content, "other.json")
        with pytest.raises(CalibrationError, match=r"other\.json is not a tokenizer\.json"):
            read(Texts(["cat"], tmp_path / "other.json"))


def test_a_text_without_tokens_is_named(tmp_path: Path) -> None:
    removing = Tokenizer.from_file(str(tokenizer(tmp_path)))
    removing.normalizer = normalizers.Replace("?", "")
    removing.save(str(tmp_path / "removing.json"))
    path = saved(tmp_path, "cat\n?\n")
    with pytest.raises(CalibrationError, match=r"corpus\.txt, line 2: tokenizer .* makes no token of it: leave it out"):
        read(Texts(path, tmp_path / "removing.json", special_tokens=False))


def test_a_tokenizer_of_another_model_is_refused(vocabulary: Path) -> None:
    small = InputSpec("tokens", np.dtype(np.int64), ("N", "T"), 10)
    with pytest.raises(CalibrationError, match="ids up to 17, but the table that input 'tokens' indexes has 10"):
        read(Texts(["cat"], vocabulary), (small,))


def test_a_token_that_pads_may_lie_behind_the_table_where_nothing_pads(tmp_path: Path) -> None:
    own = Tokenizer.from_file(str(tokenizer(tmp_path, ("cat", "dog"), ("[UNK]", "<|endoftext|>"))))
    own.add_special_tokens(["[PAD]"])
    own.enable_padding(pad_id=4)
    own.save(str(tmp_path / "own.json"))
    table = InputSpec("tokens", np.dtype(np.int64), ("N", "T"), 4)
    assert tokens(read(Texts(["cat dog"], tmp_path / "own.json"), (table,))) == [[2, 3]]
    with pytest.raises(CalibrationError, match=r"pads with token 4, but the table .* has 4 rows: give another"):
        read(Texts(["cat"], tmp_path / "own.json", padding="full"), (table,))
    padded = Texts(["cat"], tmp_path / "own.json", padding="full", length=3, padding_token="<|endoftext|>")
    assert tokens(read(padded, (table,))) == [[2, 1, 1]]
    with pytest.raises(CalibrationError, match="holds 4, and 1 of 2 values lie outside of the table"):
        read(Texts(["cat [PAD]"], tmp_path / "own.json"), (table,))


def test_lengths_that_a_model_does_not_take_are_refused(vocabulary: Path) -> None:
    with pytest.raises(UsageError, match=r"length is 9, but input 'tokens' .* has room for 8 tokens"):
        read(Texts(["cat"], vocabulary, length=9), (FIXED,))
    with pytest.raises(UsageError, match=r"padding is 'none', but input 'tokens' .* takes exactly 8 tokens"):
        read(Texts(["cat"], vocabulary, padding="none"), (FIXED,))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((InputSpec("x", np.dtype(np.float32), ("N", 4)),), "one input of token ids; this one takes 'x'"),
        (
            (TOKENS, InputSpec("x", np.dtype(np.float32), ("N", 4))),
            "input 'x' of shape .N, 4.: text has no values for it",
        ),
        ((TOKENS, InputSpec("mask", np.dtype(np.int64), ("N", 1, "T"))), "input 'mask' of shape .N, 1, T."),
        ((InputSpec("ids", np.dtype(np.int64), ("T",), ROWS),), "input 'ids' of shape .T,."),
    ],
)
def test_a_model_that_takes_something_else_is_refused(
    inputs: tuple[InputSpec, ...], expected: str, vocabulary: Path
) -> None:
    with pytest.raises(CalibrationError, match=f"{expected}.*module:function"):
        read(Texts(["cat"], vocabulary), inputs)


def test_without_the_library_texts_say_what_to_install(vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'ptqc\[text\]'"):
        read(Texts(sentences(2), vocabulary))


def changed(folder: Path, **parts: object) -> Path:
    """The file of a tokenizer with other parts."""
    path = tokenizer(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return path


UNKNOWN_TOKEN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("part", "value"),
    [("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}), ("post_processor", UNKNOWN_TOKEN)],
)
def test_a_tokenizer_with_which_its_library_panics_is_named(tmp_path: Path, part: str, value: object) -> None:
    """Panics are no Exception."""
    path = changed(tmp_path, **{part: value})
    with pytest.raises(CalibrationError, match=r"tokenizer\.json (is not a tokenizer\.json of the library|fails)"):
        read(Texts(["cat"], path))


@pytest.mark.parametrize("ending", [KeyboardInterrupt, Interrupted])
def test_what_ends_the_program_is_no_fault_of_a_tokenizer(ending: type[BaseException]) -> None:
    with pytest.raises(ending), tokenizer_calls("fails"):
        raise ending


DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
EXPRESSION = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a"}
SPACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SWAPS = {"type": "Replace", "pattern": {"String": "b"}, "content": "c"}


@pytest.mark.parametrize(
    ("part", "kind", "steps"),
    [
        ("normalizer", "normalizers", [DOUBLES] * 40),
        ("normalizer", "normalizers", [EXPRESSION] * 40),
        ("normalizer", "normalizers", [SPACED] * 6),
        ("normalizer", "normalizers", [{"type": "Sequence", "normalizers": [DOUBLES] * 8}] * 5),
        ("pre_tokenizer", "pretokenizers", [BYTES] * 40),
    ],
)
def test_steps_that_multiply_a_text_are_refused(tmp_path: Path, part: str, kind: str, steps: list[object]) -> None:
    path = changed(tmp_path, **{part: {"type": "Sequence", kind: steps}})
    with pytest.raises(CalibrationError, match=rf"its {part} may make a text .* times longer, expected at most 65,536"):
        read(Texts(["cat"], path))


def test_many_steps_that_do_not_multiply_a_text(tmp_path: Path) -> None:
    steps = [*[SWAPS] * 50, {"type": "Lowercase"}, {"type": "NFKC"}, *[DOUBLES] * 3]
    path = changed(tmp_path, normalizer={"type": "Sequence", "normalizers": steps})
    assert tokens(read(Texts(["CAT"], path))) == [[CLS, 1, SEP]]
