import numpy as np
import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import operators, rewrite

from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm

NORM = "BatchNormalization({}, scale, shift, mean, variance)"


def statistics(channels: int) -> dict[str, np.ndarray]:
    return {
        "scale": noise(channels, seed=1),
        "shift": noise(channels, seed=2),
        "mean": noise(channels, seed=3),
        "variance": np.abs(noise(channels, seed=4)) + 0.2,
    }


@settings(max_examples=60, deadline=None)
@given(
    operator=st.sampled_from(["Conv", "ConvTranspose"]),
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    biased=st.booleans(),
)
def test_folds_into_the_layer_before(
    operator: str, groups: int, inputs: int, outputs: int, kernel: int, stride: int, biased: bool
) -> None:
    a, b = groups * inputs, groups * outputs
    shape = (b, inputs) if operator == "Conv" else (a, outputs)
    layer = f"{operator} <group = {groups}, strides = [{stride}]> (x, w{', b' if biased else ''})"
    graph = f"g (float[N, {a}, 7] x) => (float[N, {b}, W] y) {{ h = {layer}  y = {NORM.format('h')} }}"
    model = parse(graph, w=noise(*shape, kernel), b=noise(b), **statistics(b))
    rewrite(model, FoldBatchNorm(), x=noise(2, a, 7))
    assert operators(model) == [operator]


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 2),
    pads=st.lists(st.integers(0, 1), min_size=2, max_size=2),
    shifted=st.booleans(),
)
def test_folds_into_the_convolution_after_where_exact(
    groups: int, inputs: int, outputs: int, pads: list[int], shifted: bool
) -> None:
    a, b = groups * inputs, groups * outputs
    graph = f"""g (float[N, {a}, 7] x) => (float[N, {b}, W] y) {{
        r = Relu(x)
        h = {NORM.format("r")}
        y = Conv <group = {groups}, pads = {pads}> (h, w)
    }}"""
    numbers = statistics(a)
    if not shifted:
        numbers |= {"shift": np.zeros(a, np.float32), "mean": np.zeros(a, np.float32)}
    model = parse(graph, w=noise(b, inputs, 3), **numbers)
    rewrite(model, FoldBatchNorm(), x=noise(2, a, 7))
    assert operators(model) == (["Relu", "Conv", "Conv"] if shifted and any(pads) else ["Relu", "Conv"])


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_folds_into_gemm(transposed: int, bias: str) -> None:
    layer = f"Gemm <transB = {transposed}, alpha = 0.5, beta = 3.0> (x, w{bias})"
    graph = f"g (float[N, 4] x) => (float[N, 3] y) {{ h = {layer}  y = {NORM.format('h')} }}"
    model = parse(graph, w=noise(*((3, 4) if transposed else (4, 3))), b=noise(3), **statistics(3))
    rewrite(model, FoldBatchNorm(), x=noise(5, 4))
    assert operators(model) == ["Gemm"]


@pytest.mark.parametrize("spatial", [1, 2])
def test_becomes_a_depthwise_convolution(spatial: int) -> None:
    sizes = [5, 6][:spatial]
    shape = ", ".join(map(str, sizes))
    model = parse(
        f"g (float[N, 3, {shape}] x) => (float[N, 3, {shape}] y) {{ y = {NORM.format('x')} }}", **statistics(3)
    )
    notes = rewrite(model, FoldBatchNorm(), x=noise(2, 3, *sizes))
    assert operators(model) == ["Conv"]
    assert model.graph[0].attributes["group"].as_int() == 3
    assert "depthwise" in notes[0].message


def test_a_layer_with_other_users_is_not_scaled() -> None:
    graph = f"""g (float[N, 3, 5] x) => (float[N, 3, 5] y) {{
        h = Conv(x, w)
        n = {NORM.format("h")}
        y = Add(h, n)
    }}"""
    model = parse(graph, w=noise(3, 3, 1), **statistics(3))
    rewrite(model, FoldBatchNorm(), x=noise(2, 3, 5))
    assert operators(model) == ["Conv", "Conv", "Add"]


def test_a_shared_weight_stays_shared() -> None:
    graph = f"""g (float[N, 3, 5] x) => (float[N, 3, 5] y) {{
        a = Conv(x, w)
        b = {NORM.format("a")}
        y = Conv(b, w)
    }}"""
    model = parse(graph, w=noise(3, 3, 1), **statistics(3))
    rewrite(model, FoldBatchNorm(), x=noise(2, 3, 5))
    assert operators(model) == ["Conv", "Conv", "Conv"]
    assert model.graph[0].inputs[1] is model.graph[2].inputs[1]


@pytest.mark.parametrize("after", ["y = Gemm(h, w)", "y = Relu(h)"])
def test_features_are_multiplied_and_added_to(after: str) -> None:
    graph = f"g (float[N, 3] x) => (float[N, 3] y) {{ h = {NORM.format('x')} {after} }}"
    model = parse(graph, w=noise(3, 3), **statistics(3))
    notes = rewrite(model, FoldBatchNorm(), x=noise(4, 3))
    assert operators(model)[:2] == ["Mul", "Add"]
    assert notes[0].message == "no layer to fold into: now Mul and Add"


def test_training_mode_stays_with_a_reason() -> None:
    training = parse(
        "g (float[N, 3, 5] x) => (float[N, 3, 5] y) {"
        " y, m, v = BatchNormalization <training_mode = 1> (x, scale, shift, mean, variance) }",
        **statistics(3),
    )
    assert "training" in FoldBatchNorm().apply(Probed(training)).notes[0].message
