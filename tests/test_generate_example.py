"""examples/generate.py: the same tokens with every kind of cache and natively; what is drawn follows its chances."""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny_llama_model
from compiling import compiled
from writing import WORDS, tokenizer

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import generate

from ptqc.artifact.folder import Artifact

tiny_llama = tiny_llama_model.tiny_llama
SMALLER = {"LAYERS": 1, "WIDTH": 64, "INNER": 96, "SIZE": 16, "VOCABULARY": 64}
CAPACITY, PROMPT = 40, [3, 1, 4]
KINDS: dict[str, dict[str, Any]] = {"none": {"cache": False}, "grows": {}, "fixed": {"capacity": CAPACITY}}


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small decoder of each kind; all have the same weights."""
    folder = tmp_path_factory.mktemp("decoders")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(tiny_llama, name, value)
        for name, options in KINDS.items():
            onnx.save(tiny_llama.build(**options), folder / f"{name}.onnx")
    return folder


def greedy(model: generate.Model, count: int = CAPACITY + 5) -> list[int]:
    tokens = generate.generated(generate.Decoder(model), PROMPT, lambda logits: int(logits.argmax()))
    return list(itertools.islice(tokens, count))


def recorded(model: generate.Model, folder: Path, texts: int, steps: int) -> Path:
    """What the model is given while it makes texts."""
    for seed in range(texts):
        random = np.random.default_rng(seed)
        decoder = generate.Decoder(model, generate.recorder(folder))
        tokens = generate.generated(decoder, [seed], lambda logits: generate.sampled(logits, random, 1.0))  # noqa: B023
        assert len(list(itertools.islice(tokens, steps))) == steps
    return folder


def assert_same_tokens(artifact: Artifact, count: int) -> None:
    """Of file and library, over greedy steps."""
    result = greedy(generate.in_onnxruntime(artifact.path, 1), count)
    assert greedy(generate.natively(artifact.folder, 1), count) == result
    assert len(result) == count
    assert len(set(result)) > 4


def test_a_cache_changes_no_token(decoders: Path) -> None:
    none, grows, fixed = (greedy(generate.in_onnxruntime(decoders / f"{name}.onnx")) for name in KINDS)
    assert none == grows
    assert fixed == grows[: CAPACITY - len(PROMPT) + 1]  # the last token need not be read


def test_a_model_of_one_length_reads_the_end_of_the_text(decoders: Path) -> None:
    model = generate.in_onnxruntime(decoders / "none.onnx")
    (value,) = model.inputs
    fixed = generate.Model([generate.Input(value.name, value.dtype, (1, 12))], model.outputs, model.run)
    assert greedy(fixed, 10) == greedy(model, 10)
    longer = generate.Decoder(fixed)
    logits = longer.read(range(20))
    assert np.array_equal(logits, model.run({value.name: np.arange(8, 20)[None]})["logits"][0, -1])


def test_masks_types_and_positions_are_those_of_exporters() -> None:
    def value(name: str, *shape: int | None, kind: type = np.int64) -> generate.Input:
        return generate.Input(name, np.dtype(kind), shape)

    inputs = [value("input_ids", None, None), value("attention_mask", None, None), value("position_ids", None, None)]
    inputs.append(value("past_key_values.0.key", None, 2, None, 4, kind=np.float32))
    seen: list[generate.Feeds] = []

    def run(feeds: generate.Feeds) -> generate.Feeds:
        length = feeds["input_ids"].shape[1] + feeds["past_key_values.0.key"].shape[2]
        logits = np.zeros((1, feeds["input_ids"].shape[1], 9), np.float32)
        return {"logits": logits, "present.0.key": np.ones((1, 2, length, 4), np.float32)}

    decoder = generate.Decoder(generate.Model(inputs, ["logits", "present.0.key"], run), seen.append)
    decoder.read([5, 6, 7])
    decoder.read([8])
    messages = [{name: array.tolist() for name, array in feeds.items() if "key" not in name} for feeds in seen]
    first = {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]], "position_ids": [[0, 1, 2]]}
    assert messages == [first, {"input_ids": [[8]], "attention_mask": [[1, 1, 1, 1]], "position_ids": [[3]]}]
    assert [feeds["past_key_values.0.key"].shape[2] for feeds in seen] == [0, 3]


def behind_encoder() -> tuple[generate.Model, list[generate.Feeds]]:
    """A merged decoder as optimum writes it: where the cache is read, nothing is given in place of the encoder's."""
    numbers, floats = np.dtype(np.int64), np.dtype(np.float32)
    inputs = [
        generate.Input("encoder_attention_mask", numbers, (None, None)),
        generate.Input("input_ids", numbers, (None, None)),
        generate.Input("encoder_hidden_states", floats, (None, None, 8)),
        generate.Input("past_key_values.0.decoder.key", floats, (None, 2, None, 4)),
        generate.Input("past_key_values.0.encoder.key", floats, (None, 2, None, 4)),
        generate.Input("use_cache_branch", np.dtype(np.bool_), (1,)),
    ]
    seen: list[generate.Feeds] = []

    def run(feeds: generate.Feeds) -> generate.Feeds:
        seen.append(dict(feeds))
        length = feeds["input_ids"].shape[1] + feeds["past_key_values.0.decoder.key"].shape[2]
        heard = 0 if feeds["use_cache_branch"][0] else feeds["encoder_hidden_states"].shape[1]
        caches = {
            "present.0.decoder.key": np.ones((1, 2, length, 4)),
            "present.0.encoder.key": np.ones((1, 2, heard, 4)),
        }
        return {"logits": np.zeros((1, feeds["input_ids"].shape[1], 9)), **caches}

    return generate.Model(inputs, ["logits", "present.0.decoder.key", "present.0.encoder.key"], run), seen


