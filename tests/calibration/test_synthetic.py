"""Drawn samples: one for every input, by its type and shape, and refusals that name what to fix."""

import numpy as np
import onnx_ir as ir
import pytest
from compiling import proto
from graphs import noise, parse
from writing import ROWS, encoder

from ptqc.calibration.inputs import conform, input_specs
from ptqc.calibration.synthetic import FREE_LENGTH, PixelRange, draw, drawn_shapes, short_sizes
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Runner

UNIT = PixelRange.between(-1, 1)
EMBEDDED = """g (int64[N,T] tokens, int32[N,4] places) => (float[N,T,8] y, float[N,4,8] z) {
    y = Gather(words, tokens)
    shape = Shape(places)
    flat = Reshape(places, shape)
    z = Gather(positions, flat)
}"""


def copied(kind: str) -> ir.Model:
    """A model whose only input has this type."""
    return parse(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}")


def drawn(model: ir.Model, count: int = 3, seed: int = 0) -> list[dict[str, np.ndarray]]:
    result = list(draw(model, count, seed, {"x": UNIT}))
    specs = input_specs(model)
    for index, feeds in enumerate(result):
        assert list(conform(feeds, specs, index)) == list(feeds)
        assert drawn_shapes(model) == {name: array.shape for name, array in feeds.items()}
    return result


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("float[N,3,8,6]", (1, 3, 8, 6)),
        ("float[4,1,8,8]", (4, 1, 8, 8)),
        ("float[N,1,H,W]", (1, 1, 224, 224)),
        ("float[N,8,6,3]", (1, 8, 6, 3)),
        ("float[N,10]", (1, 10)),
        ("float16[2,5,7]", (2, 5, 7)),
        ("uint8[1,3,9,9]", (1, 3, 9, 9)),
    ],
)
def test_shapes_are_the_declared_ones(kind: str, shape: tuple[int, ...]) -> None:
    assert {feeds["x"].shape for feeds in drawn(copied(kind))} == {shape}


def test_images_keep_to_their_range() -> None:
    x = np.concatenate([feeds["x"] for feeds in drawn(copied("float[N,3,16,16]"), 20)])
    assert x.min() >= -1
    assert x.max() <= 1
    assert x.max() - x.min() > 1.8


def test_bytes_use_all_of_their_range() -> None:
    x = np.concatenate([feeds["x"] for feeds in list(draw(copied("uint8[N,16,16,3]"), 20, 0, {}))])
    assert x.dtype == np.uint8
    assert x.max() > 240
    assert x.min() < 15


def test_channels_last_are_pictures_too() -> None:
    first = drawn(copied("float[N,3,8,8]"))[0]["x"]
    last = drawn(copied("float[N,8,8,3]"))[0]["x"]
    assert np.array_equal(last.transpose(0, 3, 1, 2), first)


def test_other_floats_are_normal() -> None:
    x = np.concatenate([feeds["x"] for feeds in drawn(copied("float[N,500]"), 20)])
    assert abs(x.mean()) < 0.05
    assert abs(x.std() - 1) < 0.05


def test_integers_are_rows_of_the_embedding_that_they_index() -> None:
    model = parse(EMBEDDED, words=noise(50, 8), positions=noise(7, 8))
    result = drawn(model, 40)
    tokens, places = (np.concatenate([feeds[name] for feeds in result]) for name in ("tokens", "places"))
    assert tokens.shape == (40, 32)
    assert (tokens.dtype, places.dtype) == (np.int64, np.int32)
    assert set(np.unique(tokens)) == set(range(50))
    assert set(np.unique(places)) == set(range(7))


def test_a_text_is_all_tokens_of_one_kind() -> None:
    model = ir.from_proto(encoder())
    result = drawn(model, 8)
    assert [spec.masks for spec in input_specs(model)] == [False, True, False]
    assert set(np.unique([feeds["input_ids"] for feeds in result])) > set(range(1, ROWS))
    assert all((feeds["attention_mask"] == 1).all() and not feeds["token_type_ids"].any() for feeds in result)
    assert Runner(model).run(result[0])["hidden"].shape == (1, 32, 16)


