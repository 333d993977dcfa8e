"""Faults planted in the C of networks: the comparison with ONNX Runtime, or a sanitizer, stops them."""

from functools import cache
from pathlib import Path

import pytest
from graphs import noise, parse
from in_c import HAS_COMPILER, Case, Changed, case
from lowering import CONSTANTS, RESIDUAL, quantized, samples

from ptqc.codegen.c import verify
from ptqc.errors import TargetError, VerificationError
from ptqc.formats import Entropy, Format, Integer, Trellis, VectorCodebook
from ptqc.ir.layers import find_layers, find_weights

pytestmark = HAS_COMPILER
FEEDS = samples(3, 3, 8, 8)
MIXED = """g (float[N,16,9,7] x) => (float[N,6] y) {
    a = Conv <kernel_shape = [3, 3], pads = [2, 1, 2, 1], dilations = [2, 1], strides = [2, 1]> (x, w1, b1)
    c = Conv <kernel_shape = [3, 3], group = 16, pads = [1, 1, 1, 1]> (a, w2, b2)
    b = Mul(c, a)
    d = Sigmoid(c)
    e1 = Add(b, d)
    e2 = Conv <kernel_shape = [3, 3], group = 4, pads = [1, 2, 1, 2], dilations = [1, 2]> (e1, w5, b5)
    e = Conv <kernel_shape = [3, 3], group = 16, pads = [1, 1, 1, 1], strides = [1, 2]> (e2, w6, b6)
    f = Conv <kernel_shape = [1, 1]> (e, w3, b3)
    g1 = Concat <axis = 1> (f, e)
    h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (g1)
    i = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> (h)
    j = Flatten(i)
    k = Gemm <transB = 1> (j, w4, b4)
    y = Softmax(k)
}"""
SHAPES = {
    "w1": (16, 16, 3, 3),
    "w2": (16, 1, 3, 3),
    "w3": (128, 16, 1, 1),
    "w4": (6, 144 * 2 * 2),
    "w5": (16, 4, 3, 3),
    "w6": (16, 1, 3, 3),
}
FORMS: dict[str, Format] = {
    "w1": VectorCodebook(5),
    "w2": Integer(4),
    "w3": Trellis(5),
    "w4": Entropy(8),
    "w5": Integer(8),
    "w6": Integer(8),
}


@cache
def residual() -> Case:
    return case(quantized(parse(RESIDUAL, **CONSTANTS), FEEDS), FEEDS)


@cache
def mixed() -> Case:
    """Weights in all packings."""
    weights = {name: noise(*shape, seed=seed, scale=0.3) for seed, (name, shape) in enumerate(SHAPES.items())}
    biases = {f"b{name[1]}": noise(shape[0], seed=9) for name, shape in SHAPES.items()}
    graph = parse(MIXED, **weights, **biases)
    feeds = [{"x": noise(1, 16, 9, 7, seed=seed)} for seed in range(3)]
    forms = {weight.name: FORMS[weight.name] for weight in find_weights(graph, find_layers(graph))}
    return case(quantized(graph, feeds, forms=forms), feeds)


