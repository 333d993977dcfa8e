"""What outputs are taken for, by small networks whose last layers are those of real ones."""

from collections.abc import Mapping

import numpy as np
import pytest
from graphs import noise, parse
from outputs import COUNT, inputs, kinds, references

from ptqc.errors import ModelError, UsageError
from ptqc.losses import OutputKind, check, flawed_values, from_json, recognize, to_json
from ptqc.losses.recognition import states_of

W = {
    "w3": noise(8, 3, scale=2.0),
    "w10": noise(8, 10, scale=2.0),
    "w64": noise(8, 64, scale=0.2),
    "w100": noise(8, 100, scale=3.0),
    "b10": noise(10, seed=1),
}

VECTORS = [
    ("y = MatMul(x, w10)", "y", "logits"),
    ("a = MatMul(x, w10) y = Add(a, b10)", "y", "logits"),
    ("a = MatMul(x, w100) y = LogSoftmax(a)", "y", "logits"),
    ("a = MatMul(x, w10) y = Softmax(a)", "y", "probabilities"),
    ("a = MatMul(x, w10) s = Softmax(a) y = Mul(s, one)", "y", "probabilities"),
    ("a = MatMul(x, w10) y = Sigmoid(a)", "y", "scores"),
    ("a = MatMul(x, w64) y = LpNormalization(a)", "y", "embedding"),
    ("a = MatMul(x, w64) n = ReduceL2 <keepdims = 1> (a, last) y = Div(a, n)", "y", "embedding"),
    ("y = MatMul(x, w64)", "y", "embedding"),
    ("sentence_embedding = MatMul(x, w10)", "sentence_embedding", "embedding"),
    ("logits = MatMul(x, w64)", "logits", "logits"),
    ("pred_boxes = MatMul(x, w10)", "pred_boxes", "regression"),
    ("y = ReduceMean <keepdims = 1> (x, last)", "y", "regression"),
]


@pytest.mark.parametrize(("body", "output", "kind"), VECTORS)
def test_vectors(body: str, output: str, kind: str) -> None:
    text = f"g (float[N, 8] x) => (float[N, C] {output}) {{ {body} }}"
    constants = W | {"one": np.ones(1, np.float32), "last": np.array([1])}
    result = kinds(text, inputs(1, 8), **constants)[output]
    assert result.name == kind
    assert vars(result).get("axis", 1) == 1


def test_normalized_or_not() -> None:
    text = "g (float[N, 8] x) => (float[N, 64] y, float[N, 64] z) { y = MatMul(x, w64) z = LpNormalization(y) }"
    result = kinds(text, inputs(1, 8), **W)
    assert [(kind.name, kind.normalized) for kind in result.values()] == [("embedding", False), ("embedding", True)]  # type: ignore[attr-defined]


def test_the_product_of_two_vectors_is_one_number() -> None:
    samples = [{"x": np.full(3, i, np.float32), "z": np.ones(3, np.float32)} for i in (1, 2, 3)]
    assert kinds("g (float[3] x, float[3] z) => (float y) { y = MatMul(x, z) }", samples)["y"].name == "regression"


def test_rows_that_are_alike_are_no_class_scores() -> None:
    """Corners in pixels differ from sample to sample by little of what they differ from each other."""
    text = "g (float[N, 8] x) => (float[N, 4] y) { a = MatMul(x, w) y = Add(a, b) }"
    corners = np.array([40, 30, 200, 180], np.float32)
    assert kinds(text, inputs(1, 8), w=noise(8, 4), b=corners)["y"].name == "regression"
    assert kinds(text, inputs(1, 8), w=noise(8, 4), b=corners / 1000)["y"].name == "logits"


def test_what_reconstructs_its_input_is_no_class() -> None:
    text = "g (float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, w) }"
    assert kinds(text, inputs(1, 8), w=noise(8, 8))["y"].name == "regression"


TOKENS = [
    ("logits = MatMul(h, w100)", "logits", "logits"),
    ("y = MatMul(h, w100)", "y", "logits"),
    ("a = MatMul(h, w10) y = Add(a, b10)", "y", "logits"),
    ("n = LayerNormalization(h, gain) y = Add(n, shift)", "y", "features"),
    ("a = Mul(h, gain) b = Tanh(a) y = Add(b, shift)", "y", "features"),
    ("y = LpNormalization(h)", "y", "embedding"),
]


