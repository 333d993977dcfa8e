import numpy as np
import pytest
from graphs import noise, parse

from ptqc.ir.layers import (
    Layer,
    Weight,
    all_nodes,
    draws,
    find_inner_layers,
    find_layers,
    find_weights,
    why_not_a_layer,
)


def layers_of(graph: str, **constants: np.ndarray) -> list[Layer]:
    return find_layers(parse(graph, **constants))


def only(graph: str, **constants: np.ndarray) -> Layer:
    (layer,) = layers_of(graph, **constants)
    return layer


CONV = "g (float[N, 6, 9, 9] x) => (float[N, C, H, W] y) {{ y = Conv <{}> (x, w) }}"


def test_convolution() -> None:
    attributes = "group = 2, strides = [2, 1], pads = [1, 0, 2, 3], dilations = [1, 2]"
    layer = only(CONV.format(attributes), w=noise(4, 3, 3, 2))
    assert layer == Layer("y", "Conv", "x", "w", None, "y", (4, 3, 3, 2), 0, 2, (2, 1), (1, 0, 2, 3), (1, 2))
    assert (layer.channels, layer.kernel) == (4, (3, 2))


def test_what_a_convolution_leaves_out() -> None:
    layer = only(CONV.format("group = 1"), w=noise(4, 6, 1, 1))
    assert (layer.groups, layer.strides, layer.pads, layer.dilations) == (1, (1, 1), (0, 0, 0, 0), (1, 1))
    signal = only("g (float[N, 2, T] x) => (float[N, 4, U] y) { y = Conv <pads = [2, 0]> (x, w) }", w=noise(4, 2, 3))
    assert (signal.kernel, signal.strides, signal.pads) == ((3,), (1,), (2, 0))


PRODUCTS = {
    "MatMul(x, w)": (1, noise(5, 3)),
    "Gemm(x, w)": (1, noise(5, 3)),
    "Gemm <transB = 1> (x, w)": (0, noise(3, 5)),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product: str) -> None:
    axis, weight = PRODUCTS[product]
    layer = only(f"g (float[N, 5] x) => (float[N, 3] y) {{ y = {product} }}", w=weight)
    assert (layer.channel_axis, layer.channels, layer.kernel, layer.groups) == (axis, 3, (), 1)
    real = weight if axis == 1 else weight.T
    np.testing.assert_array_equal(layer.matrix(weight)[0], real.T)