def test_a_decoder_behind_an_encoder_keeps_what_it_cached_of_that() -> None:
    model, seen = behind_encoder()
    decoder = generate.Decoder(model, given={"encoder_hidden_states": np.zeros((1, 5, 8), np.float32)})
    decoder.read([5, 6, 7])
    decoder.read([8])
    decoder.read([2])
    assert [feeds["use_cache_branch"].tolist() for feeds in seen] == [[False], [True], [True]]
    assert [feeds["past_key_values.0.encoder.key"].shape[2] for feeds in seen] == [0, 5, 5]
    assert [feeds["past_key_values.0.decoder.key"].shape[2] for feeds in seen] == [0, 3, 4]
    assert all(feeds["encoder_attention_mask"].tolist() == [[1] * 5] for feeds in seen)


def test_what_an_encoder_makes_has_to_be_given() -> None:
    model, _ = behind_encoder()
    with pytest.raises(
        generate.Missing, match="reads encoder_hidden_states, which an encoder makes: give it with --gi"
    ):
        generate.Decoder(generate.Model(model.inputs[1:], model.outputs, model.run))


@pytest.mark.slow
def test_file_and_library_make_the_same_text(decoders: Path, tmp_path: Path) -> None:
    data = recorded(generate.in_onnxruntime(decoders / "fixed.onnx"), tmp_path / "feeds", 4, 8)
    artifact = compiled(decoders / "fixed.onnx", data, tmp_path, bits=(7,), target="cpu")
    assert_same_tokens(artifact, 30)


