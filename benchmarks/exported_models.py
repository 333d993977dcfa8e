"""Transformers with random weights as users export them: python benchmarks/exported_models.py NAME FOLDER.

Needs torch and transformers, and what optimum exports needs optimum-onnx. Writes model.onnx, and calibration/ and
evaluation/ with a file for each sample. Sizes are small, so that a compile takes seconds; graphs are those of the large
models. Weights are drawn as for training, but larger where a network would otherwise give the same whatever it reads.
"""

import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Feeds = Mapping[str, np.ndarray]
Axes = Mapping[int, str]

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 1000, 128, 4, 2, 24
SIDE, PATCH, MELS, FRAMES, CACHED = 32, 8, 80, 64, 7
CALIBRATION, EVALUATION = 16, 4
SPREAD = 0.08  # of the weights, where configurations have 0.02 for wide networks
BATCH, TIME, PAST, ALL = "batch", "time", "past", "all"


@dataclass(frozen=True)
class Case:
    """A network with its inputs.

    build: gives the torch module, whose inputs are those of `free` in their order; for optimum, the network itself.
    sample: draws one sample. free: the axes of each input that vary. outputs: names, with their free axes.
    optimizer: what onnxruntime.transformers.optimizer takes it for. task, file: what optimum exports, and which of the
    files that it writes this is.
    """

    build: Callable[[], Any]
    sample: Callable[[np.random.Generator, int], Feeds]
    free: Mapping[str, Axes] = field(default_factory=dict)
    outputs: Mapping[str, Axes] = field(default_factory=dict)
    optimizer: str = "bert"
    task: str = ""
    file: str = "model.onnx"


@dataclass(frozen=True)
class Export:
    """A file: of which network, by which exporter, in which opset, and who fused it behind that."""

    case: str
    exporter: str
    opset: int
    fused: str = ""

    @property
    def name(self) -> str:
        """All of it in one word."""
        return "-".join(filter(None, (self.case, self.exporter, str(self.opset), self.fused)))


def _calls(module: Any, call: Callable[..., Any]) -> Any:
    """A module that calls another with positional inputs: tracers cannot pass keyword arguments."""
    import torch

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            return call(self.module, *inputs)

    return Called()


