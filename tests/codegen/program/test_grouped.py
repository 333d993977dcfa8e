"""GroupQueryAttention by other operators gives what ONNX Runtime's own gives, step by step."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import noise

from ptqc.codegen.program.expansion import expanded
from ptqc.execution.onnxruntime import Feeds, run

HEADS, SHARED, SIZE, MOST = 4, 2, 16, 32  # ONNX Runtime turns heads of multiples of 16 alone
ROTARY = ", do_rotary = 1"
CASES = {
    "plain": "",
    "scaled": ", scale = 0.3",
    "capped": ", softcap = 2.0",
    "rotary": ROTARY,
    "rotary neighbours": f"{ROTARY}, rotary_interleaved = 1",
}
ADDED = {"": "", "for all heads": "float[1, 1, T, Q] added", "for each": f"float[1, {HEADS}, T, Q] added"}


def grouped(attributes: str, packed: bool, added: str = "", past: str = "P", words: str = "T") -> ir.Model:
    whole = "Q" if past == "P" else past
    width = (HEADS + 2 * SHARED) * SIZE if packed else HEADS * SIZE
    parts = [f"float[N, {words}, {width}] q"]
    if not packed:
        parts += [f"float[N, {words}, {SHARED * SIZE}] {name}" for name in "kv"]
    parts += [f"float[N, {SHARED}, {past}, {SIZE}] {name}" for name in ("past_k", "past_v")]
    parts += ["int32[N] lengths", "int32[1] total", *(f"float[{MOST}, {SIZE // 2}] {name}" for name in ("cos", "sin"))]
    parts += [added] if added else []
    value = f"q, {', ' if packed else 'k, v'}, past_k, past_v, lengths, total"
    value += ", cos, sin" if "rotary" in attributes else ", , " if added else ""
    value += ", , added" if added else ""
    node = f"com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {SHARED}{attributes}> ({value})"
    made = [f"float[N, {words}, {HEADS * SIZE}] y"]
    made += [f"float[N, {SHARED}, {whole}, {SIZE}] {name}" for name in ("present_k", "present_v")]
    header = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>'
    body = f"y, present_k, present_v = {node}"
    return ir.from_proto(
        onnx.parser.parse_model(f"{header} g ({', '.join(parts)}) => ({', '.join(made)}) {{ {body} }}")
    )


def feeds(model: ir.Model, words: int, past: int, room: int = 0, texts: int = 2) -> Feeds:
    angles = np.arange(MOST)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    result: Feeds = {
        "lengths": np.full(texts, past + words - 1, np.int32),
        "total": np.array([past + words], np.int32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }
    sizes = {"N": texts, "T": words, "P": past, "Q": past + words}
    for seed, value in enumerate(model.graph.inputs):
        assert value.shape is not None
        shape = [size if isinstance(size, int) else sizes[str(size.value)] for size in value.shape]
        result.setdefault(str(value.name), noise(*shape, seed=seed))
    for name in ("past_k", "past_v") if room else ():
        result[name][:, :, past:] = 0
    return {str(value.name): result[str(value.name)] for value in model.graph.inputs}


def assert_same(model: ir.Model, value: Feeds) -> None:
    written = expanded(model)
    assert not any(node.domain for node in written.graph)
    result = run(written, value)
    for name, array in run(model, value).items():
        np.testing.assert_allclose(result[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_text_and_its_next_words(case: str, packed: bool) -> None:
    model = grouped(CASES[case], packed)
    for words, past in ((6, 0), (1, 6)):
        assert_same(model, feeds(model, words, past))


@pytest.mark.parametrize("added", list(ADDED)[1:])
def test_scores_are_added(added: str) -> None:
    model = grouped(ROTARY, packed=False, added=ADDED[added])
    assert_same(model, feeds(model, 5, 0, texts=1))


def test_a_cache_of_a_fixed_size() -> None:
    model = grouped(ROTARY, packed=False, past="12", words="1")
    assert_same(model, feeds(model, 1, 7, room=12))


@pytest.mark.parametrize("attributes", [", local_window_size = 4", ", smooth_softmax = 1"])
def test_what_looks_at_less_stays_as_it_is(attributes: str) -> None:
    assert [node.op_type for node in expanded(grouped(attributes, packed=False)).graph] == ["GroupQueryAttention"]


def test_heads_of_an_open_width_stay_as_they_are() -> None:
    model = grouped("", packed=False)
    past = model.graph.inputs[3]
    past.shape = ir.Shape(["N", SHARED, "P", "W"])
    assert [node.op_type for node in expanded(model).graph] == ["GroupQueryAttention"]
