import re

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.ir.layers import find_layers
from ptqc.ir.sites import (
    QuantizableOp,
    ScaleGroup,
    find_kernels,
    find_sites,
    integer_kernels,
    read_without_padding,
    useful_sites,
)

CONSTANTS = {
    "w": noise(6, 6, 1, 1),
    "v": noise(6, 6, 1, 1, seed=1),
    "m": noise(6, 5),
    "zero": np.float32(0),
    "one": np.float32(1),
    "six": np.float32(6),
    "shape": np.array([0, -1]),
    "axes": np.array([2, 3]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "indices": np.array([0, 2]),
    "k": noise(1, 6, 1, 1),
    "scales": np.array([1, 1, 2, 2], np.float32),
}


def network(nodes: str, outputs: str = "float[N, A, B, C] y") -> ir.Model:
    """A graph over x (N, 6, 8, 8) with the constants above."""
    used = {name: np.asarray(CONSTANTS[name]) for name in set(re.findall(r"\w+", nodes)) & set(CONSTANTS)}
    return parse(f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}", **used)


def roles(
    nodes: str, outputs: str = "float[N, A, B, C] y", *, fused: bool = False
) -> tuple[list[QuantizableOp], list[ScaleGroup], list[ScaleGroup]]:
    """Kernels, all sites, and the useful ones."""
    model = network(nodes, outputs)
    layers = find_layers(model)
    kernels = find_kernels(model, layers, fused=fused)
    sites = find_sites(model, kernels, fused=fused)
    return kernels, sites, useful_sites(sites, kernels, {layer.name for layer in layers})


def ties(sites: list[ScaleGroup]) -> list[tuple[str, ...]]:
    return sorted(tuple(sorted(site.tensors)) for site in sites)


# Kernels


def test_a_layer_writes_what_it_settles_to() -> None:
    kernels, _, _ = roles("c = Conv(x, w) r = Relu(c) y = Conv(r, v)")
    assert kernels == [QuantizableOp("c", "Conv", ("x",), "r", False), QuantizableOp("y", "Conv", ("r",), "y", False)]


def test_sums_products_and_means() -> None:
    kernels, _, _ = roles(
        "c = Conv(x, w) s = Add(c, x) a = Relu(s) p = Mul(a, x) g = GlobalAveragePool(p) y = Sigmoid(g)"
    )
    assert kernels[1:] == [
        QuantizableOp("s", "Add", ("c", "x"), "a", False),
        QuantizableOp("p", "Mul", ("a", "x"), "p", False),
        QuantizableOp("g", "GlobalAveragePool", ("p",), "g", False),
        QuantizableOp("y", "Sigmoid", ("g",), "y", False),
    ]


@pytest.mark.parametrize("nodes", ["y = Add(x, k)", "y = Mul(k, x)", "y = Div(x, x)", "y = Tanh(x)", "y = Softmax(x)"])
def test_what_has_no_kernel(nodes: str) -> None:
    assert roles(nodes)[0] == []


HEAD = "g = GlobalAveragePool(x) f = Reshape(g, shape) "


@pytest.mark.parametrize(
    ("nodes", "free"),
    [
        ("y = Gemm(f, m)", True),
        ("y = MatMul(f, m)", True),
        ("a = Gemm(f, m) y = Relu(a)", False),
        ("a = Gemm(f, m) y = Tanh(a)", True),
    ],
)
def test_a_product_may_keep_its_output_float(nodes: str, free: bool) -> None:
    kernels, _, _ = roles(HEAD + nodes, "float[N, A] y")
    assert [kernel.float_output for kernel in kernels if kernel.op_type in ("Gemm", "MatMul")] == [free]


# Ties

TIES = {
    "relu behind a layer": ("c = Conv(x, w) r = Relu(c) y = Conv(r, v)", [("r",), ("x",), ("y",)]),
    "relu of a value used twice": (
        "c = Conv(x, w) r = Relu(c) d = Conv(r, v) y = Add(c, d)",
        [("c", "r"), ("d",), ("x",), ("y",)],
    ),
    "clip to six": ("c = Conv(x, w) r = Clip(c, zero, six) y = Conv(r, v)", [("r",), ("x",), ("y",)]),
    "clip from one": ("c = Conv(x, w) r = Clip(c, one, six) y = Conv(r, v)", [("c", "r"), ("x",), ("y",)]),
    "pool": ("r = MaxPool <kernel_shape = [2, 2]> (x) y = Conv(r, w)", [("r", "x"), ("y",)]),
    "concatenation": ("c = Conv(x, w) d = Concat <axis = 0> (c, x) y = Conv(d, v)", [("c", "d", "x"), ("y",)]),
    "concatenation with itself": ("d = Concat <axis = 0> (x, x) y = Conv(d, v)", [("d", "x"), ("y",)]),
    "chain": (
        "t = Transpose <perm = [0, 1, 3, 2]> (x) s = Slice(t, indices, axes, axes) y = Conv(s, w)",
        [("s", "t", "x"), ("y",)],
    ),
    "split": (
        "a, b = Split <axis = 0, num_outputs = 2> (x) c = Conv(a, w) d = Conv(b, v) y = Add(c, d)",
        [("a", "b", "x"), ("c",), ("d",), ("y",)],
    ),
    "pad with zeros": ("p = Pad(x, pads) y = Conv(p, w)", [("p", "x"), ("y",)]),
    "pad with ones": ("p = Pad(x, pads, one) y = Conv(p, w)", [("p",), ("y",)]),
    "gather": ("p = Gather(x, indices) y = Conv(p, w)", [("p", "x"), ("y",)]),
    "nearest neighbours": (
        'p = Resize <mode = "nearest"> (x, , scales) y = Conv(p, w)',
        [("p", "x"), ("y",)],
    ),
    "interpolation": (
        'p = Resize <mode = "linear"> (x, , scales) y = Conv(p, w)',
        [("p",), ("y",)],
    ),
    "pool with indices": ("r, i = MaxPool <kernel_shape = [2, 2]> (x) y = Conv(r, w)", [("r",), ("y",)]),
    "float between": ("c = Conv(x, w) t = Tanh(c) y = Conv(t, v)", [("c",), ("t",), ("x",), ("y",)]),
    "residual": ("c = Conv(x, w) s = Add(c, x) y = Relu(s)", [("c",), ("x",), ("y",)]),
}


@pytest.mark.parametrize("kind", TIES)
def test_ties(kind: str) -> None:
    nodes, expected = TIES[kind]
    _, sites, _ = roles(nodes)
    assert ties(sites) == expected
    assert all(site.name == site.tensors[0] for site in sites)


def test_sources_are_the_tensors_that_are_rounded() -> None:
    nodes = (
        "c = Conv(x, w) p = MaxPool <kernel_shape = [1, 1]> (c) d = Concat <axis = 0> (p, x) r = Relu(d) y = Conv(r, v)"
    )
    _, sites, _ = roles(nodes)
    (site,) = [site for site in sites if "d" in site.tensors]
    assert set(site.tensors) == {"x", "c", "p", "d", "r"}
    assert set(site.sources) == {"x", "c"}


@pytest.mark.parametrize("kind", ["relu behind a layer", "clip to six", "residual", "float between"])
def test_what_a_kernel_makes_is_a_source(kind: str) -> None:
    _, sites, _ = roles(TIES[kind][0])
    assert all(site.sources == site.tensors for site in sites)


def test_what_is_only_moved_is_no_source() -> None:
    _, sites, _ = roles(TIES["split"][0])
    assert next(site.sources for site in sites if "b" in site.tensors) == ("x",)


def test_a_pre_activation_is_no_tensor_of_a_site() -> None:
    _, sites, _ = roles("c = Conv(x, w) s = Add(c, x) y = Relu(s)")
    assert "s" not in {tensor for site in sites for tensor in site.tensors}


# Use


def names(sites: list[ScaleGroup]) -> set[str]:
    return {site.name for site in sites}


def test_the_float_output_of_the_last_product_is_no_site() -> None:
    _, _, useful = roles(HEAD + "y = Gemm(f, m)", "float[N, A] y")
    assert names(useful) == {"x", "g"}


def test_the_output_of_a_product_is_a_site_where_a_kernel_reads_it() -> None:
    _, _, useful = roles(HEAD + "a = Gemm(f, m) b = Gemm(f, m) y = Add(a, b)", "float[N, A] y")
    assert names(useful) == {"x", "g", "a", "b", "y"}


def test_islands_without_a_layer_stay_float() -> None:
    nodes = "c = Conv(x, w) t = Tanh(c) s = Add(t, t) g = GlobalAveragePool(s) y = Sin(g)"
    _, sites, useful = roles(nodes)
    assert {"t", "s", "g"} <= names(sites)
    assert names(useful) == {"x", "c"}


def test_a_sum_joins_the_island_of_its_layer() -> None:
    nodes = "c = Conv(x, w) t = Tanh(c) s = Add(t, c) y = Sin(s)"
    _, _, useful = roles(nodes)
    assert names(useful) == {"x", "c", "t", "s"}


def test_removing_a_site_can_make_others_useless() -> None:
    kernels, sites, _ = roles("c = Conv(x, w) s = Add(c, x) y = Relu(s)")
    without = [site for site in sites if site.name != "x"]
    assert useful_sites(without, kernels, {"c"}) == []


def test_kernels_need_all_their_tensors() -> None:
    kernels, _, _ = roles("c = Conv(x, w) s = Add(c, x) y = Relu(s)")
    assert [k.node for k in integer_kernels(kernels, {"x", "c", "y"})] == ["c", "s"]
    assert [k.node for k in integer_kernels(kernels, {"x", "c"})] == ["c"]
    assert [k.node for k in integer_kernels(kernels, {"c", "y"})] == []


def test_values_of_other_types_are_no_sites() -> None:
    model = parse(
        "g (float16[N, 6, 8, 8] x) => (float[N, 6, 8, 8] y) { d = Cast <to = 1> (x) y = Conv(d, w) }",
        w=noise(6, 6, 1, 1),
    )
    sites = find_sites(model, find_kernels(model, find_layers(model)))
    assert names(sites) == {"d", "y"}


@pytest.mark.parametrize(
    ("nodes", "is_free"),
    [
        ("h = MatMul(x, w) y = Add(h, x)", False),
        ("h = MatMul(x, w) a = Add(h, x) b = Mul(h, x) y = Add(a, b)", True),
        ("h = MatMul(x, w) y = Mul(h, x)", True),
    ],
)
def test_a_product_that_a_sum_alone_reads_has_codes_as_its_output(nodes: str, is_free: bool) -> None:
    """ONNX Runtime makes one Gemm of both where the product gives real values."""
    model = parse(f"g (float[N, 6] x) => (float[N, 6] y) {{ {nodes} }}", w=noise(6, 6))
    assert find_kernels(model, find_layers(model))[0].float_output == is_free


# Runtimes that fuse what lies between layers


def test_what_layers_and_sums_read_has_a_scale_of_its_own() -> None:
    """Not what a layer makes for a sum alone, nor what lies between."""
    kernels, sites, useful = roles(
        "c = Conv(x, w) g = Sigmoid(c) p = Mul(c, g) t = MaxPool <kernel_shape = [1, 1]> (p) d = Conv(t, v) "
        "s = Add(d, p) r = Relu(s) y = Conv(r, v)",
        fused=True,
    )
    assert kernels == [
        QuantizableOp("c", "Conv", ("x",), "c", True, fused=True),
        QuantizableOp("d", "Conv", ("t",), "d", True, fused=True),
        QuantizableOp("s", "Add", ("p",), "r", True, fused=True),
        QuantizableOp("y", "Conv", ("r",), "y", True, fused=True),
    ]
    assert ties(sites) == ties(useful) == [("p",), ("r",), ("t",), ("x",)]


def test_one_of_two_layers_is_rounded_in_front_of_their_sum() -> None:
    kernels, _, useful = roles("c = Conv(x, w) d = Conv(x, v) y = Add(c, d)", fused=True)
    assert kernels[-1].inputs == ("d",)
    assert ties(useful) == [("d",), ("x",)]


def test_biases_make_up_for_a_shift_where_nothing_is_padded() -> None:
    model = network(
        "a = Conv(x, w) b = Conv <pads = [1, 1, 1, 1]> (a, w) c = Conv(b, w) d = Add(b, c) e = Conv(d, w) "
        "y = Conv(e, v) z = Conv(e, w)",
        "float[N, A, B, C] y, float[N, A, B, C] z",
    )
    assert read_without_padding(model, find_layers(model)) == {"x", "d", "e"}
    product = parse("g (float[N, 6] x) => (float[N, 5] y) { y = MatMul(x, m) }", m=np.asarray(CONSTANTS["m"]))
    assert read_without_padding(product, find_layers(product)) == set()