def _words(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.integers(3, WORDS, (1, length))


def _text(rng: np.random.Generator, number: int) -> Feeds:
    """Tokens, of which every other sample is padded on the left."""
    ids, mask = _words(rng, LENGTH), np.ones((1, LENGTH), np.int64)
    if number % 2:
        padding = int(rng.integers(1, LENGTH // 2))
        ids[:, :padding], mask[:, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _pairs(rng: np.random.Generator, number: int) -> Feeds:
    feeds = _text(rng, number)
    kinds = (np.arange(LENGTH)[None] >= LENGTH // 2).astype(np.int64)
    return {**feeds, "token_type_ids": kinds}


def _cached(rng: np.random.Generator, _number: int) -> Feeds:
    """A few tokens behind a cache: of one alone, exporters make other graphs."""
    length = 4
    shape = (1, HEADS // 2, CACHED, WIDTH // HEADS)
    past = {f"past_key_values.{n}.{part}": rng.standard_normal(shape).astype(np.float32) for n, part in _places()}
    return {"input_ids": _words(rng, length), "attention_mask": np.ones((1, CACHED + length), np.int64), **past}


def _places() -> list[tuple[int, str]]:
    return [(number, part) for number in range(LAYERS) for part in ("key", "value")]


def _picture(rng: np.random.Generator, _number: int) -> Feeds:
    coarse = rng.standard_normal((1, 3, SIDE // 4, SIDE // 4)).repeat(4, 2).repeat(4, 3)
    return {"pixel_values": (coarse + 0.2 * rng.standard_normal((1, 3, SIDE, SIDE))).astype(np.float32)}


def _sound(rng: np.random.Generator, _number: int) -> Feeds:
    return {"input_features": rng.standard_normal((1, MELS, FRAMES)).astype(np.float32)}


def _behind_encoder(rng: np.random.Generator, _number: int) -> Feeds:
    states = rng.standard_normal((1, LENGTH, WIDTH)).astype(np.float32)
    return {"decoder_input_ids": _words(rng, 8), "encoder_hidden_states": states}


def _cached_places(rng: np.random.Generator, number: int) -> Feeds:
    """The same with the places of the tokens, and as many heads in the cache as elsewhere."""
    feeds = _cached(rng, number)
    past = {name: np.repeat(array, 2, axis=1) for name, array in feeds.items() if name.startswith("past")}
    return {**feeds, **past, "position_ids": np.arange(CACHED, CACHED + 4)[None]}


def _merged(rng: np.random.Generator, number: int) -> Feeds:
    """A decoder behind an encoder: every other sample begins a text, and the flag says that no cache is read."""
    goes_on = bool(number % 2)
    kinds = {"decoder": CACHED if goes_on else 0, "encoder": LENGTH}
    past = {
        f"past_key_values.{n}.{kind}.{part}": rng.standard_normal((1, HEADS, places, WIDTH // HEADS)).astype(np.float32)
        for n, part in _places()
        for kind, places in kinds.items()
    }
    states = rng.standard_normal((1, LENGTH, WIDTH)).astype(np.float32)
    flag = {"use_cache_branch": np.array([goes_on])}
    mask = np.ones((1, LENGTH), np.int64)
    mask[:, LENGTH - number % 6 :] = 0
    behind: Feeds = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
    return {"input_ids": _words(rng, 8), **behind, **past, **flag}


def _picture_and_text(rng: np.random.Generator, number: int) -> Feeds:
    """A picture, and three texts of which one may fit it."""
    texts = [_text(rng, 0) for _ in range(3)]
    return {**{name: np.concatenate([feeds[name] for feeds in texts]) for name in texts[0]}, **_picture(rng, number)}


def _configured(kind: str, attention: str = "sdpa", **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, kind)(vocab_size=WORDS, initializer_range=SPREAD, init_std=SPREAD, **sizes)
    config._attn_implementation = attention
    return config


def _random_network(network: str, config: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, network)(config).eval()


def bert(attention: str = "sdpa") -> Any:
    config = _configured(
        "BertConfig",
        attention,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )

    def call(model: Any, ids: Any, mask: Any, kinds: Any) -> Any:
        out = model(input_ids=ids, attention_mask=mask, token_type_ids=kinds)
        return out.last_hidden_state, out.pooler_output

    return _calls(_random_network("BertModel", config), call)


def bert_eager() -> Any:
    """As the optimizer of ONNX Runtime finds the attention."""
    return bert("eager")


def distilbert() -> Any:
    config = _configured("DistilBertConfig", dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=4 * WIDTH)
    model = _random_network("DistilBertForSequenceClassification", config)
    return _calls(model, lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).logits)


def _causal(model: Any) -> Any:
    return _calls(model, lambda m, ids, mask: m(input_ids=ids, attention_mask=mask, use_cache=False).logits)


def gpt2() -> Any:
    return _causal(
        _random_network("GPT2LMHeadModel", _configured("GPT2Config", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS))
    )


def _opt() -> Any:
    config = _configured(
        "OPTConfig",
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
    )
    return _random_network("OPTForCausalLM", config)


def opt() -> Any:
    return _causal(_opt())


def _llama() -> Any:
    config = _configured(
        "LlamaConfig",
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
    )
    return _random_network("LlamaForCausalLM", config)


def llama() -> Any:
    return _causal(_llama())


def llama_cached() -> Any:
    from transformers import DynamicCache

    def call(model: Any, ids: Any, mask: Any, *past: Any) -> Any:
        cache = DynamicCache()
        for number in range(LAYERS):
            cache.update(past[2 * number], past[2 * number + 1], number)
        out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        layers = out.past_key_values.layers
        return (out.logits, *(part for layer in layers for part in (layer.keys, layer.values)))

    return _calls(_llama(), call)


def _t5(attention: str = "sdpa") -> Any:
    config = _configured(
        "T5Config", attention, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS
    )
    config.decoder_start_token_id = 0
    return _random_network("T5ForConditionalGeneration", config)


def t5_encoder() -> Any:
    return _calls(_t5().encoder, lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).last_hidden_state)


def _decoder(model: Any) -> Any:
    import torch

    def call(model: Any, ids: Any, states: Any) -> Any:
        seen = torch.ones_like(ids)
        out = model(decoder_input_ids=ids, decoder_attention_mask=seen, encoder_outputs=(states,), use_cache=False)
        return out.logits

    return _calls(model, call)


def t5_decoder() -> Any:
    return _decoder(_t5())


def _vit() -> Any:
    config = _configured(
        "ViTConfig",
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        image_size=SIDE,
        patch_size=PATCH,
        num_labels=10,
    )
    return _random_network("ViTForImageClassification", config)


def vit() -> Any:
    return _calls(_vit(), lambda m, x: m(pixel_values=x).logits)


def _clip() -> Any:
    import torch
    import transformers

    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "projection_dim": WIDTH // 2,
        "initializer_range": SPREAD,
    }
    words = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": WORDS - 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**sizes, **words, "max_position_embeddings": 2 * LENGTH},
        vision_config={**sizes, "image_size": SIDE, "patch_size": PATCH},
        projection_dim=WIDTH // 2,
    )
    torch.manual_seed(0)
    return transformers.CLIPModel(config).eval()


def _whisper() -> Any:
    config = _configured(
        "WhisperConfig",
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        num_mel_bins=MELS,
        max_source_positions=FRAMES // 2,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return _random_network("WhisperForConditionalGeneration", config)


def whisper_encoder() -> Any:
    return _calls(_whisper().model.encoder, lambda m, x: m(x).last_hidden_state)


def whisper_decoder() -> Any:
    return _decoder(_whisper())


ROW: Axes = {0: BATCH, 1: TIME}
TEXT = {"input_ids": ROW, "attention_mask": ROW}
CACHE: Axes = {0: BATCH, 2: PAST}
DECODED = {"decoder_input_ids": ROW, "encoder_hidden_states": {0: BATCH, 1: "heard"}}
FEATURES, LOGITS = {"last_hidden_state": ROW}, {"logits": ROW}
CACHED_INPUTS = {
    "input_ids": ROW,
    "attention_mask": {0: BATCH, 1: ALL},
    **{f"past_key_values.{n}.{part}": CACHE for n, part in _places()},
}
CACHED_OUTPUTS = {**LOGITS, **{f"present.{n}.{part}": {0: BATCH, 2: ALL} for n, part in _places()}}
ALONE: Axes = {0: BATCH}

CASES = {
    "bert": Case(bert, _pairs, {**TEXT, "token_type_ids": ROW}, {**FEATURES, "pooler_output": ALONE}),
    "bert_eager": Case(bert_eager, _pairs, {**TEXT, "token_type_ids": ROW}, {**FEATURES, "pooler_output": ALONE}),
    "distilbert": Case(distilbert, _text, TEXT, {"logits": ALONE}),
    "gpt2": Case(gpt2, _text, TEXT, LOGITS, "gpt2"),
    "opt": Case(opt, _text, TEXT, LOGITS, "gpt2"),
    "llama": Case(llama, _text, TEXT, LOGITS, "gpt2"),
    "llama_cached": Case(llama_cached, _cached, CACHED_INPUTS, CACHED_OUTPUTS, "gpt2"),
    "t5_encoder": Case(t5_encoder, _text, TEXT, FEATURES, "t5"),
    "t5_decoder": Case(t5_decoder, _behind_encoder, DECODED, LOGITS, "t5"),
    "vit": Case(vit, _picture, {"pixel_values": ALONE}, {"logits": ALONE}, "vit"),
    "whisper_encoder": Case(whisper_encoder, _sound, {"input_features": ALONE}, {"last_hidden_state": ALONE}, "bart"),
    "whisper_decoder": Case(whisper_decoder, _behind_encoder, DECODED, LOGITS, "bart"),
}
# What optimum exports: it names inputs, outputs and axes itself, the channels of pictures too.
CASES |= {
    "vit_whole": Case(_vit, _picture, task="image-classification"),
    "clip": Case(_clip, _picture_and_text, task="zero-shot-image-classification"),
    "opt_cached": Case(_opt, _cached_places, task="text-generation-with-past"),
    "t5_merged": Case(
        lambda: _t5("eager"), _merged, task="text2text-generation-with-past", file="decoder_model_merged.onnx"
    ),
}
OLD, NEW, OPTIMUM = "torchscript", "dynamo", "optimum"
OPTIMIZER, FUSIONS, STANDARD = "onnxruntime", "onnxscript", "standard"
LISTED = (
    Export("bert", OLD, 17),
    Export("bert", NEW, 23),
    Export("bert_eager", OLD, 17, OPTIMIZER),
    Export("distilbert", NEW, 18),
    Export("distilbert", OLD, 17, OPTIMIZER),
    Export("gpt2", OLD, 17),
    Export("gpt2", NEW, 23),
    Export("gpt2", OLD, 17, OPTIMIZER),
    Export("opt", NEW, 18),
    Export("llama", OLD, 17),
    Export("llama", NEW, 23, STANDARD),
    Export("llama", NEW, 18, FUSIONS),
    Export("llama_cached", OLD, 17),
    Export("llama_cached", NEW, 23, STANDARD),
    Export("t5_encoder", OLD, 17),
    Export("t5_decoder", NEW, 18),
    Export("t5_decoder", NEW, 18, FUSIONS),
    Export("vit", NEW, 18),
    Export("vit", OLD, 17, OPTIMIZER),
    Export("whisper_encoder", OLD, 17),
    Export("whisper_encoder", NEW, 18, FUSIONS),
    Export("whisper_decoder", OLD, 17),
    Export("whisper_decoder", NEW, 18),
    Export("vit_whole", OPTIMUM, 18),
    Export("clip", OPTIMUM, 18),
    Export("opt_cached", OPTIMUM, 18),
    Export("t5_merged", OPTIMUM, 18),
)
EXPORTS = {export.name: export for export in LISTED}


def export(spec: Export, path: Path) -> None:
    """Write the file."""
    import torch

    case = CASES[spec.case]
    if spec.exporter == OPTIMUM:
        _by_optimum(case, spec.opset, path)
        return
    feeds = case.sample(np.random.default_rng(0), 2)
    feeds = {name: np.concatenate([feeds[name]] * 2) if spec.exporter == NEW else feeds[name] for name in case.free}
    inputs = tuple(torch.as_tensor(feeds[name]) for name in case.free)
    names = {"input_names": list(case.free), "output_names": list(case.outputs), "opset_version": spec.opset}
    axes: dict[str, Any] = {"dynamic_axes": {**case.free, **case.outputs}, "dynamo": False}
    if spec.exporter == NEW:
        shapes = tuple(dict.fromkeys(free, torch.export.Dim.DYNAMIC) for free in case.free.values())
        axes = {"dynamic_shapes": (shapes,), "dynamo": True, "external_data": False}
    with torch.no_grad():
        torch.onnx.export(case.build().eval(), inputs, str(path), **names, **axes)
    if spec.fused:
        FUSE[spec.fused](path, case)


def _by_optimum(case: Case, opset: int, path: Path) -> None:
    from optimum.exporters.onnx import onnx_export_from_model

    with tempfile.TemporaryDirectory() as folder:
        options = {"task": case.task, "opset": opset, "do_validation": False}
        onnx_export_from_model(case.build(), Path(folder), **options)
        shutil.copy(Path(folder) / case.file, path)


def _by_optimizer(path: Path, case: Case) -> None:
    from onnxruntime.transformers import optimizer

    model = optimizer.optimize_model(str(path), case.optimizer, HEADS, WIDTH, opt_level=0)
    print(model.get_fused_operator_statistics())
    model.save_model_to_file(str(path))


def _by_onnxscript(path: Path, _case: Case) -> None:
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model, counts = optimize_for_ort(ir.load(path))
    print(counts)
    ir.save(model, path)


def _to_standard(path: Path, _case: Case) -> None:
    import onnx_ir as ir
    from onnxscript.rewriter import onnx_fusions

    model = ir.load(path)
    print(onnx_fusions.fuse(model))
    ir.save(model, path)


FUSE = {OPTIMIZER: _by_optimizer, FUSIONS: _by_onnxscript, STANDARD: _to_standard}


def main(arguments: Sequence[str]) -> None:
    name, folder = arguments[0], Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    spec = EXPORTS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(spec, folder / "model.onnx")
    rng, sample = np.random.default_rng(1), CASES[spec.case].sample
    for part, count in (("calibration", CALIBRATION), ("evaluation", EVALUATION)):
        (folder / part).mkdir(exist_ok=True)
        for number in range(count):
            np.savez(folder / part / f"{number:04}.npz", **dict[str, Any](sample(rng, number)))


if __name__ == "__main__":
    main(sys.argv[1:])
