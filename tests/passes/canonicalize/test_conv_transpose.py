import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.conv_transpose import ConvTransposeToConv


@settings(max_examples=12, deadline=None)
@given(groups=st.integers(1, 2), outputs=st.integers(1, 3), block=st.integers(2, 3), biased=st.booleans())
def test_kernel_equal_to_stride_becomes_depth_to_space(groups: int, outputs: int, block: int, biased: bool) -> None:
    layer = f"ConvTranspose <group = {groups}, strides = [{block}, {block}]> (x, w{', b' if biased else ''})"
    model = parse(
        f"g (float[N, 4, 3, 5] x) => (float[N, C, H, W] y) {{ y = {layer} }}",
        w=noise(4, outputs, block, block),
        b=noise(groups * outputs),
    )
    rewrite(model, ConvTransposeToConv(), x=noise(2, 4, 3, 5))
    assert operators(model) == ["Conv", "DepthToSpace"]


@settings(max_examples=15, deadline=None)
@given(
    groups=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    dilation=st.integers(1, 2),
)
def test_stride_one_becomes_a_convolution(groups: int, kernel: tuple[int, int], pads: list[int], dilation: int) -> None:
    layer = f"ConvTranspose <group = {groups}, pads = {pads}, dilations = [{dilation}, {dilation}]> (x, w, b)"
    model = parse(
        f"g (float[N, 4, 6, 7] x) => (float[N, C, H, W] y) {{ y = {layer} }}",
        w=noise(4, 3, *kernel),
        b=noise(groups * 3),
    )
    rewrite(model, ConvTransposeToConv(), x=noise(2, 4, 6, 7))
    exact = all(pad <= dilation * (kernel[index % 2] - 1) for index, pad in enumerate(pads))
    assert operators(model) == (["Conv"] if exact else ["ConvTranspose"])


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ("strides = [2, 2]", 3),
        ("strides = [2, 2], pads = [1, 1, 1, 1]", 2),
        ("strides = [2, 2], output_padding = [1, 1]", 2),
        ("output_shape = [6, 6]", 3),
    ],
)
def test_others_stay_with_a_reason(attributes: str, kernel: int) -> None:
    graph = f"g (float[N, 4, 5, 5] x) => (float[N, C, H, W] y) {{ y = ConvTranspose <{attributes}> (x, w) }}"
    model = parse(graph, w=noise(4, 2, kernel, kernel))
    notes = rewrite(model, ConvTransposeToConv(), x=noise(1, 4, 5, 5))
    assert operators(model) == ["ConvTranspose"]
    assert notes[0].level == "skipped"