def test_a_mask_of_floats_between_positions_is_no_picture() -> None:
    graph = """g (int64[N,T] ids, float[N,1,T,T] bias) => (float[N,1,T,T] p) {
        a = Gather(words, ids)
        b = Transpose<perm=[0,2,1]>(a)
        s = MatMul(a, b)
        e = Unsqueeze(s, one)
        m = Add(e, bias)
        p = Softmax(m)
    }"""
    model = parse(graph, words=noise(50, 6), one=np.array([1]))
    result = drawn(model, 1)[0]
    assert result["bias"].shape == (1, 1, FREE_LENGTH, FREE_LENGTH)
    assert (result["bias"] == 1).all()
    assert Runner(model).run(result)["p"].shape == (1, 1, FREE_LENGTH, FREE_LENGTH)


def test_a_decoder_gets_places_from_0_and_an_empty_past() -> None:
    graph = """g (int64[N,T] ids, int32[N,T] position_ids, float[N,2,P,4] past_key, float[N,T,6] other) =>
        (float[N,T,6] y, float[N,2,P,4] present_key) {
        a = Gather(words, ids)
        b = Gather(places, position_ids)
        c = Add(a, b)
        y = Add(c, other)
        present_key = Identity(past_key)
    }"""
    result = drawn(parse(graph, words=noise(50, 6), places=noise(20, 6)), 1)[0]
    assert result["position_ids"].tolist() == [[*range(20), *range(12)]]
    assert result["past_key"].shape == (1, 2, 0, 4)
    assert result["other"].shape == (1, 32, 6)


