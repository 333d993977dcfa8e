"""Let onnxruntime-genai load a decoder: `python examples/genai.py MODEL --context N --stop N`.

MODEL is an ONNX file, or a folder that `ptqc compile` wrote. Beside it goes `genai_config.json`, which says what its
inputs and outputs are called and how large its caches are, and with `--tokenizer tokenizer.json` the tokenizer. A
decoder that onnxruntime-genai cannot run is refused: its caches must grow, hold floats and be numbered by layer.

Needs ptqc. Works with onnxruntime-genai 0.18, beside ONNX Runtime 1.31 or later.
"""

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import MASKS, PLACES, InputSpec, input_specs
from ptqc.errors import ModelError, PtqcError
from ptqc.ir.layers import Cache, find_caches
from ptqc.losses.words import says

INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
CACHED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# No token has this number. onnxruntime-genai takes padding off the end of a prompt, so that one which ends with a real
# token of the number stated here would be continued from a place before its end.
NO_PADDING = -1


def config(model: ir.Model, file: str, context: int, stop: Sequence[int]) -> dict[str, Any]:
    """What `genai_config.json` says.

    file: of the model, in the same folder. context: tokens of the longest text. stop: the tokens that end a text.
    Raises ModelError for a model that onnxruntime-genai cannot run, and for tokens that it does not have.
    """
    caches = find_caches(model)
    heads, size = _sizes(caches)
    pasts, presents = _patterns(caches)
    logits, vocabulary = _logits(model, caches)
    if wrong := [token for token in stop if not 0 <= token < vocabulary]:
        raise ModelError(f"the model has no token {wrong[0]} to stop at: give one from 0 to {vocabulary - 1}")
    inputs = {"past_key_names": pasts[0], "past_value_names": pasts[1]}
    outputs = {"logits": logits, "present_key_names": presents[0], "present_value_names": presents[1]}
    decoder = {
        "filename": file,
        "head_size": size,
        "num_key_value_heads": heads,
        "num_hidden_layers": len(caches) // 2,
        "inputs": _inputs(model, caches) | inputs,
        "outputs": outputs,
    }
    ends = {"eos_token_id": [*stop], "pad_token_id": NO_PADDING}
    sizes = {"vocab_size": vocabulary, "context_length": context}
    return {"model": {"type": "decoder", **sizes, **ends, "decoder": decoder}}


def _sizes(caches: Sequence[Cache]) -> tuple[int, int]:
    """Heads and channels of a head, which all caches share."""
    if not caches:
        raise ModelError(
            "no input is a cache that an output continues, as present.0.key does past_key_values.0.key: export the "
            "decoder with its cache; examples/generate.py runs it without one"
        )
    for cache in caches:
        if cache.past.dtype not in CACHED:
            raise ModelError(
                f"cache {cache.name!r} holds {cache.past.dtype}, onnxruntime-genai keeps float32 or float16: compile "
                "with --kv-cache float or float16"
            )
    found = {(cache.past.dtype, *_shape(cache)) for cache in caches}
    if len(found) > 1:
        told = " and ".join(sorted(f"{dtype} with {heads} heads of {size}" for dtype, heads, size in found))
        raise ModelError(f"caches hold {told}: onnxruntime-genai needs one type and size for all of them")
    _, heads, size = found.pop()
    return heads, size


def _shape(cache: Cache) -> tuple[int, int]:
    assert cache.past.shape is not None, "a cache has four axes"
    _, heads, places, size = cache.past.shape
    if isinstance(places, int):
        raise ModelError(
            f"cache {cache.name!r} has room for {places} tokens from the start: onnxruntime-genai needs one that "
            "grows, with an open axis; examples/generate.py runs this one"
        )
    if not (isinstance(heads, int) and isinstance(size, int)):
        raise ModelError(f"cache {cache.name!r} leaves its heads or channels open: declare both in the model")
    return heads, size