@pytest.mark.parametrize(("body", "output", "kind"), TOKENS)
def test_tokens(body: str, output: str, kind: str) -> None:
    """(N, T, C) with samples of two lengths: the axis of T is never that of the channels."""
    text = f"g (float[N, T, 8] x) => (float[N, T, C] {output}) {{ h = MatMul(x, w8) {body} }}"
    feeds = [{"x": noise(1, 5 + seed % 2, 8, seed=seed)} for seed in range(COUNT)]
    constants = W | {"w8": noise(8, 8), "gain": np.ones(8, np.float32), "shift": noise(8)}
    result = kinds(text, feeds, **constants)[output]
    assert (result.name, result.axis) == (kind, 2)  # type: ignore[attr-defined]


def test_time_last() -> None:
    """A one-dimensional convolution's classes stay on axis 1 though the time is as long in all samples."""
    text = "g (float[N, 8, 20] x) => (float[N, 5, 20] y) { y = Conv(x, w) }"
    result = kinds(text, inputs(1, 8, 20), w=noise(5, 8, 1))["y"]
    assert (result.name, result.axis) == ("logits", 1)  # type: ignore[attr-defined]


def test_answers_that_are_a_place_in_the_text() -> None:
    """(N, T) of question answering: the channels were cut apart; by its name it is a choice of a place."""
    text = """g (float[N, T, 8] x) => (float[N, T] start_logits, float[N, T] y) {
        a = MatMul(x, w) b, c = Split <axis = 2, num_outputs = 2> (a)
        start_logits = Squeeze(b, last) y = Squeeze(c, last)
    }"""
    result = kinds(text, inputs(1, 6, 8), w=noise(8, 2), last=np.array([2]))
    assert result["start_logits"].to_json() == {"kind": "logits", "axis": 1, "background": None}
    assert result["y"].to_json() == {"kind": "regression", "axis": None, "groups": []}


MAPS = [
    ("y = Conv(x, w5)", 5, "map"),
    ("a = Conv(x, w12) y = DepthToSpace <blocksize = 2> (a)", 3, "map"),
    ("a = Conv(x, w5) y = Resize(a, , scales)", 5, "map"),
    ("a = Conv(x, w5) y = Softmax <axis = 1> (a)", 5, "probabilities"),
    ("a = Conv(x, w5) logits = Resize(a, , scales)", 5, "logits"),
    ("a = Conv(x, w1) y = Sigmoid(a)", 1, "scores"),
    ("a = Conv(x, w3) y = Sigmoid(a)", 3, "map"),
]


@pytest.mark.parametrize(("body", "channels", "kind"), MAPS)
def test_maps(body: str, channels: int, kind: str) -> None:
    """(N, C, H, W) of free height and width."""
    output = "logits" if "logits" in body else "y"
    text = f"g (float[N, 3, H, W] x) => (float[N, {channels}, P, Q] {output}) {{ {body} }}"
    weights = {f"w{n}": noise(n, 3, 1, 1) for n in (1, 3, 5, 12)} | {"scales": np.array([1, 1, 2, 2], np.float32)}
    result = kinds(text, inputs(1, 3, 6, 7), **weights)[output]
    assert (result.name, result.axis) == (kind, 1)  # type: ignore[attr-defined]


# The heads of three detectors on two levels: boxes without bound, objectness and classes behind a sigmoid.
LEVEL = """b{0} = Conv(x{0}, wb) o{0} = Conv(x{0}, wo) p{0} = Sigmoid(o{0}) c{0} = Conv(x{0}, wc) s{0} = Sigmoid(c{0})
    m{0} = Concat <axis = 1> (b{0}, p{0}, s{0})"""
BOTH = "x1 = Relu(x) x2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x1) " + LEVEL.format(1) + LEVEL.format(2)
JOINED = BOTH + " f1 = Reshape(m1, flat) f2 = Reshape(m2, flat) l = Concat <axis = 2> (f1, f2)"
HEADS = {
    "wb": noise(4, 3, 1, 1, scale=30),
    "wo": noise(1, 3, 1, 1, seed=1),
    "wc": noise(6, 3, 1, 1, seed=2),
    "flat": np.array([0, 11, -1]),
}
GROUPS = [[0, 4, False], [4, 5, True], [5, 11, True]]


