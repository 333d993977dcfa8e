import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.global_pool import GlobalPool


@pytest.mark.parametrize(("keep", "expected"), [(1, ["GlobalAveragePool"]), (0, ["GlobalAveragePool", "Flatten"])])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_mean_over_positions(keep: int, expected: list[str], axes: list[int]) -> None:
    out = "float[N, 3, 1, 1]" if keep else "float[N, 3]"
    graph = f"g (float[N, 3, H, W] x) => ({out} y) {{ y = ReduceMean <keepdims = {keep}> (x, axes) }}"
    model = parse(graph, axes=np.array(axes))
    rewrite(model, GlobalPool(), x=noise(2, 3, 4, 5))
    assert operators(model) == expected


@pytest.mark.parametrize("axes", [[1], [1, 2, 3], [3], [0, 2]])
def test_other_means_stay(axes: list[int]) -> None:
    model = parse("g (float[N, 3, 4, 5] x) => (float[A, B, C, D] y) { y = ReduceMean(x, axes) }", axes=np.array(axes))
    assert rewrite(model, GlobalPool(), x=noise(2, 3, 4, 5)) == []


def test_three_axes_only_behind_a_convolution() -> None:
    mean = "y = ReduceMean(h, axes) }"
    axes = np.array([2])
    features = parse(f"g (float[N, T, 3] x) => (float[N, T, 1] y) {{ h = Relu(x) {mean}", axes=axes)
    assert rewrite(features, GlobalPool(), x=noise(2, 4, 3)) == []
    signal = parse(
        f"g (float[N, 2, T] x) => (float[N, 3, 1] y) {{ c = Conv(x, w) h = Relu(c) {mean}", axes=axes, w=noise(3, 2, 3)
    )
    rewrite(signal, GlobalPool(), x=noise(2, 2, 6))
    assert operators(signal) == ["Conv", "Relu", "GlobalAveragePool"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("kernel_shape = [4, 5]", "GlobalAveragePool"),
        ("kernel_shape = [4, 5], strides = [4, 5]", "GlobalAveragePool"),
        ("kernel_shape = [4, 4]", "AveragePool"),
        ("kernel_shape = [4, 5], pads = [1, 1, 1, 1]", "AveragePool"),
    ],
)
def test_average_pool_over_the_whole_input(attributes: str, expected: str) -> None:
    model = parse(f"g (float[N, 3, 4, 5] x) => (float[N, 3, H, W] y) {{ y = AveragePool <{attributes}> (x) }}")
    rewrite(model, GlobalPool(), x=noise(2, 3, 4, 5))
    assert operators(model) == [expected]