def _patterns(caches: Sequence[Cache]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names with %d in place of the layer: of the keys and values that go in, and of those that come out."""
    groups: dict[str, list[Cache]] = {}
    for cache in caches:
        groups.setdefault(_pattern(cache.name), []).append(cache)
    layers = range(len(caches) // 2)
    for pattern, group in groups.items():
        if len(groups) != 2 or {cache.name for cache in group} != {pattern.replace("%d", str(i)) for i in layers}:
            names = ", ".join(cache.name for cache in caches)
            raise ModelError(
                f"caches are called {names}: onnxruntime-genai needs one of keys and one of values for each layer, "
                "with names that differ in the layer's number only, counted from 0, as past_key_values.0.key"
            )
    keys, values = groups
    return (keys, values), (_pattern(groups[keys][0].present.name), _pattern(groups[values][0].present.name))


def _pattern(name: str | None) -> str:
    return LAST_NUMBER.sub("%d", str(name))


def _inputs(model: ir.Model, caches: Sequence[Cache]) -> dict[str, str]:
    """The model's name for each input that is no cache, by that of onnxruntime-genai."""
    pasts = {cache.name for cache in caches}
    found: dict[str, InputSpec] = {}
    for spec in input_specs(model):
        if spec.name in pasts:
            continue
        name = _known(spec.name)
        if name in found:
            raise ModelError(
                f"inputs {found[name]} and {spec}: onnxruntime-genai gives tokens, a mask, positions and caches, and "
                "nothing else: leave one of them out of the export"
            )
        if spec.dtype not in INTEGERS or len(spec.shape) != 2 or isinstance(spec.shape[1], int):
            raise ModelError(f"input {spec}: onnxruntime-genai gives int64 or int32 (texts, tokens), tokens left open")
        found[name] = spec
    if "input_ids" not in found:
        raise ModelError("no input takes tokens: onnxruntime-genai gives a model their numbers, not their embeddings")
    if len({found[name].dtype for name in ("attention_mask", "position_ids") if name in found}) > 1:
        raise ModelError(
            f"inputs {found['attention_mask']} and {found['position_ids']}: onnxruntime-genai gives both the same type"
        )
    return {name: spec.name for name, spec in found.items()}


def _known(name: str) -> str:
    """What onnxruntime-genai calls an input; as in examples/generate.py, tokens are what is no mask or position."""
    return "attention_mask" if says(name, MASKS) else "position_ids" if says(name, PLACES) else "input_ids"


def _logits(model: ir.Model, caches: Sequence[Cache]) -> tuple[str, int]:
    """Name and number of tokens."""
    presents = {cache.present.name for cache in caches}
    value = next((value for value in model.graph.outputs if value.name not in presents), None)
    if value is None or value.shape is None or value.shape.rank() != 3 or not isinstance(value.shape[2], int):
        told = "no output" if value is None else f"output {value.name!r} {value.shape}"
        raise ModelError(f"{told}: expected logits, (texts, tokens, size of the vocabulary) with the last one stated")
    return str(value.name), value.shape[2]


def copy_tokenizer(tokenizer: Path, folder: Path) -> None:
    """The tokenizer with its settings; empty ones, which onnxruntime-genai needs as well, where there are none."""
    for name in (tokenizer.name, SETTINGS, TEMPLATE):
        source, target = tokenizer.parent / name, folder / ("tokenizer.json" if name == tokenizer.name else name)
        if source.exists() and source.resolve() != target.resolve():
            shutil.copyfile(source, target)
    if not (folder / SETTINGS).exists():
        (folder / SETTINGS).write_text("{}\n", encoding="utf-8")
        print(f"{tokenizer.parent} has no {SETTINGS}: onnxruntime-genai will begin no text with a special token")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files beside the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="an ONNX file, or a folder that ptqc compile wrote")
    parser.add_argument("--context", type=int, required=True, help="tokens of the longest text, prompt included")
    parser.add_argument("--stop", type=int, required=True, action="append", help="a token that ends a text; repeatable")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; its tokenizer_config.json is copied with it")
    options = parser.parse_args(arguments)
    path = options.model / "model.onnx" if options.model.is_dir() else options.model
    if options.context < 1:
        parser.error(f"--context {options.context}: a text has at least one token")
    if missing := [str(file) for file in (path, options.tokenizer) if file is not None and not file.is_file()]:
        parser.error(f"{missing[0]} is not a file")
    try:
        found = config(ir.load(path), path.name, options.context, options.stop)
    except PtqcError as error:
        parser.error(f"{path}: {error}")
    (path.parent / "genai_config.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.tokenizer is not None:
        copy_tokenizer(options.tokenizer, path.parent)
    print(path.parent)


if __name__ == "__main__":
    main()