def test_anchors_last() -> None:
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 11, 80] y) {{ {JOINED} y = Identity(l) }}"
    assert kinds(text, inputs(1, 3, 8, 8), **HEADS)["y"].to_json() == {"kind": "detection", "axis": 1, "groups": GROUPS}


def test_anchors_first() -> None:
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 80, 11] y) {{ {JOINED} y = Transpose <perm = [0, 2, 1]> (l) }}"
    assert kinds(text, inputs(1, 3, 8, 8), **HEADS)["y"].to_json() == {"kind": "detection", "axis": 2, "groups": GROUPS}


def test_boxes_from_distributions() -> None:
    """Distances to the four sides, each the mean of a softmax over 16 steps, made corners in pixels; classes beside."""
    text = """g (float[N, 3, 8, 8] x) => (float[N, 11, 64] y) {
        d = Conv(x, wd) c = Conv(x, wk) both = Concat <axis = 1> (d, c) flat = Reshape(both, form)
        box, class = Split <axis = 1> (flat, parts)
        r = Reshape(box, four) t = Transpose <perm = [0, 2, 1, 3]> (r) p = Softmax <axis = 1> (t)
        m = Conv(p, steps) q = Reshape(m, three) lt, rb = Split <axis = 1, num_outputs = 2> (q)
        a = Sub(grid, lt) b = Add(grid, rb) sum = Add(a, b) middle = Div(sum, two) size = Sub(b, a)
        corners = Concat <axis = 1> (middle, size) pixels = Mul(corners, stride) s = Sigmoid(class)
        y = Concat <axis = 1> (pixels, s)
    }"""
    constants = {
        "wd": noise(64, 3, 1, 1), "wk": noise(7, 3, 1, 1), "form": np.array([0, 71, 64]), "parts": np.array([64, 7]),
        "four": np.array([0, 4, 16, 64]), "steps": np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1),
        "three": np.array([0, 4, 64]), "grid": noise(1, 2, 64, scale=4), "two": np.array(2, np.float32),
        "stride": np.full((1, 64), 8, np.float32),
    }  # fmt: skip
    result = kinds(text, inputs(1, 3, 8, 8), **constants)["y"]
    assert result.to_json() == {"kind": "detection", "axis": 1, "groups": [[0, 4, False], [4, 11, True]]}


def test_maps_of_a_detector() -> None:
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 11, 8, 8] m1, float[N, 11, 4, 4] m2) {{ {BOTH} }}"
    for result in kinds(text, inputs(1, 3, 8, 8), **HEADS).values():
        assert result.to_json() == {"kind": "detection", "axis": 1, "groups": GROUPS}


def test_several_anchors_of_one_pixel() -> None:
    """Channels of two anchors and their values, taken apart: (N, 2 · 7, H, W) to (N, 2 · H · W, 7)."""
    text = """g (float[N, 3, 4, 4] x) => (float[N, 32, 7] y) {
        a = Conv(x, w) b = Reshape(a, five) c = Transpose <perm = [0, 1, 3, 4, 2]> (b) d = Sigmoid(c)
        e = Slice(d, from, to, on) f = Mul(e, pixels) g = Slice(d, to, end, on)
        h = Concat <axis = 4> (f, g) y = Reshape(h, three)
    }"""
    constants = {
        "w": noise(14, 3, 1, 1), "five": np.array([0, 2, 7, 4, 4]), "three": np.array([0, 32, 7]),
        "from": np.array([0]), "to": np.array([4]), "end": np.array([7]), "on": np.array([4]),
        "pixels": np.array([64], np.float32),
    }  # fmt: skip
    result = kinds(text, inputs(1, 3, 4, 4), **constants)["y"]
    assert result.to_json() == {"kind": "detection", "axis": 2, "groups": [[0, 4, False], [4, 7, True]]}


