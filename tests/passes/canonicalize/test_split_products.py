"""Products by matrices that ONNX Runtime would not unpack when it loads a file."""

import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.errors import ModelError
from ptqc.ir.layers import find_layers, find_weights, pickers
from ptqc.passes.canonicalize import split_products
from ptqc.passes.canonicalize.linear_layers import LinearLayers
from ptqc.passes.canonicalize.split_products import SplitProducts, parts_of
from ptqc.passes.canonicalize.tied_tables import TiedTables

LARGEST = split_products.LARGEST
WORDS = np.array([[0, 3, 4], [8, -1, -9]])
PRODUCTS = [
    "y = MatMul(x, w)",
    "y = Gemm(x, w, b)",
    "y = Gemm <transB = 1> (x, v, b)",
    "h = Gemm <transB = 1> (x, v) y = Relu(h)",
]
CONSTANTS = {"w": noise(4, 9), "v": noise(9, 4), "b": noise(9)}


@pytest.fixture(autouse=True)
def sixteen_numbers_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_products, "LARGEST", 16)


@pytest.mark.parametrize("product", PRODUCTS)
def test_each_part_is_a_layer(product: str) -> None:
    model = parse(f"g (float[2, 4] x) => (float y) {{ {product} }}", **CONSTANTS)
    (note,) = rewrite(model, SplitProducts(), x=noise(2, 4))
    assert "into 3 matrices: ONNX Runtime would unpack one of 36 elements" in note.message
    layers = find_layers(model)
    assert [layer.channels for layer in layers] == [3, 3, 3]
    assert max(weight.size for weight in find_weights(model, layers)) <= split_products.LARGEST
    assert operators(model)[:4] == [product.split()[2].partition("(")[0]] * 3 + ["Concat"]


def test_products_of_one_matrix_share_its_parts() -> None:
    model = parse(
        "g (float[2, 4] x, float[3, 4] z) => (float y, float u) { y = MatMul(x, w) u = MatMul(z, w) }",
        **{"w": CONSTANTS["w"]},
    )
    assert len(rewrite(model, SplitProducts(), x=noise(2, 4), z=noise(3, 4))) == 1
    assert [len(weight.layers) for weight in find_weights(model, find_layers(model))] == [2, 2, 2]


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_a_tied_table_is_split_along_with_its_matrix(kind: str) -> None:
    text = f"g ({kind}[N, T] i) => (float y, float e) {{ e = Gather(t, i) h = Transpose(t) y = MatMul(e, h) }}"
    model = parse(text, t=noise(9, 4))
    rewrite(model, TiedTables(), i=WORDS.astype(kind))
    (note,) = rewrite(model, SplitProducts(), i=WORDS.astype(kind))
    assert "so is the embedding" in note.message
    weights = find_weights(model, find_layers(model))
    assert len({weight.table for weight in weights}) == len(weights) == 3
    for weight in weights:
        assert len(pickers(model.graph.initializers[weight.table or ""])) == 1


@pytest.mark.parametrize("place", [9, 20])
def test_a_place_beyond_the_table_is_refused(place: int) -> None:
    model = parse("g (int64[N] i) => (float y) { e = Gather(t, i) h = Transpose(t) y = MatMul(e, h) }", t=noise(9, 4))
    rewrite(model, TiedTables(), i=WORDS[0])
    rewrite(model, SplitProducts(), i=WORDS[0])
    with pytest.raises(ModelError, match="out of"):
        rewrite(model, SplitProducts(), i=np.array([place]))


def test_a_bias_goes_with_its_channels() -> None:
    model = parse("g (float[2, 4] x) => (float y) { h = MatMul(x, w) y = Add(h, b) }", w=CONSTANTS["w"], b=noise(9))
    rewrite(model, LinearLayers(), x=noise(2, 4))
    rewrite(model, SplitProducts(), x=noise(2, 4))
    assert operators(model) == ["Gemm", "Gemm", "Gemm", "Concat"]


def test_a_normalization_that_several_products_read_has_a_bias() -> None:
    text = "g (float[2, 4] x) => (float y) { h = LayerNormalization(x, s) y = MatMul(h, w) }"
    model = parse(text, s=noise(4), w=CONSTANTS["w"])
    rewrite(model, SplitProducts(), x=noise(2, 4))
    (node,) = (node for node in model.graph if node.op_type == "LayerNormalization")
    assert len(node.inputs) == 3


def test_small_matrices_and_tables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (int64[T] i) => (float y) { e = Gather(t, i) y = MatMul(e, w) }"
    model = parse(text, t=noise(9, 4), w=noise(4, 4))
    assert rewrite(model, SplitProducts(), i=WORDS[0]) == []
    monkeypatch.setattr(split_products, "LARGEST", 36)
    assert rewrite(parse(text, t=noise(9, 4), w=CONSTANTS["w"]), SplitProducts(), i=WORDS[0]) == []


@pytest.mark.parametrize("channels", [130, 17_408, 151_936, 2_000_001])
@pytest.mark.parametrize("width", [128, 2048, 17_408])
def test_parts_are_even_and_aligned(monkeypatch: pytest.MonkeyPatch, channels: int, width: int) -> None:
    monkeypatch.setattr(split_products, "LARGEST", LARGEST)
    parts = parts_of(channels, width)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == channels
    assert all(0 < (part.stop - part.start) * width <= split_products.LARGEST for part in parts)
    assert all(part.start % split_products.ALIGNED == 0 for part in parts)
