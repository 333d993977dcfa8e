import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import operators, rewrite

from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.passes.equalize.outliers import Split, SplitOutliers, splittable

CHANNELS = 6
wide = st.sets(st.integers(0, CHANNELS - 1), min_size=1, max_size=CHANNELS - 1).map(sorted).map(tuple)


def split(model: ir.Model, channels: tuple[int, ...], tensor: str = "x", **feeds: np.ndarray) -> list[str]:
    """Operators after splitting; the pipeline has compared the outputs with those of before."""
    rewrite(model, SplitOutliers((Split(tensor, channels),)), **feeds)
    return operators(model)


def with_wide(x: np.ndarray, channels: tuple[int, ...], axis: int) -> np.ndarray:
    """The same with these channels 50 times as large."""
    factor = np.ones(x.shape[axis], np.float32)
    factor[list(channels)] = 50
    return np.asarray(x * factor.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]), np.float32)


@settings(max_examples=100, deadline=None)
@given(
    channels=wide,
    pad=st.integers(0, 2),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    biased=st.booleans(),
    seed=st.integers(0, 9),
)
def test_convolutions(
    channels: tuple[int, ...],
    pad: int,
    stride: int,
    dilation: int,
    kernel: tuple[int, int],
    biased: bool,
    seed: int,
) -> None:
    window = f"pads = [{pad}, 0, {pad}, 1], strides = [{stride}, 1], dilations = [1, {dilation}]"
    graph = f"""g (float[N, {CHANNELS}, 9, 8] x) => (float[N, 4, H, W] y) {{
        c = Conv <{window}> (x, w{", b" if biased else ""})
        y = Relu(c)
    }}"""
    model = parse(graph, w=noise(4, CHANNELS, *kernel, seed=seed), b=noise(4, seed=seed))
    x = with_wide(noise(2, CHANNELS, 9, 8, seed=seed), channels, 1)
    assert split(model, channels, x=x) == ["Mul", "Gather", "Conv", "Conv", "Add", "Relu"]


@settings(max_examples=60, deadline=None)
@given(channels=wide, turned=st.booleans(), biased=st.booleans(), seed=st.integers(0, 9))
def test_gemm(channels: tuple[int, ...], turned: bool, biased: bool, seed: int) -> None:
    graph = f"""g (float[N, {CHANNELS}] x) => (float[N, 4] y) {{
        y = Gemm <transB = {int(turned)}> (x, w{", b" if biased else ""})
    }}"""
    weight = noise(CHANNELS, 4, seed=seed)
    model = parse(graph, w=weight.T.copy() if turned else weight, b=noise(4, seed=seed))
    x = with_wide(noise(5, CHANNELS, seed=seed), channels, -1)
    assert split(model, channels, x=x) == ["Mul", "Gather", "Gemm", "Gemm", "Add"]


@settings(max_examples=60, deadline=None)
@given(channels=wide, shape=st.sampled_from([(), (3,), (2, 3)]), seed=st.integers(0, 9))
def test_products_of_any_rank(channels: tuple[int, ...], shape: tuple[int, ...], seed: int) -> None:
    sizes = ", ".join(map(str, (2, *shape)))
    model = parse(
        f"g (float[{sizes}, {CHANNELS}] x) => (float[{sizes}, 4] y) {{ y = MatMul(x, w) }}",
        w=noise(CHANNELS, 4, seed=seed),
    )
    x = with_wide(noise(2, *shape, CHANNELS, seed=seed), channels, -1)
    assert split(model, channels, x=x) == ["Mul", "Gather", "MatMul", "MatMul", "Add"]


@settings(max_examples=60, deadline=None)
@given(channels=wide, readers=st.integers(1, 3), seed=st.integers(0, 9))
def test_one_cut_serves_all_readers_and_others_see_the_whole(
    channels: tuple[int, ...], readers: int, seed: int
) -> None:
    """Layers behind a normalization, beside a residual sum that reads the same tensor."""
    products = "\n".join(f"p{i} = MatMul(n, w{i})" for i in range(readers))
    summed = ", ".join(f"p{i}" for i in range(readers))
    model = parse(
        f"""g (float[N, 4, {CHANNELS}] x) => (float[N, 4, {CHANNELS}] y) {{
            n = LayerNormalization(x, g)
            {products}
            y = Sum(n, {summed})
        }}""",
        g=with_wide(np.ones(CHANNELS, np.float32), channels, 0),
        **{f"w{i}": noise(CHANNELS, CHANNELS, seed=seed + i) for i in range(readers)},
    )
    result = split(model, channels, "n", x=noise(2, 4, CHANNELS, seed=seed))
    assert result.count("Mul") == result.count("Gather") == 1
    assert result.count("MatMul") == 2 * readers


def test_the_narrow_weight_has_no_wide_columns_and_both_add_up_to_the_weight() -> None:
    weight = noise(4, CHANNELS, 1, 1)
    model = parse(f"g (float[N, {CHANNELS}, 3, 3] x) => (float[N, 4, 3, 3] y) {{ y = Conv(x, w) }}", w=weight)
    split(model, (1, 4), x=noise(1, CHANNELS, 3, 3))
    narrow, few = (initial(model, layer.weight) for layer in find_layers(model))
    assert not narrow[:, [1, 4]].any()
    narrow[:, [1, 4]] = few
    np.testing.assert_array_equal(narrow, weight)


REFUSED = {
    "groups of channels": "y = Conv <group = 3> (x, grouped)",
    "a depthwise convolution": "y = Conv <group = 6> (x, depthwise)",
    "a weight that another node reads": "c = Conv(x, dense) z = Conv(x, dense) y = Add(c, z)",
    "a name that another tensor has": "x_narrow = Neg(x) c = Conv(x, dense) y = Add(c, x_narrow)",
    "a logarithm of what it gives": "c = Conv(x, positive) y = Log(c)",
}
WEIGHTS = {
    "grouped": noise(CHANNELS, 2, 1, 1),
    "depthwise": noise(CHANNELS, 1, 1, 1),
    "dense": noise(CHANNELS, CHANNELS, 1, 1),
    "positive": np.abs(noise(CHANNELS, CHANNELS, 1, 1)),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_refused(body: str) -> None:
    used = {name: weight for name, weight in WEIGHTS.items() if name in body}
    model = parse(f"g (float[N, 6, 3, 3] x) => (float[N, 6, 3, 3] y) {{ {body} }}", **used)
    assert not splittable(model, find_layers(model))


def test_refused_where_readers_differ_in_the_axis_of_channels() -> None:
    model = parse(
        "g (float[N, 6, 6] x) => (float[N, 6, 6] y) { c = Conv(x, w) p = MatMul(x, v) y = Add(c, p) }",
        w=noise(6, 6, 1),
        v=noise(6, 6),
    )
    assert not splittable(model, find_layers(model))


def test_the_matrix_of_a_table_keeps_its_numbers() -> None:
    graph = "g (int64[N, T] i) => (float[N, T, 9] y) { e = Gather(t, i) x = Tanh(e) y = MatMul(x, w) }"
    table = noise(9, CHANNELS)
    model = parse(graph, t=table, w=table.T.copy())
    assert split(model, (1, 4), i=np.array([[0, 8, 3]])) == [
        "Gather",
        "Tanh",
        "Mul",
        "Gather",
        "MatMul",
        "MatMul",
        "Add",
    ]
    assert [weight.table for weight in find_weights(model, find_layers(model))] == ["t", None]
