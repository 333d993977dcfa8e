"""A decoder of `models/random_llama.py` in llama.cpp: its weights as GGUF in Q4_K, and one token behind a past.

Needs the packages llama-cpp-python and gguf, which nothing else here does.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

BATCH = 512
# Names of GGUF, and of the recipe's matrices.
MATRICES = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}


def write(model: Path, shape: Any, places: int, path: Path) -> Path:
    """The quantized file, beside one in float16. shape: as the recipe has it; places: of the longest text."""
    import gguf
    import llama_cpp

    halves = path.with_suffix(".f16.gguf")
    writer = gguf.GGUFWriter(str(halves), "llama")
    for add, value in (
        (writer.add_block_count, shape.layers),
        (writer.add_context_length, places),
        (writer.add_embedding_length, shape.width),
        (writer.add_feed_forward_length, shape.inner),
        (writer.add_head_count, shape.heads),
        (writer.add_head_count_kv, shape.shared),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, shape.head),
        (writer.add_vocab_size, shape.vocabulary),
        (writer.add_tokenizer_model, "no_vocab"),
    ):
        add(value)
    arrays = {x.name: x for x in onnx.load(model).graph.initializer}

    def matrix(name: str) -> np.ndarray:
        return np.ascontiguousarray(numpy_helper.to_array(arrays[name]).T.astype(np.float16))

    ones = np.ones(shape.width, np.float32)
    writer.add_tensor("token_embd.weight", numpy_helper.to_array(arrays["embedding"]).astype(np.float16))
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
        for theirs, ours in MATRICES.items():
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", matrix(f"layer_{layer}_{ours}"))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", matrix("head"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    llama_cpp.llama_log_set(_say_nothing(llama_cpp), None)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.pure, parameters.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S, True, 1
    if llama_cpp.llama_model_quantize(str(halves).encode(), str(path).encode(), parameters):
        raise RuntimeError(f"llama.cpp does not quantize {halves}")
    halves.unlink()
    return path


@cache
def _say_nothing(llama_cpp: Any) -> Any:
    """What takes messages; kept, as llama.cpp holds only its address."""
    return llama_cpp.llama_log_callback(lambda *_message: None)


def opened(path: Path, past: int, vocabulary: int, threads: int) -> Callable[[], None]:
    """Decodes one token behind so many random ones, again and again."""
    import llama_cpp

    llama_cpp.llama_log_set(_say_nothing(llama_cpp), None)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_threads, parameters.n_threads_batch = (
        past + BATCH,
        BATCH,
        threads,
        threads,
    )
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not model or not context:
        raise RuntimeError(f"llama.cpp does not open {path}")
    memory = llama_cpp.llama_get_memory(context)
    text = np.random.default_rng(0).integers(0, vocabulary, past + 1).tolist()

    def decode(tokens: list[int]) -> None:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama.cpp does not decode")

    for start in range(0, past, BATCH):
        decode(text[start : min(start + BATCH, past)])

    def step() -> None:
        decode(text[-1:])
        llama_cpp.llama_memory_seq_rm(memory, 0, past, -1)

    return step