FAULTS = [
    # rounding and requantization
    ("bits - 0x4B400000", "bits - 0x4B400001"),
    ("const float magic = 12582912.0f;", "const float magic = 8388608.0f;"),
    ("value < 0 ? 0 : value > 255 ? 255 : value", "value"),
    ("value < 0 ? 0 : value > 255 ? 255 : value", "value < 0 ? 0 : value > 254 ? 254 : value"),
    ("nearest(rounded((float)sum * factor)) + zero", "nearest(rounded((float)sum * factor))"),
    ("nearest(rounded((float)sum * factor)) + zero", "(int32_t)((float)sum * factor) + zero"),
    ("bias - (sums", "bias + (sums"),
    ("*starts) * zero", "*starts) * 0"),
    ("channels->zero_in != PTQC_ACTIVATION_OFFSET", "0"),
    ("is_shared ? 0u : channel", "0u"),
    ("step / divisor", "step"),
    ("((const int8_t *)biases)[channel] * bias_unit / step", "((const int8_t *)biases)[channel] * bias_unit * step"),
    ("(float)(root * root)", "(float)root"),
    # dense layers
    ("fill(out, zero, (uint32_t)taps * channels);", "fill(out, 0, (uint32_t)taps * channels);"),
    ("fill(out, zero, before);", "fill(out, 0, before);"),
    ("fill(out + before + inside, zero, after);", ""),
    ("here < 0 || here >= width", "here < 0 || here > width"),
    ("width - column < taps ? width - column : taps", "taps"),
    ("row += layer->dilations[0]) {\n    const", "row++) {\n    const"),
    ("y * layer->strides[0] - layer->padding[0], x", "y - layer->padding[0], x"),
    ("x * layer->strides[1] - layer->padding[1],\n", "x * layer->strides[1],\n"),
    ("group, windows + i * row);", "group, windows);"),
    ("in += group * channels;", ""),
    ("starts[i + two]", "starts[i]"),
    ("b += first[i] * other[i]", "b += first[i] * one[i]"),
    ("c += second[i] * one[i]", "c += first[i] * one[i]"),
    ("place + next + i", "place + i"),
    ("two ? one + row : one, row, sums", "one, row, sums"),
    ("pixels -= 2, column += 2 * step", "pixels -= 2, column += step"),
    ("sums ? sums[channel] : *starts", "*starts"),
    ("layer->weights.data + (size_t)channel * row", "layer->weights.data + (size_t)first * row"),
    # depthwise layers
    ("memset(outside, layer->channels.zero_in, layer->block)", "memset(outside, 0, layer->block)"),
    ("(uint32_t)row < height", "(uint32_t)row <= height"),
    ("if (places[tap] != outside) places[tap] += ", "places[tap] += "),
    ("places[tap] += layer->strides[1] * channels;", "places[tap] += channels;"),
    ("column + reach < layer->in[1]", "column + reach <= layer->in[1]"),
    ("sum += places[tap][channel] * *weight", "sum += places[0][channel] * *weight"),
    ("panel[tap * stride + i] = row[tap];", "panel[tap * stride] = row[tap];"),
    # unpacking
    ("four_bytes(data + (place >> 3))", "four_bytes(data + (place >> 4))"),
    (">> (place & 7u)", ">> (place & 3u)"),
    ("out[2] = (int8_t)(word >> 16);", "out[2] = (int8_t)(word >> 8);"),
    ("out[3] = table[word >> 24];", "out[3] = table[word >> 16 & 255u];"),
    ("(uint32_t)(weights->low + 128)", "128u"),
    (" * step + lows", " + lows"),
    ("<< (16u - 2u * bits)", "<< (16u - bits)"),
    ("word << (8u - bits)", "word << 8u"),
    ("out += 4, place += 4u * bits", "out += 4, place += 3u * bits"),
    ("if (++tap == taps) tap = 0", "if (++tap > taps) tap = 0"),
    ("*to = pair[part];", "*to = pair[0];"),
    ("place += (a + b + c + d) & 255u;", "place += (a + b + c) & 255u;"),
    ("first += 1u << weights->widths[i];", "first += weights->widths[i];"),
    ("^ ((odd << 8) - odd)", ""),
    ("*word & entry >> 24", "*word"),
    ("reader->row * step, reader->place", "0u, reader->place"),
    ("(uint32_t)at[i / 2u] >> 4u * (i & 1u)", "(uint32_t)at[i / 2u]"),
    ("reader->row++;", ""),
    ("<< up & high", "& high"),
    ("down ? first + row : first", "first"),
    ("(weights->bits + (reader->row & 1u)) / 2u", "(weights->bits + 1u) / 2u"),
    # other operators
    ("fused((float)*q, ratio[1], ratio[2])", "fused((float)*q, ratio[0], ratio[2])"),
    ("(*q - zeros[1])", "*q"),
    ("factor) + (float)zeros[2]", "factor)"),
    ("out[i] = table[in[i]]", "out[i] = in[i]"),
    ("if (from[k] > out[k]) out[k] = from[k];", "if (from[k] < out[k]) out[k] = from[k];"),
    ("if (counts_padding) count", "if (!counts_padding) count"),
    ("-(int32_t)(pixels * zero_in)", "0"),
    ("+ k * move->from[2]", ""),
    ("to[(size_t)j * inner] /= total;", ""),
    ("q += move->to[3]", "q += move->from[3] + move->to[3]"),
    # memory
    ("#define AT(place) ((void *)(arena.bytes + (place)))", "#define AT(place) ((void *)(arena.bytes + (place) / 2))"),
    ("#define AT(place) ((void *)(arena.bytes + (place)))", "#define AT(place) ((void *)(arena.bytes + (place) + 64))"),
]
MISSED = 2


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault may make a loop that does not end."""
    monkeypatch.setattr(verify, "TIME_LIMIT", 10.0)


def stops(old: str, new: str, folder: Path) -> bool:
    """Whether a fault is noticed in one of the networks that have its text."""
    seen = False
    for number, right in enumerate((residual(), mixed())):
        texts = right.text.files().values()
        if not any(old in text for text in texts):
            continue
        seen, text = True, right.text
        wrong = Case(Changed(text.name, text.network, text.arena, old=old, new=new), right.samples, right.values)
        try:
            wrong.compare(folder / str(number), "-O1", *verify.SANITIZERS)
        except (VerificationError, TargetError):
            return True
    assert seen, f"no network has {old!r}"
    return False


def test_both_are_right(tmp_path: Path) -> None:
    for number, right in enumerate((residual(), mixed())):
        assert right.compare(tmp_path / str(number)).different == {}
    kinds = {kind for step in (*residual().network.steps, *mixed().network.steps) for kind in step.kinds}
    assert kinds >= {"raw", "index", "pairs", "prefix", "column_path"}


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), FAULTS[5::18])
def test_some_faults_are_noticed(old: str, new: str, tmp_path: Path) -> None:
    assert stops(old, new, tmp_path)


@pytest.mark.slow
def test_faults_are_noticed(tmp_path: Path) -> None:
    assert len(FAULTS) >= 50
    missed = [fault for number, fault in enumerate(FAULTS) if not stops(*fault, tmp_path / str(number))]
    assert len(missed) <= MISSED, missed