def test_a_seed_gives_the_same_samples_however_many() -> None:
    model = copied("float[N,3,8,8]")
    few, many, other = drawn(model, 2), drawn(model, 4), drawn(model, 2, seed=1)
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(few, many, strict=False))
    assert not np.array_equal(few[0]["x"], few[1]["x"])
    assert not np.array_equal(few[0]["x"], other[0]["x"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int64[N,4]", "'x' int64.*no embedding says which integers"),
        ("int64", "'x' int64.*no embedding"),
        ("bool[N,4]", "'x' bool.*no samples can be generated"),
        ("float[N,C]", "axis 1 of .*N, C.* has no size.*fix it"),
        ("float[N,16,L]", "axis 2 of"),
        ("float[N,C,8,8]", "axis 1 of"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(kind: str, expected: str) -> None:
    with pytest.raises(CalibrationError, match=f"{expected}.*--calibration DATA"):
        draw(copied(kind), 1, 0, {})


# Attention of one token to those before it and, by cached keys, to what an encoder made.
BEHIND_ENCODER = """g (int64[N,COUNT] input_ids, int64[N,ALL] attention_mask, int64[N,HEARD] encoder_attention_mask,
    int64[N,COUNT] position_ids, float[N,HEARD,8] encoder_hidden_states, float[N,1,P,8] past_key_values_0_decoder_key,
    float[N,1,HEARD,8] past_key_values_0_encoder_key)
    => (float[N,1,COUNT,ALL] p, float[N,1,COUNT,HEARD] q, float[N,HEARD,8] h, float[N,1,ALL,8] present) {
    e = Gather(words, input_ids)
    w = Gather(places, position_ids)
    a = Add(e, w)
    x = Unsqueeze(a, one)
    present = Concat<axis=2>(past_key_values_0_decoder_key, x)
    kt = Transpose<perm=[0,1,3,2]>(present)
    s = MatMul(x, kt)
    m = Cast<to=1>(attention_mask)
    mm = Unsqueeze(m, both)
    masked = Add(s, mm)
    p = Softmax(masked)
    et = Transpose<perm=[0,1,3,2]>(past_key_values_0_encoder_key)
    t = MatMul(x, et)
    n = Cast<to=1>(encoder_attention_mask)
    nn = Unsqueeze(n, both)
    cross = Add(t, nn)
    q = Softmax(cross)
    h = Mul(encoder_hidden_states, two)
}"""


@pytest.mark.parametrize(("count", "past"), [("T", 0), ("1", FREE_LENGTH - 1)])
def test_lengths_of_a_past_and_of_what_is_heard_agree(count: str, past: int) -> None:
    constants = {"words": noise(50, 8), "places": noise(64, 8), "one": np.array([1]), "both": np.array([1, 2])}
    model = parse(BEHIND_ENCODER.replace("COUNT", count), two=np.array(2, np.float32), **constants)
    first, second = drawn(model, 2)
    tokens = first["input_ids"].shape[1]
    assert tokens + past == FREE_LENGTH
    assert first["past_key_values_0_decoder_key"].shape == (1, 1, past, 8)
    assert first["attention_mask"].tolist() == [[1] * FREE_LENGTH]
    assert first["position_ids"].tolist() == [list(range(past, FREE_LENGTH))]
    for name in ("encoder_hidden_states", "past_key_values_0_encoder_key"):
        assert first[name].std() == pytest.approx(1, abs=0.2)
        assert not np.array_equal(first[name], second[name])
    result = Runner(model).run(first)
    assert result["p"].shape == (1, 1, tokens, FREE_LENGTH)
    assert result["q"].shape == (1, 1, tokens, FREE_LENGTH)


def test_what_is_heard_needs_tokens_but_no_mask() -> None:
    graph = """g (int64[N,T] ids, float[N,heard,8] encoder_hidden_states) => (float[N,T,heard] y) {
        e = Gather(words, ids)
        t = Transpose<perm=[0,2,1]>(encoder_hidden_states)
        y = MatMul(e, t)
    }"""
    (result,) = drawn(parse(graph, words=noise(50, 8)), 1)
    assert result["encoder_hidden_states"].shape == (1, FREE_LENGTH, 8)


HEARD = """g (int64[N,T] ids, float[N,heard,8] encoder_hidden_states, int64[N,heard] encoder_attention_mask) =>
    (float[N,T,heard] p, float[N,T,8] y) {
    e = Gather(words, ids)
    t = Transpose<perm=[0,2,1]>(encoder_hidden_states)
    s = MatMul(e, t)
    m = Cast<to=1>(encoder_attention_mask)
    w = Unsqueeze(m, one)
    b = Add(s, w)
    p = Softmax(b)
    y = MatMul(p, encoder_hidden_states)
}"""


def test_texts_and_what_is_heard_are_short_in_turns() -> None:
    model = parse(HEARD, words=noise(50, 8), one=np.array([1]))
    short = short_sizes(model)
    assert [(sizes.heard, sizes.tokens) for sizes in short[:4]] == [(1, 32), (32, 1), (2, 32), (32, 2)]
    whole, result = list(draw(model, 12, 0, {})), list(draw(model, 12, 0, {}, short=short))
    sizes = [(feeds["encoder_hidden_states"].shape[1], feeds["ids"].shape[1]) for feeds in result]
    assert [(place, size) for place, size in enumerate(sizes) if size != (32, 32)] == [
        (2, (1, 32)),
        (6, (32, 1)),
        (10, (2, 32)),
    ]
    masks = [feeds["encoder_attention_mask"].shape[1] for feeds in result]
    assert masks == [heard for heard, _ in sizes]
    assert all(np.array_equal(whole[0][name], result[0][name]) for name in whole[0])
    assert Runner(model).run(result[2])["p"].shape == (1, 32, 1)


def test_sequences_of_fixed_lengths_and_pictures_have_no_short_ones() -> None:
    fixed = HEARD.replace("[N,T", "[N,6").replace("heard,", "6,").replace("heard]", "6]")
    assert short_sizes(parse(fixed, words=noise(50, 8), one=np.array([1]))) == []
    assert short_sizes(copied("float[N,3,H,W]")) == []


FLOAT_MASK = """g (int64[N,T] ids, float[N,T] m) => (float[N,T,8] y) {
    e = Gather(table, ids)
    one = Constant<value_ints = [1]>()
    u = Constant<value_float = 1.0>()
    low = Constant<value_float = -10000.0>()
    wide = Unsqueeze(m, one)
    inverse = Sub(u, wide)
    bias = Mul(inverse, low)
    t = Transpose<perm = [0, 2, 1]>(e)
    s = MatMul(e, t)
    masked = Add(s, bias)
    p = Softmax<axis = -1>(masked)
    y = MatMul(p, e)
}"""


def test_a_mask_of_floats_masks_nothing() -> None:
    (feeds,) = drawn(ir.from_proto(proto(FLOAT_MASK, table=np.zeros((9, 8), np.float32))), 1)
    assert feeds["m"].dtype == np.float32
    assert feeds["m"].tolist() == [[1.0] * FREE_LENGTH]


def test_scores_of_floats_are_no_mask() -> None:
    (feeds,) = drawn(parse("g (float[N,8] scores) => (float[N,8] y) { y = Softmax(scores) }"), 1)
    assert len(np.unique(feeds["scores"])) == 8
