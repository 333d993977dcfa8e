"""examples/genai.py: what it says of a decoder, what it refuses, and that onnxruntime-genai makes the same tokens."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import tiny_llama_model
from compiling import compiled
from onnx import TensorProto, helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from writing import tokenizer

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import genai
import generate

tiny_llama = tiny_llama_model.tiny_llama
MISSING = "needs onnxruntime-genai: pip install onnxruntime-genai"
SMALLER = {"WIDTH": 64, "INNER": 96, "SIZE": 16, "VOCABULARY": 64}
CONTEXT, STOP = 30, [2]
# The last one ends with 0, which onnxruntime-genai takes for padding unless it is told otherwise.
PROMPTS = [3, 1, 4], [7], [5, 0]


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders of two layers that take no time."""
    for name, value in SMALLER.items():
        monkeypatch.setattr(tiny_llama, name, value)


def exported() -> onnx.ModelProto:
    """The decoder as exporters write it: with their names, and with a mask and positions that it reads."""
    model = tiny_llama.build()
    places, every = (node for node in model.graph.node if node.op_type == "Range")
    _replace(model, places, "Reshape", "position_ids", "flat")
    _replace(model, every, "Sub", "counted", "one")
    numbers = {"flat": [-1], "one": [1], "first": [0]}
    for name, values in numbers.items():
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], values))
    model.graph.node.insert(0, helper.make_node("CumSum", ["row", "first"], ["counted"]))
    model.graph.node.insert(0, helper.make_node("Reshape", ["attention_mask", "flat"], ["row"]))
    for name, axis in (("attention_mask", "Q"), ("position_ids", "T")):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["N", axis]))
    for node in model.graph.node:
        node.input[:], node.output[:] = map(_exported, node.input), map(_exported, node.output)
    for value in (*model.graph.input, *model.graph.output):
        value.name = _exported(value.name)
    onnx.checker.check_model(model)
    return model


def _replace(model: onnx.ModelProto, node: onnx.NodeProto, operator: str, *inputs: str) -> None:
    place = list(model.graph.node).index(node)
    made = helper.make_node(operator, inputs, node.output)
    model.graph.node.remove(node)
    model.graph.node.insert(place, made)


def _exported(name: str) -> str:
    """past_key_0 as past_key_values.0.key, present_key_0 as present.0.key."""
    for kind in ("key", "value"):
        for mine, theirs in ((f"past_{kind}_", "past_key_values"), (f"present_{kind}_", "present")):
            if name.startswith(mine):
                return f"{theirs}.{name.removeprefix(mine)}.{kind}"
    return "input_ids" if name == "tokens" else name


def test_names_and_sizes_are_those_of_the_model() -> None:
    result = genai.config(ir.from_proto(tiny_llama.build()), "model.onnx", CONTEXT, STOP)
    decoder = {
        "filename": "model.onnx",
        "head_size": 16,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "inputs": {"input_ids": "tokens", "past_key_names": "past_key_%d", "past_value_names": "past_value_%d"},
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_%d",
            "present_value_names": "present_value_%d",
        },
    }
    sizes = {"vocab_size": 64, "context_length": CONTEXT, "eos_token_id": STOP, "pad_token_id": -1}
    assert result == {"model": {"type": "decoder", **sizes, "decoder": decoder}}


def test_names_of_exporters_are_known() -> None:
    decoder = genai.config(ir.from_proto(exported()), "model.onnx", CONTEXT, STOP)["model"]["decoder"]
    names = ("input_ids", "attention_mask", "position_ids")
    pasts = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    presents = {f"present_{kind}_names": f"present.%d.{kind}" for kind in ("key", "value")}
    assert decoder["inputs"] == {name: name for name in names} | pasts
    assert decoder["outputs"] == {"logits": "logits"} | presents


def _caches(model: ir.Model) -> list[ir.Value]:
    return [value for value in (*model.graph.inputs, *model.graph.outputs) if "_key_" in str(value.name)]


def _packed(model: ir.Model) -> None:
    for value in _caches(model):
        value.dtype = ir.DataType.UINT8


def _mixed(model: ir.Model) -> None:
    for value in _caches(model):
        value.dtype = ir.DataType.FLOAT16


def _from_one(model: ir.Model) -> None:
    for value in _caches(model):
        value.name = str(value.name).replace("1", "2").replace("0", "1")


def _open_heads(model: ir.Model) -> None:
    for value in _caches(model):
        value.shape = ir.Shape(["N", "H", None, 16])


def _types_too(model: ir.Model) -> None:
    kind, shape = ir.TensorType(ir.DataType.INT64), ir.Shape(["N", "T"])
    model.graph.inputs.append(ir.Value(name="token_type_ids", type=kind, shape=shape))


def _mask_of_truths(model: ir.Model) -> None:
    kind, shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(["N", "S"])
    model.graph.inputs.append(ir.Value(name="attention_mask", type=kind, shape=shape))


def _short_positions(model: ir.Model) -> None:
    for name, kind in (("attention_mask", ir.DataType.INT64), ("position_ids", ir.DataType.INT32)):
        model.graph.inputs.append(ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(["N", "S"])))


def _no_tokens(model: ir.Model) -> None:
    del model.graph.inputs[0]


def _one_length(model: ir.Model) -> None:
    model.graph.inputs[0].shape = ir.Shape([1, 12])


