"""Samples without data: which range pixels get, matching to batch normalization, and what is said about both."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from compiling import compiled, proto
from graphs import noise, parse

from ptqc.calibration.synthetic import COMMON, PixelRange
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.notes import Level
from ptqc.passes.quantize import synthesize as synthesis
from ptqc.passes.quantize.synthesize import BALANCE, Synthetic, synthesize
from ptqc.utils.progress import SILENT

PLAIN = """g (float[N,3,16,16] x) => (float[N,4,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w, b)
    y = Relu(a)
}"""
NORMALIZED = """g (float[BATCH,3,16,16] x) => (float[BATCH,4,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    c = BatchNormalization(a, scale, shift, mean, variance)
    y = Relu(c)
}"""


def plain(scale: float = 1.0, bias: float = 1.0) -> ir.Model:
    """A convolution that averages; `bias` is that of all its channels."""
    weight = np.full((4, 3, 3, 3), scale / 27, np.float32)
    return parse(PLAIN, w=weight, b=np.full(4, bias, np.float32))


def normalized(batch: str = "N", graph: str = NORMALIZED) -> ir.Model:
    ones = np.ones(4, np.float32)
    constants = {"scale": ones, "shift": ones * 0.1, "mean": ones * 0.2, "variance": ones * 0.5}
    return parse(graph.replace("BATCH", batch), w=noise(4, 3, 3, 3, scale=0.2), **constants)


def opened(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def remarks(result: Synthetic) -> str:
    return "\n".join(note.message for note in result.notes)


def values(result: Synthetic) -> np.ndarray:
    return np.concatenate([feeds["x"] for feeds in result.feeds])


def test_the_first_note_warns_about_accuracy() -> None:
    first = synthesize(plain(), 4, 0, SILENT).notes[0]
    assert first.level is Level.WARNING
    assert "calibrated without data" in first.message
    assert "accuracy suffers" in first.message


@pytest.mark.parametrize("index", range(len(COMMON)))
def test_the_range_that_suits_the_biases_is_taken(index: int) -> None:
    """Biases as large as the outputs' spread on that range, divided by what is usual."""
    width = float((COMMON[index].high - COMMON[index].low)[0])
    spread = 0.2 * width  # of an average over 3x3 pixels and channels
    result = synthesize(plain(bias=spread / BALANCE), 8, 0, SILENT)
    assert f"generated as {COMMON[index].description}, the common range" in remarks(result)
    x = values(result)
    assert x.min() >= COMMON[index].low - 1e-5
    assert x.max() <= COMMON[index].high + 1e-5


@pytest.mark.parametrize("bias", [0.0, 1e-5])
def test_without_balance_the_likeliest_range_is_a_guess(bias: float) -> None:
    result = synthesize(plain(bias=bias), 4, 0, SILENT)
    assert f"generated as {COMMON[0].description}, a guess" in remarks(result)


def test_a_stated_range_needs_no_guess() -> None:
    scaled = PLAIN.replace("a = Conv<pads=[1,1,1,1]>(x,", "s = Mul(x, f) a = Conv<pads=[1,1,1,1]>(s,")
    model = parse(scaled, w=noise(4, 3, 3, 3), b=noise(4), f=np.array(1 / 255, np.float32))
    result = synthesize(model, 8, 0, SILENT)
    assert "pixels from 0 to 255, by the normalization" in remarks(result)
    assert 200 < values(result).max() <= 255


def test_bytes_are_bytes() -> None:
    model = parse("g (uint8[N,3,8,8] x) => (float[N,3,8,8] y) { y = Cast<to=1>(x) }")
    result = synthesize(model, 4, 0, SILENT)
    assert PixelRange.between(0, 255).description in remarks(result)
    assert values(result).dtype == np.uint8


def test_a_seed_gives_the_same_samples() -> None:
    first, again, other = (values(synthesize(plain(), 4, seed, SILENT)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_cannot_be_drawn_is_refused() -> None:
    model = parse("g (int64[N,4] ids) => (int64[N,4] y) { y = Identity(ids) }")
    with pytest.raises(CalibrationError, match="'ids'"):
        synthesize(model, 4, 0, SILENT)


# Batch normalization


def test_samples_are_matched_to_batch_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(synthesis, "SAMPLES", 6)
    monkeypatch.setattr(synthesis, "MEMORY", 4 * 4 * 16 * 16 * 4)  # of 4 samples
    result = synthesize(normalized(), 100, 0, SILENT)
    x = values(result)
    assert len(x) == 6
    assert "6 samples matched to the batch normalizations in 40 steps" in remarks(result)
    plain = synthesize_unmatched(monkeypatch)
    assert error(x) < 0.5 * error(plain[:6])


def synthesize_unmatched(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = synthesize(normalized(), 8, 0, SILENT)
    assert "not matched to batch normalization: torch is not installed" in remarks(result)
    return values(result)


def error(x: np.ndarray) -> float:
    """Distance of the convolution's outputs to what `normalized` stored of them."""
    from ptqc.execution.onnxruntime import Runner

    a = Runner(normalized(), ["a"]).run({"x": x})["a"]
    return float(((a.mean((0, 2, 3)) - 0.2) ** 2 + (a.std((0, 2, 3)) - np.sqrt(0.5)) ** 2).sum())


def test_without_torch_the_drawn_samples_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(synthesize_unmatched(monkeypatch)) == 8


def test_a_fixed_batch_is_not_matched() -> None:
    result = synthesize(normalized(batch="2"), 4, 0, SILENT)
    assert "not matched to batch normalization: the model does not take batches" in remarks(result)
    assert values(result).shape == (8, 3, 16, 16)


def test_a_model_too_large_is_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(synthesis, "WORK", 1.0)
    monkeypatch.setattr(synthesis, "SAMPLES", 2)
    result = synthesize(normalized(), 4, 0, SILENT)
    assert "too large" in remarks(result)
    assert len(values(result)) == 4


def test_what_has_no_gradient_is_not_matched() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    shifted = "s = Tanh(x) d = Det(s) m = ReduceMean<keepdims=0>(d) r = Add(x, m) a = Conv"
    graph = NORMALIZED.replace("a = Conv", shifted).replace("(x, w)", "(r, w)")
    result = synthesize(normalized(graph=graph), 4, 0, SILENT)
    assert "not matched to batch normalization: the Det" in remarks(result)


BEHIND_ENCODER = """g (int64[N,T] ids, float[N,heard,32] encoder_hidden_states) => (float[N,T,32] y) {
    e = Gather(words, ids)
    q = MatMul(e, wq)
    k = MatMul(encoder_hidden_states, wk)
    v = MatMul(encoder_hidden_states, wv)
    kt = Transpose<perm=[0,2,1]>(k)
    s = MatMul(q, kt)
    p = Softmax(s)
    a = MatMul(p, v)
    y = MatMul(a, wo)
}"""


def test_drawn_samples_have_what_attention_gives_over_one_place(tmp_path: Path) -> None:
    """A mean over 32 places is small beside what a softmax of one place lets through."""
    flat = {name: noise(32, 32, scale=0.03) for name in ("wq", "wk")}
    weights = {name: noise(32, 32, scale=0.18) for name in ("wv", "wo")} | flat
    model = proto(BEHIND_ENCODER, words=noise(50, 32), **weights)
    artifact = compiled(model, "synthetic", tmp_path, bits=(7,), samples=16)
    rng = np.random.default_rng(0)
    for heard in (1, 32):
        states = rng.standard_normal((1, heard, 32)).astype(np.float32)
        feeds: Feeds = {"ids": rng.integers(0, 50, (1, 32)), "encoder_hidden_states": states}
        (wanted,), (result,) = (session.run(None, feeds) for session in (opened(model), artifact.session()))
        assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - result).sum()) > 30