@pytest.mark.slow
def test_packed_caches_are_handed_on(decoders: Path, tmp_path: Path) -> None:
    """A library packs bit by bit what the file packs, and so makes the same text."""
    data = recorded(generate.in_onnxruntime(decoders / "fixed.onnx"), tmp_path / "feeds", 4, 8)
    forms = {"past_key_0": "bfp4-sorted", "past_value_0": "int4"}
    options: dict[str, Any] = {"bits": (7,), "activations": "float", "kv_cache": forms, "target": "cpu"}
    assert_same_tokens(compiled(decoders / "fixed.onnx", data, tmp_path, **options), 30)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the decoder as its recipe has it, and samples in `feeds`."""
    folder = tmp_path_factory.mktemp("whole")
    onnx.save(tiny_llama.build(capacity=512), folder / "llama.onnx")
    recorded(generate.in_onnxruntime(folder / "llama.onnx"), folder / "feeds", 4, 40)
    return folder


@pytest.mark.slow
def test_file_and_library_make_the_same_text_of_500_tokens(whole: Path, tmp_path: Path) -> None:
    options = {"activations": "float", "target": "cpu"}
    assert_same_tokens(compiled(whole / "llama.onnx", whole / "feeds", tmp_path, "25%", **options), 500)


@pytest.mark.slow
def test_file_and_library_agree_on_each_of_500_tokens_where_activations_are_codes(whole: Path, tmp_path: Path) -> None:
    """A sum that is rounded in another order turns a code now and then, and a text may go on differently from there."""
    artifact = compiled(whole / "llama.onnx", whole / "feeds", tmp_path, "14%", target="cpu")
    steps: list[generate.Feeds] = []
    file, library = generate.in_onnxruntime(artifact.path, 1), generate.natively(artifact.folder, 1)
    decoder = generate.Decoder(file, lambda feeds: steps.append(dict(feeds)))
    for _ in itertools.islice(generate.generated(decoder, PROMPT, lambda logits: int(logits.argmax())), 500):
        pass
    same = [file.run(feeds)["logits"].argmax() == library.run(feeds)["logits"].argmax() for feeds in steps]
    assert np.mean(same) > 0.99


@pytest.mark.slow
def test_a_cache_that_grows_is_compiled_from_what_was_recorded(decoders: Path, tmp_path: Path) -> None:
    data = recorded(generate.in_onnxruntime(decoders / "grows.onnx"), tmp_path / "feeds", 4, 8)
    artifact = compiled(decoders / "grows.onnx", data, tmp_path, bits=(7,))
    assert artifact.manifest["results"]["top1_agreement"] > 0.9
    assert len(greedy(generate.in_onnxruntime(artifact.path))) == CAPACITY + 5


def test_the_likeliest_token_is_taken_without_a_temperature() -> None:
    assert generate.sampled(np.array([0.0, 3.0, 1.0]), np.random.default_rng(0)) == 1


@pytest.mark.parametrize(
    ("options", "chances"),
    [
        ({}, [0.1, 0.6, 0.3]),
        ({"top_k": 2}, [0, 2 / 3, 1 / 3]),
        ({"top_p": 0.5}, [0, 1, 0]),
        ({"top_p": 0.7}, [0, 2 / 3, 1 / 3]),
        ({"temperature": 0.5}, [0.01 / 0.46, 0.36 / 0.46, 0.09 / 0.46]),
    ],
)
def test_tokens_are_drawn_by_their_chances(options: dict[str, Any], chances: list[float]) -> None:
    random, logits = np.random.default_rng(0), np.log([0.1, 0.6, 0.3])
    drawn = [generate.sampled(logits, random, **{"temperature": 1.0, **options}) for _ in range(3000)]
    assert np.bincount(drawn, minlength=3) / 3000 == pytest.approx(chances, abs=0.03)
    assert all(
        count == 0 for count, chance in zip(np.bincount(drawn, minlength=3), chances, strict=True) if chance == 0
    )


def test_the_program_prints_words_and_ends_where_it_is_told(
    decoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tuple(f"w{number}" for number in range(64 - 4 - len(WORDS)))
    words = ["--tokenizer", str(tokenizer(tmp_path, (*WORDS, *more))), "--prompt", "the cat"]
    model = str(decoders / "grows.onnx")
    generate.main([model, *words, "--tokens", "12", "--temperature", "0.8", "--top-k", "8", "--seed", "3"])
    first = capsys.readouterr()
    assert len(first.out.split()) <= 12
    assert "tokens per second" in first.err
    generate.main([model, *words, "--tokens", "12", "--temperature", "0.8", "--top-k", "8", "--seed", "3"])
    assert capsys.readouterr().out == first.out


def test_without_a_tokenizer_texts_are_numbers(
    decoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, wanted = str(decoders / "grows.onnx"), greedy(generate.in_onnxruntime(decoders / "grows.onnx"), 6)
    generate.main([model, "--prompt", "3 1 4", "--tokens", "6", "--record", str(tmp_path / "feeds")])
    assert [int(word) for word in capsys.readouterr().out.split()] == wanted
    assert len(list((tmp_path / "feeds").iterdir())) == 6
    generate.main([model, "--prompt", "3 1 4", "--tokens", "6", "--stop", str(wanted[3])])
    assert [int(word) for word in capsys.readouterr().out.split()] == wanted[:3]
    with pytest.raises(SystemExit):
        generate.main([model, "--prompt", " "])
    assert "the prompt has no token" in capsys.readouterr().err