def test_boxes_and_scores_where_the_graph_says_nothing() -> None:
    """The axis along which slices differ, and the scale that the channels have."""
    random = np.random.default_rng(0)
    y = np.concatenate([random.uniform(5, 300, (1, 4, 500)), random.beta(0.1, 20, (1, 6, 500))], 1)
    text = "g (float[N, 10, 500] x) => (float[N, 10, 500] y) { y = Identity(x) }"
    feeds = [{"x": (y * random.uniform(0.9, 1, y.shape)).astype(np.float32)} for _ in range(4)]
    result = kinds(text, feeds)["y"]
    assert result.to_json() == {"kind": "detection", "axis": 1, "groups": [[0, 4, False], [4, 10, True]]}


CACHE = """g (float[N, 4] x, float[N, 2, P, 3] past_k, float[N, 2, P, 3] past_v) =>
    (float[N, 3] logits, float[N, 2, Q, 3] present_k, float[N, 2, Q, 3] present_v) {
    logits = MatMul(x, w) a = Reshape(x, form)
    b = MatMul(a, u) present_k = Concat <axis = 2> (past_k, b) present_v = Concat <axis = 2> (past_v, b)
}"""


def test_caches_are_states() -> None:
    feeds = [{"x": noise(1, 4, seed=i), "past_k": noise(1, 2, 5, 3), "past_v": noise(1, 2, 5, 3)} for i in range(4)]
    result = kinds(CACHE, feeds, w=noise(4, 3), u=noise(2, 3), form=np.array([0, 2, 1, 2]))
    assert [kind.name for kind in result.values()] == ["logits", "state", "state"]


def test_caches_that_a_first_run_begins_are_states() -> None:
    """As optimum exports decoders: the file of the first run has no caches among its inputs."""
    text = """g (float[N, 4] x) => (float[N, 3] logits, float[N, 2, Q, 3] present_0_key) {
        logits = MatMul(x, w) a = Reshape(x, form) present_0_key = MatMul(a, u)
    }"""
    result = kinds(text, inputs(1, 4), w=noise(4, 3), u=noise(2, 3), form=np.array([0, 2, 1, 2]))
    assert [kind.name for kind in result.values()] == ["logits", "state"]


def test_the_state_of_a_recurrent_network() -> None:
    text = """g (float[N, 4] x, float[1, N, 4] h0) => (float[N, 3] y, float[1, N, 4] hn) {
        hn = Add(h0, x) y = MatMul(x, w)
    }"""
    feeds = [{"x": noise(1, 4, seed=i), "h0": noise(1, 1, 4)} for i in range(4)]
    assert [kind.name for kind in kinds(text, feeds, w=noise(4, 3)).values()] == ["logits", "state"]


def test_an_output_alone_is_no_state() -> None:
    text = "g (float[N, 4] state) => (float[N, 4] new_state) { new_state = Tanh(state) }"
    feeds = [{"state": noise(1, 4, seed=i)} for i in range(4)]
    assert kinds(text, feeds)["new_state"].name == "regression"


def test_several_answers_and_labels() -> None:
    text = """g (float[N, 8] x) => (float[N, 10] a, float[N, 3] b, int64[N] label) {
        a = MatMul(x, w10) b = MatMul(x, w3) label = ArgMax <axis = 1, keepdims = 0> (a)
    }"""
    assert {name: kind.name for name, kind in kinds(text, inputs(1, 8), **W).items()} == {"a": "logits", "b": "logits"}


def test_the_classes_of_things_that_were_selected_are_numbers() -> None:
    """Of several outputs, one that no layer's channels are followed to."""
    text = """g (float[N, 8] x) => (float[N, 10] y, float[N, 4] detection_classes) {
        y = MatMul(x, w10) best, place = TopK(y, four) detection_classes = Cast <to = 1> (place)
    }"""
    result = kinds(text, inputs(1, 8), **W, four=np.array([4]))
    assert {name: kind.name for name, kind in result.items()} == {"y": "logits", "detection_classes": "regression"}


PRODUCT = "g (float[N, 8] x) => (float[N, 10] y, float[N, 3] z) { y = MatMul(x, w10) z = MatMul(x, w3) }"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("kl", ["logits", "logits"]),
        ("mse", ["regression", "regression"]),
        ("embedding", ["embedding", "embedding"]),
        ({"z": "embedding"}, ["logits", "embedding"]),
        ({"z": "auto", "y": "scores"}, ["scores", "logits"]),
    ],
)
def test_what_the_user_says(asked: str | Mapping[str, str], expected: list[str]) -> None:
    assert [kind.name for kind in kinds(PRODUCT, inputs(1, 8), asked, **W).values()] == expected


