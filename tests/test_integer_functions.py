"""Integer softmax, averages and functions against ONNX Runtime's kernels, code by code."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import RNG, Graph, codes_like, near_halves, params, x86

from ptqc.execution.onnxruntime import softmax_in_float64
from ptqc.formats import UINT8, QuantParams
from ptqc.ir import integer_arithmetic as integer

pytestmark = pytest.mark.processor


@x86
def test_means_near_halves() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [2, 3, 5])
        data = codes_like(rng, 1, 400, 2, int(rng.integers(1, 8)))
        graph = Graph()
        result, _ = graph.run(graph.codes(graph.add("GlobalAveragePool", [graph.real(graph.input(data), x)]), y))
        np.testing.assert_array_equal(integer.global_average_pool(data, x, y), result)


@x86
@settings(deadline=None, max_examples=100)
@given(
    shape=st.lists(st.integers(1, 24), min_size=2, max_size=4),
    x=params(),
    step=st.floats(1e-4, 0.1),
    zero=st.integers(0, 255),
    lowest=st.integers(0, 250),
    rng=RNG,
)
def test_softmax(
    shape: list[int], x: QuantParams, step: float, zero: int, lowest: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(step)), zero)
    axis = int(rng.integers(1, len(shape)))
    data = rng.integers(lowest, 256, shape).astype(np.uint8)
    graph = Graph()
    result, operators = graph.run(graph.codes(graph.add("Softmax", [graph.real(graph.input(data), x)], axis=axis), y))
    assert "QLinearSoftmax" in operators
    computed = integer.softmax(data, x, y, axis, in_float64=softmax_in_float64())
    np.testing.assert_array_equal(computed, result)


@x86
@settings(deadline=None, max_examples=100)
@given(
    shape=st.lists(st.integers(1, 12), min_size=3, max_size=4),
    x=params(),
    ratio=st.floats(0.05, 20),
    zero=st.integers(0, 255),
    rng=RNG,
)
def test_global_average_pool(
    shape: list[int], x: QuantParams, ratio: float, zero: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data = codes_like(rng, *shape)
    graph = Graph()
    pooled = graph.add("GlobalAveragePool", [graph.real(graph.input(data), x)])
    result, operators = graph.run(graph.codes(pooled, y))
    assert "QLinearGlobalAveragePool" in operators
    assert "GlobalAveragePool" not in operators
    np.testing.assert_array_equal(integer.global_average_pool(data, x, y), result)


@st.composite
def pools(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Shape of the input, and attributes, of an average pool over one to three axes."""
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    pads = [draw(st.integers(0, k - 1)) for _ in range(2) for k in kernel]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    sizes = [max(1, k - pads[i] - pads[i + rank]) + draw(st.integers(0, 6)) for i, k in enumerate(kernel)]
    flags = {name: draw(st.integers(0, 1)) for name in ("ceil_mode", "count_include_pad")}
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 9)), *sizes)
    return shape, {"kernel_shape": kernel, "pads": pads, "strides": strides, **flags}


@settings(deadline=None, max_examples=120)
@given(pool=pools(), x=params(), ratio=st.floats(0.05, 20), zero=st.integers(0, 255), rng=RNG)
def test_average_pool(
    pool: tuple[tuple[int, ...], dict[str, Any]],
    x: QuantParams,
    ratio: float,
    zero: int,
    rng: np.random.Generator,
) -> None:
    shape, attributes = pool
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data = codes_like(rng, *shape)
    graph = Graph()
    pooled = graph.add("AveragePool", [graph.real(graph.input(data), x)], **attributes)
    result, operators = graph.run(graph.codes(pooled, y))
    assert "QLinearAveragePool" in operators
    assert "AveragePool" not in operators
    computed = integer.average_pool(
        data,
        x,
        y,
        kernel=attributes["kernel_shape"],
        strides=attributes["strides"],
        pads=attributes["pads"],
        ceil=bool(attributes["ceil_mode"]),
        counts_pads=bool(attributes["count_include_pad"]),
    )
    np.testing.assert_array_equal(computed, result)


def test_average_pools_near_halves() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x, _, y = near_halves(rng, [2, 3, 5])
        data, kernel = codes_like(rng, 1, 8, 12, 12), [int(k) for k in rng.integers(1, 5, 2)]
        graph = Graph()
        pooled = graph.add("AveragePool", [graph.real(graph.input(data), x)], kernel_shape=kernel)
        result, _ = graph.run(graph.codes(pooled, y))
        none = [0, 0, 0, 0]
        computed = integer.average_pool(
            data, x, y, kernel=kernel, strides=[1, 1], pads=none, ceil=False, counts_pads=False
        )
        np.testing.assert_array_equal(computed, result)


@settings(deadline=None, max_examples=60)
@given(
    window=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    stride=st.integers(1, 2),
    x=params(),
    ratio=st.sampled_from([0.5, 2.0, 4.0, 8.0]),
    zero=st.integers(0, 255),
    rng=RNG,
)
def test_average_pool_of_one_window(
    window: list[int], stride: int, x: QuantParams, ratio: float, zero: int, rng: np.random.Generator
) -> None:
    y = QuantParams(UINT8, float(np.float32(x.scale * ratio)), zero)
    data, strides, none = codes_like(rng, 1, 8, *window), [stride] * len(window), [0, 0] * len(window)
    graph = Graph()
    real = graph.real(graph.input(data), x)
    result, _ = graph.run(graph.codes(graph.add("AveragePool", [real], kernel_shape=window, strides=strides), y))
    computed = integer.average_pool(
        data, x, y, kernel=window, strides=strides, pads=none, ceil=False, counts_pads=False
    )
    np.testing.assert_array_equal(computed, result)


# Functions of one tensor

EVERY_CODE = np.arange(256, dtype=np.uint8).reshape(1, 256)


@settings(deadline=None, max_examples=100)
@given(x=params(), y=params(), alpha=st.floats(-2, 2, width=32))
def test_leaky_relu(x: QuantParams, y: QuantParams, alpha: float) -> None:
    graph = Graph()
    result, operators = graph.run(
        graph.codes(graph.add("LeakyRelu", [graph.real(graph.input(EVERY_CODE), x)], alpha=alpha), y)
    )
    assert operators == {"QLinearLeakyRelu"}
    np.testing.assert_array_equal(integer.leaky_relu(EVERY_CODE, x, y, alpha), result)


@settings(deadline=None, max_examples=100)
@given(x=params(), step=st.floats(1e-4, 0.1), zero=st.integers(0, 255))
def test_sigmoid(x: QuantParams, step: float, zero: int) -> None:
    y = QuantParams(UINT8, float(np.float32(step)), zero)
    graph = Graph()
    result, operators = graph.run(graph.codes(graph.add("Sigmoid", [graph.real(graph.input(EVERY_CODE), x)]), y))
    assert operators == {"QLinearSigmoid"}
    low, high = integer.sigmoid(EVERY_CODE, x, y)
    assert (low <= result).all()
    assert (result <= high).all()
    # At most 16 results may be open, else nothing would be held to anything. Codes that saturate share one result.
    assert np.unique(np.stack([low, high])[:, low != high], axis=1).shape[1] <= 16


def test_the_error_of_a_sigmoid() -> None:
    x = np.linspace(-30, 30, 2**20, dtype=np.float32)
    graph = Graph()
    result, _ = graph.run(graph.add("Sigmoid", [graph.input(x)]))
    assert np.abs(result - 1 / (1 + np.exp(-x.astype(np.float64)))).max() < integer.SIGMOID_ERROR / 2
