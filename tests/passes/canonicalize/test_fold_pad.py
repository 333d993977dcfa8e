import numpy as np
import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.fold_pad import FoldPad

sides = st.lists(st.integers(0, 2), min_size=4, max_size=4)


def on_all_axes(pads: list[int]) -> np.ndarray:
    return np.array([0, 0, *pads[:2], 0, 0, *pads[2:]])


@settings(max_examples=60, deadline=None)
@given(padded=sides, own=sides, groups=st.integers(1, 2), stride=st.integers(1, 3), as_axes=st.booleans())
def test_folds_into_convolutions(padded: list[int], own: list[int], groups: int, stride: int, as_axes: bool) -> None:
    graph = f"""g (float[N, 4, 6, 7] x) => (float[N, 2, H, W] y) {{
        p = Pad(x, pads{", , axes" if as_axes else ""})
        y = Conv <group = {groups}, pads = {own}, strides = [{stride}, {stride}]> (p, w)
    }}"""
    pads = np.array(padded) if as_axes else on_all_axes(padded)
    model = parse(graph, pads=pads, axes=np.array([-2, 3]), w=noise(2, 4 // groups, 3, 2))
    rewrite(model, FoldPad(), x=noise(2, 4, 6, 7))
    assert operators(model) == ["Conv"]


@settings(max_examples=40, deadline=None)
@given(padded=sides, counted=st.integers(0, 1), own=st.integers(0, 1), ceil=st.integers(0, 1))
def test_average_pool_only_where_exact(padded: list[int], counted: int, own: int, ceil: int) -> None:
    graph = f"""g (float[N, 2, 6, 7] x) => (float[N, 2, H, W] y) {{
        p = Pad(x, pads)
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [{own}, 0, 0, {own}],
                         count_include_pad = {counted}, ceil_mode = {ceil}> (p)
    }}"""
    rewrite(parse(graph, pads=on_all_axes(padded)), FoldPad(), x=noise(2, 2, 6, 7))


@pytest.mark.parametrize(
    ("before", "expected"),
    [("Relu(x)", ["Relu", "MaxPool"]), ("Clip(x, zero)", ["Clip", "MaxPool"]), ("Neg(x)", ["Neg", "Pad", "MaxPool"])],
)
def test_max_pool_only_behind_values_of_at_least_zero(before: str, expected: list[str]) -> None:
    graph = f"""g (float[N, 2, 6, 7] x) => (float[N, 2, H, W] y) {{
        r = {before}
        p = Pad(r, pads)
        y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)
    }}"""
    model = parse(graph, pads=on_all_axes([1, 0, 2, 1]), zero=np.array(0, np.float32))
    rewrite(model, FoldPad(), x=noise(2, 2, 6, 7))
    assert operators(model) == expected


@pytest.mark.parametrize(
    ("pad", "reason"),
    [
        ('Pad <mode = "reflect"> (x, pads)', "reflect"),
        ("Pad(x, pads, one)", "another value"),
        ("Pad(x, crop)", "crops"),
        ("Pad(x, channels)", "channels"),
        ("Pad(x, q)", "not constant"),
    ],
)
def test_other_pads_stay_with_a_reason(pad: str, reason: str) -> None:
    graph = f"g (float[N, 1, 6, 7] x, int64[8] q) => (float[N, 2, H, W] y) {{ p = {pad}  y = Conv(p, w) }}"
    wide = 2 if reason == "channels" else 1
    model = parse(
        graph,
        pads=on_all_axes([1, 1, 1, 1]),
        crop=on_all_axes([-1, 0, 0, 0]),
        channels=np.array([0, 1, 0, 0, 0, 0, 0, 0]),
        one=np.array(1, np.float32),
        w=noise(2, wide, 3, 3),
    )
    notes = rewrite(model, FoldPad(), x=noise(2, 1, 6, 7), q=on_all_axes([0, 1, 0, 0]))
    assert reason in notes[0].message


def test_each_user_is_judged_alone() -> None:
    graph = """g (float[N, 1, 6, 7] x) => (float[N, 2, H, W] y, float[N, 1, I, J] z) {
        p = Pad(x, pads)
        y = Conv(p, w)
        z = Neg(p)
    }"""
    model = parse(graph, pads=on_all_axes([1, 0, 0, 0]), w=noise(2, 1, 3, 3))
    notes = rewrite(model, FoldPad(), x=noise(2, 1, 6, 7))
    assert sorted(note.level for note in notes) == ["info", "skipped"]
    assert "Pad" in operators(model)