def test_kl_takes_probabilities_for_what_they_are() -> None:
    text = "g (float[N, 8] x) => (float[N, 10] y) { a = MatMul(x, w10) y = Softmax(a) }"
    assert kinds(text, inputs(1, 8), "kl", **W)["y"].name == "probabilities"


def test_a_kind_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="output 'y' cannot be judged as detection"):
        kinds(PRODUCT, inputs(1, 8), {"y": "detection"}, **W)


def test_an_unknown_output_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no output 'logits'; its outputs: y, z"):
        check(parse(PRODUCT, **W), {"logits": "kl"})
    check(parse(PRODUCT, **W), {"z": "kl"})


def test_integer_outputs_have_no_loss() -> None:
    text = "g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y, int64[4] z) { y = Tanh(x) z = Shape(x) }"
    assert list(kinds(text, inputs(1, 3, 8, 8))) == ["y"]


def test_nothing_found_in_the_first_sample() -> None:
    """Positive numbers of each sample, of which the first has none."""
    text = """g (float[N] x) => (float[K] y) {
        zero = Sub(x, x) p = Greater(x, zero) y = Compress <axis = 0> (x, p)
    }"""
    feeds = [{"x": np.array(x, np.float32)} for x in ([-1, -2], [1, -1], [2, 3])]
    assert kinds(text, feeds)["y"].to_json() == {"kind": "regression", "axis": None, "groups": []}


def test_infinities_alone_are_refused() -> None:
    text = "g (float[N, 3] x) => (float[N, 3] y) { y = Log(x) }"
    model = parse(text)
    feeds = [{"x": np.zeros((1, 3), np.float32)}]
    with pytest.raises(ModelError, match="output 'y' of the float model is NaN or infinite everywhere"):
        recognize(model, feeds[0], references(model, feeds))


def test_rows_that_are_not_finite_say_nothing_of_the_kind() -> None:
    """Class probabilities, of which those at padding are NaN, are recognized by the others."""
    text = "g (float[N, 5, 3] x) => (float[N, 5, 3] y) { y = Identity(x) }"
    model, feeds = parse(text), inputs(1, 5, 3)
    values = [np.exp(one["x"]) / np.exp(one["x"]).sum(-1, keepdims=True) for one in feeds]
    for value in values:
        value[:, 3:] = np.nan
    result = recognize(model, feeds[0], [{"y": value} for value in values])
    assert result["y"].name == "probabilities"
    assert flawed_values(result, [{"y": value} for value in values]) == {"y": (6 * len(values), 15 * len(values))}


def test_to_json_and_back() -> None:
    text = f"g (float[N, 3, 8, 8] x) => (float[N, 11, 80] y, float[N, 4] z) {{ {JOINED} y = Identity(l) {SMALL} }}"
    result: dict[str, OutputKind] = kinds(text, inputs(1, 3, 8, 8), **HEADS, wz=noise(3, 4))
    assert from_json(to_json(result)) == result
    assert list(result) == ["y", "z"]


SMALL = "pool = GlobalAveragePool(x) vector = Flatten(pool) z = MatMul(vector, wz)"


@pytest.mark.parametrize(
    ("inputs", "outputs", "states"),
    [
        ("frame state", "y next_state", {"next_state": "state"}),
        ("x h c", "y hn cn", {"hn": "h", "cn": "c"}),
        ("input state sr", "output stateN", {"stateN": "state"}),
        ("x", "y", {}),
        ("state", "next_state", {}),  # nothing beside it
    ],
)
def test_the_input_that_takes_a_state(inputs: str, outputs: str, states: Mapping[str, str]) -> None:
    ends = (", ".join(f"float[1, 8] {name}" for name in names.split()) for names in (inputs, outputs))
    body = " ".join(f"{name} = Relu({inputs.split()[0]})" for name in outputs.split())
    assert states_of(parse(f"g ({next(ends)}) => ({next(ends)}) {{ {body} }}")) == states