@pytest.mark.parametrize(
    "layer",
    [
        Layer("y", "MatMul", "x", "w", None, "y", (5, 3), 1),
        Layer("y", "Gemm", "x", "w", None, "y", (3, 5), 0),
        Layer("y", "Conv", "x", "w", None, "y", (6, 2, 3, 3), 0, 3),
    ],
    ids=lambda layer: layer.op_type,
)
def test_matrix_and_tensor_are_inverse(layer: Layer) -> None:
    weight = noise(*layer.shape)
    matrix = layer.matrix(weight)
    assert matrix.shape[:2] == (layer.groups, layer.channels // layer.groups)
    np.testing.assert_array_equal(layer.tensor(matrix), weight)


def test_a_vector_over_the_output() -> None:
    conv = Layer("y", "Conv", "x", "w", None, "y", (6, 2, 3, 3), 0)
    assert conv.over_output(np.arange(6)).shape == (1, 6, 1, 1)
    assert Layer("y", "MatMul", "x", "w", None, "y", (5, 3), 1).over_output(np.arange(3)).shape == (3,)


NOT_LAYERS = {
    "computed weight": ("h = Relu(v) y = MatMul(x, h)", {"v": noise(5, 3)}),
    "constant data": ("y = MatMul(v, w) z = Relu(x)", {"v": noise(2, 5), "w": noise(5, 3)}),
    "another dtype": (
        "d = Cast <to = 11> (x) e = MatMul(d, w) y = Cast <to = 1> (e)",
        {"w": noise(5, 3).astype(float)},
    ),
    "a batch of weights": ("y = MatMul(x, w)", {"w": noise(2, 5, 3)}),
    "alpha": ("y = Gemm <alpha = 2.0> (x, w)", {"w": noise(5, 3)}),
    "transposed data": ("y = Gemm <transA = 1> (x, w)", {"w": noise(5, 3)}),
    "a bias per row": ("y = Gemm (x, w, b)", {"w": noise(5, 3), "b": noise(5, 1)}),
    "a computed bias": ("b = Relu(v) y = Gemm (x, w, b)", {"w": noise(5, 3), "v": noise(3)}),
}


@pytest.mark.parametrize("kind", NOT_LAYERS)
def test_what_is_no_layer(kind: str) -> None:
    nodes, constants = NOT_LAYERS[kind]
    assert layers_of(f"g (float[5, 5] x) => (float[A, B] y) {{ {nodes} }}", **constants) == []


def test_padding_by_name_is_not_explicit() -> None:
    model = parse(CONV.format('auto_pad = "SAME_UPPER"'), w=noise(4, 6, 3, 3))
    assert find_layers(model) == []
    assert why_not_a_layer(model.graph[0]) == "its attributes have no integer kernel"


@pytest.mark.parametrize(
    ("kind", "reason"),
    {
        "computed weight": "its second operand is computed, not constant",
        "constant data": "its input is constant",
        "another dtype": "its weight is float64",
        "a batch of weights": "its weight is a stack of 2 matrices, and integer kernels take one",
        "a computed bias": "its bias is computed, not constant",
        "alpha": "its attributes have no integer kernel",
    }.items(),
)
def test_the_reason_names_what_stands_in_the_way(kind: str, reason: str) -> None:
    nodes, constants = NOT_LAYERS[kind]
    model = parse(f"g (float[5, 5] x) => (float[A, B] y) {{ {nodes} }}", **constants)
    node = next(node for node in model.graph if node.op_type in ("MatMul", "Gemm"))
    assert why_not_a_layer(node) == reason


def test_a_bias_per_row_of_a_square_output_is_no_bias_per_channel() -> None:
    graph = "g (float[3, 5] x) => (float[3, 3] y) { y = Gemm (x, w, b) }"
    assert layers_of(graph, w=noise(5, 3), b=noise(3, 1)) == []
    assert len(layers_of(graph, w=noise(5, 3), b=noise(1, 3))) == 1


@pytest.mark.parametrize(
    ("nodes", "settled"),
    [
        ("c = Conv(x, w) y = Relu(c)", "y"),
        ("c = Conv(x, w) y = Clip(c, zero, six)", "y"),
        ("c = Conv(x, w) y = Clip(c, none, sixes)", "y"),
        ("c = Conv(x, w) y = Clip(c, zero)", "y"),
        ("c = Conv(x, w) y = Clip(c, six)", "c"),
        ("c = Conv(x, w) y = Clip(c, , six)", "c"),
        ("c = Conv(x, w) y = Tanh(c)", "c"),
        ("c = Conv(x, w) r = Relu(c) y = Add(r, c)", "c"),
        ("c = Conv(x, w) r = Relu(c) s = Relu(c) y = Add(r, s)", "c"),
        ("c = Conv(x, w) low = Neg(six) y = Clip(c, zero, low)", "c"),
    ],
)
def test_what_a_layer_absorbs(nodes: str, settled: str) -> None:
    graph = f"g (float[N, 6, 9, 9] x) => (float[N, 4, 9, 9] y) {{ {nodes} }}"
    constants = {"w": noise(4, 6, 1, 1), "zero": np.float32(0), "six": np.float32(6)}
    constants |= {"none": np.zeros(1, np.float32), "sixes": np.full(1, 6, np.float32)}
    assert only(graph, **{name: np.asarray(value) for name, value in constants.items()}).output == settled


def test_a_layer_that_is_an_output_absorbs_nothing() -> None:
    graph = "g (float[N, 6, 9, 9] x) => (float[N, 4, 9, 9] c, float[N, 4, 9, 9] y) { c = Conv(x, w) y = Relu(c) }"
    assert only(graph, w=noise(4, 6, 1, 1)).output == "c"


# A sum of powers, of which a logarithm and a root are taken at the end.
BANK = """g (float[N, 4] x) => (float[N, 3] y, float[N, 3] z) {
    power = Mul(x, x)
    sum = MatMul(power, w)
    above = Add(sum, b)
    y = OP(above)
    z = MatMul(y, v)
}"""


def bank(op: str, *, lowest: float) -> list[bool]:
    graph, floor = BANK.replace("OP", op), np.array([1e-6], np.float32)
    layers = layers_of(graph, w=abs(noise(4, 3)) + np.float32(lowest), b=floor, v=abs(noise(3, 3)))
    return [layer.keeps_sign for layer in layers]


def test_sums_that_a_logarithm_is_taken_of_keep_their_sign() -> None:
    assert bank("Log", lowest=0.0) == bank("Sqrt", lowest=0.0) == [True, False]
    assert bank("Log", lowest=-0.1) == bank("Exp", lowest=0.0) == [False, False]


def test_weights_of_constant_nodes_have_a_sign_too() -> None:
    graph = """g (float[N, 2] x) => (float[N, 1] y) {
        w = Constant <value = float[2, 1] {1, 2}> ()
        h = MatMul(x, w)
        y = Log(h)
    }"""
    assert only(graph).keeps_sign


def test_a_negative_bias_leaves_a_sum_no_sign() -> None:
    graph = "g (float[N, 4] x) => (float[N, 3] y) { h = Gemm(x, w, b) y = Log(h) }"
    for lowest, keeps_sign in ((0.0, True), (-0.1, False)):
        assert only(graph, w=abs(noise(4, 3)), b=np.array([lowest, 1, 2], np.float32)).keeps_sign is keeps_sign


def weights_of(graph: str, **constants: np.ndarray) -> list[Weight]:
    model = parse(graph, **constants)
    return find_weights(model, find_layers(model))


def test_a_shared_weight_lists_all_its_layers() -> None:
    graph = "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    (weight,) = weights_of(graph, w=noise(4, 4))
    assert (weight.channel_axis, [layer.name for layer in weight.layers]) == (1, ["a", "y"])
    assert weight.size == 16


SHARED = {
    "in two roles": "a = MatMul(x, w) b = Relu(a) y = Gemm <transB = 1> (b, w)",
    "with another operator": "a = MatMul(x, w) y = Add(a, w)",
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_weight_that_is_more_than_a_weight_is_a_table(kind: str) -> None:
    (weight,) = weights_of(f"g (float[20, 20] x) => (float[20, 20] y) {{ {SHARED[kind]} }}", w=noise(20, 20))
    assert weight.layers == ()


def test_tables() -> None:
    graph = """g (int64[N, T] i, float[N, 600] x) => (float[N, A, B] y, float[N, B] z, float[N, 600] v) {
        y = Gather(embedding, i)
        z = MatMul(x, w)
        s = Add(x, long)
        t = Add(s, short)
        v = Mul(t, unused_shape)
    }"""
    constants = {
        "embedding": noise(50, 8),
        "w": noise(600, 2),
        "long": noise(1, 600),
        "short": noise(1, 1),
        "unused_shape": noise(600),
        "unused": noise(40, 40),
    }
    weights = weights_of(graph, **constants)
    assert [(w.name, w.channel_axis, len(w.layers)) for w in weights] == [
        ("w", 1, 1),
        ("embedding", 0, 0),
        ("long", 0, 0),
        ("unused_shape", 0, 0),
    ]


def test_the_scales_of_a_table_run_along_its_longest_axis_but_the_last() -> None:
    def axis(*shape: int) -> int:
        (weight,) = weights_of(
            f"g (float[N] x) => (float[{','.join('ABCD'[: len(shape)])}] y) {{ y = Mul(x, w) }}", w=noise(*shape)
        )
        return weight.channel_axis

    assert axis(2, 40, 8) == 1
    assert axis(100, 4) == 0
    assert axis(100, 2, 3) == 1  # rows of six would cost nearly a scale for every three weights
    assert axis(40, 2, 8) == 0


def test_constants_of_other_types_and_biases_are_no_weights() -> None:
    graph = "g (float[N, 4] x) => (float[N, 300] y) { a = Gemm(x, w, b) i = Cast <to = 1> (c) y = Add(a, i) }"
    (weight,) = weights_of(graph, w=noise(4, 300), b=noise(300), c=np.arange(300))
    assert weight.name == "w"


def test_constants_read_in_subgraphs_count() -> None:
    graph = """g (bool c, float[N, 20] x) => (float[N, 20] y) {
        y = If (c) <
            then_branch = then () => (float[N, 20] a) { a = MatMul(x, w) },
            else_branch = other () => (float[N, 20] b) { b = Identity(x) }
        >
    }"""
    model = parse(graph, w=noise(20, 20))
    assert find_layers(model) == []
    (weight,) = find_weights(model, [])
    assert (weight.name, weight.layers, weight.channel_axis) == ("w", (), 1)
    assert [layer.shape for layer in weight.inner] == [(20, 20)]
    assert [node.op_type for node in all_nodes(model.graph)] == ["If", "MatMul", "Identity"]


def test_a_weight_that_a_subgraph_reads_too_is_a_table() -> None:
    graph = """g (bool c, float[N, 20] x) => (float[N, 20] y) {
        z = MatMul(x, w)
        y = If (c) <
            then_branch = then () => (float[N, 20] a) { a = MatMul(z, w) },
            else_branch = other () => (float[N, 20] b) { b = Identity(z) }
        >
    }"""
    (weight,) = weights_of(graph, w=noise(20, 20))
    assert weight.layers == weight.inner == ()


def test_a_weight_with_two_roles_in_subgraphs_is_rounded_for_itself() -> None:
    graph = """g (bool c, float[N, 20] x) => (float[N, 20] y) {
        y = If (c) <
            then_branch = then () => (float[N, 20] a) { a = MatMul(x, w) },
            else_branch = other () => (float[N, 20] a) { a = Gemm <transB = 1>(x, w) }
        >
    }"""
    model = parse(graph, w=noise(20, 20))
    first, second = find_inner_layers(model).values()
    assert (first.channel_axis, second.channel_axis) == (1, 0)
    assert first.name != second.name
    (weight,) = find_weights(model, [])
    assert weight.layers == weight.inner == ()


READERS = """g (float[N, 6, 9, 9] x) => (float[N, C, H, W] y) {
    a = Conv (x, w) b = Conv (x, u) c = Conv <strides = [2, 2]> (x, w) d = Conv <pads = [0, 0, 1, 1]> (x, w)
    e = Conv (x, k) r = Relu(x) y = Conv (r, w)
}"""


def test_layers_that_read_the_same_in_the_same_way_have_one_draw() -> None:
    layers = layers_of(READERS, w=noise(4, 6, 1, 1), u=noise(5, 6, 1, 1), k=noise(4, 6, 3, 3))
    assert draws(layers) == {"a": 0, "b": 0, "c": 2, "d": 3, "e": 4, "y": 5}


def test_products_that_read_the_same_rows_have_one_draw() -> None:
    graph = "g (float[N, 5] x) => (float[N, 3] y) { a = MatMul(x, w) b = Gemm <transB = 1> (x, v) y = Add(a, b) }"
    assert draws(layers_of(graph, w=noise(5, 3), v=noise(3, 5))) == {"a": 0, "b": 0}


@pytest.mark.parametrize(("steps", "keeps"), [(1, False), (2, True)])
def test_many_layers_of_a_small_weight_keep_their_biases(steps: int, keeps: bool) -> None:
    """A bias for each of them would take more bytes than the weight has in a bit for each number."""
    nodes = " ".join(f"h{i + 1} = Gemm(h{i}, w, b)" for i in range(steps))
    model = parse(f"g (float[N, 32] h0) => (float[N, 32] h{steps}) {{ {nodes} }}", w=noise(32, 32), b=noise(32))
    layers = find_layers(model)
    assert [layer.keeps_bias for layer in layers] == [keeps] * steps
    assert [layer.is_corrected for layer in layers] == [not keeps] * steps