def _unknown_vocabulary(model: ir.Model) -> None:
    model.graph.outputs[0].shape = ir.Shape(["N", "T", "V"])


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"cache": False}, None, "no input is a cache"),
        ({"capacity": 40}, None, "'past_key_0' has room for 40 tokens from the start"),
        ({}, _packed, "'past_key_0' holds UINT8, .* --kv-cache float or float16"),
        ({}, _mixed, "caches hold FLOAT with 2 heads of 16 and FLOAT16 with 2 heads of 16"),
        ({}, _from_one, "are called past_key_1, past_value_0, .* counted from 0"),
        ({}, _open_heads, "leaves its heads or channels open"),
        ({}, _types_too, r"'tokens' int64\(N, T\) and 'token_type_ids' int64\(N, T\): .* and nothing else"),
        ({}, _mask_of_truths, r"input 'attention_mask' bool\(N, S\): .* gives int64 or int32"),
        ({}, _short_positions, r"'attention_mask' int64\(N, S\) and 'position_ids' int32.* the same type"),
        ({}, _no_tokens, "no input takes tokens"),
        ({}, _one_length, r"input 'tokens' int64\(1, 12\): .* tokens left open"),
        ({}, _unknown_vocabulary, "output 'logits' .*: expected logits"),
    ],
)
def test_what_onnxruntime_genai_cannot_run_is_refused(
    options: dict[str, Any], change: Callable[[ir.Model], None] | None, message: str
) -> None:
    model = ir.from_proto(tiny_llama.build(**options))
    if change is not None:
        change(model)
    with pytest.raises(genai.ModelError, match=message):
        genai.config(model, "model.onnx", CONTEXT, STOP)


def test_the_program_writes_the_files_beside_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(tiny_llama.build(), tmp_path / "llama.onnx")
    (tmp_path / "texts").mkdir()
    words, settings = tokenizer(tmp_path / "texts"), tmp_path / "tokenizer_config.json"
    stated = [str(tmp_path / "llama.onnx"), "--context", str(CONTEXT), "--stop", "2", "--tokenizer", str(words)]
    genai.main(stated)
    written = json.loads((tmp_path / "genai_config.json").read_text())
    assert written == genai.config(ir.load(tmp_path / "llama.onnx"), "llama.onnx", CONTEXT, STOP)
    assert (tmp_path / "tokenizer.json").read_bytes() == words.read_bytes()
    assert settings.read_text() == "{}\n"
    assert "will begin no text with a special token" in capsys.readouterr().out
    (tmp_path / "texts" / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    genai.main(stated)
    assert json.loads(settings.read_text()) == {"add_bos_token": True}
    with pytest.raises(SystemExit):
        genai.main([*stated, "--stop", "64"])
    assert "llama.onnx: the model has no token 64 to stop at: give one from 0 to 63" in capsys.readouterr().err


@pytest.mark.parametrize("build", [tiny_llama.build, exported])
def test_onnxruntime_genai_makes_the_same_tokens(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    onnx.save(build(), tmp_path / "model.onnx")
    lengths = assert_same_tokens(tmp_path)
    assert min(lengths) < max(lengths) == CONTEXT


@pytest.mark.slow
def test_onnxruntime_genai_makes_the_same_tokens_with_a_compiled_decoder(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai", reason=MISSING)
    onnx.save(exported(), tmp_path / "llama.onnx")
    model, recorder = generate.in_onnxruntime(tmp_path / "llama.onnx", 1), generate.recorder(tmp_path / "feeds")
    for prompt in PROMPTS:
        assert len(greedy(generate.Decoder(model, recorder), prompt, 8)) == 8
    assert_same_tokens(compiled(tmp_path / "llama.onnx", tmp_path / "feeds", tmp_path, bits=(7,)).folder)


def test_onnxruntime_genai_reads_texts_with_the_tokenizer(tmp_path: Path) -> None:
    og = pytest.importorskip("onnxruntime_genai", reason=MISSING)
    text, pairs = "the cat sees a dog, é", pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pairs, decoders.ByteLevel()
    made.train_from_iterator([text], trainers.BpeTrainer(vocab_size=270, initial_alphabet=pairs.alphabet()))
    (tmp_path / "texts").mkdir()
    made.save(str(tmp_path / "texts" / "tokenizer.json"))
    onnx.save(tiny_llama.build(), tmp_path / "model.onnx")
    stated = ["--context", str(CONTEXT), "--stop", "2", "--tokenizer", str(tmp_path / "texts" / "tokenizer.json")]
    genai.main([str(tmp_path), *stated])
    result = og.Tokenizer(og.Model(str(tmp_path)))
    assert [*result.encode(text)] == made.encode(text).ids
    assert result.decode(result.encode(text)) == text


def assert_same_tokens(folder: Path) -> list[int]:
    """As examples/generate.py makes, up to a token that ends a text, or to the end of the context: lengths of texts."""
    og = pytest.importorskip("onnxruntime_genai", reason=MISSING)
    decoder = generate.in_onnxruntime(folder / "model.onnx", 1)
    stop = greedy(generate.Decoder(decoder), PROMPTS[0], 6)[-1]
    genai.main([str(folder), "--context", str(CONTEXT), "--stop", str(stop)])
    model, lengths = og.Model(str(folder)), []
    for prompt in PROMPTS:
        generator = og.Generator(model, og.GeneratorParams(model))
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        wanted = prompt + greedy(generate.Decoder(decoder), prompt, CONTEXT - len(prompt), stop)
        assert [*generator.get_sequence(0)] == wanted
        lengths.append(len(wanted))
    return lengths


def greedy(decoder: generate.Decoder, prompt: list[int], count: int, stop: int | None = None) -> list[int]:
    """The likeliest tokens behind a prompt."""
    tokens = generate.generated(decoder, prompt, lambda logits: int(logits.argmax()))
    return list(generate.until(tokens, count, stop))
