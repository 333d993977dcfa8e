import numpy as np
import pytest
from rewriting import noise, operators, parse, rewrite

from ptqc.passes.graph_tools import constant
from ptqc.passes.pad_channels import MAX_WEIGHTS, PadChannels


@pytest.mark.parametrize(("before", "after"), [(2, 2), (0, 3), (1, 0)])
@pytest.mark.parametrize("spatial", [1, 2])
def test_channels_are_copied_exactly(before: int, after: int, spatial: int) -> None:
    shape, out = ", ".join("56"[:spatial]), ", ".join("HW"[:spatial])
    pads = [0, before, *[0] * spatial, 0, after, *[0] * spatial]
    model = parse(f"g (float[N, 3, {shape}] x) => (float[N, C, {out}] y) {{ y = Pad(x, pads) }}", pads=np.array(pads))
    rewrite(model, PadChannels(), x=noise(2, 3, *[5, 6][:spatial]))
    assert operators(model) == ["Conv"]
    weight = constant(model.graph[0].inputs[1])
    assert weight is not None
    assert weight.sum() == 3


def test_other_axes_are_not_touched() -> None:
    model = parse("g (float[N, 3, 5] x) => (float[N, C, W] y) { y = Pad(x, pads) }", pads=np.array([0, 1, 1, 0, 0, 0]))
    assert rewrite(model, PadChannels(), x=noise(2, 3, 5)) == []


def test_very_wide_ones_stay_with_a_reason() -> None:
    model = parse(
        "g (float[N, 3, 5] x) => (float[N, C, 5] y) { y = Pad(x, pads) }", pads=np.array([0, MAX_WEIGHTS, 0, 0, 0, 0])
    )
    notes = rewrite(model, PadChannels(), x=noise(1, 3, 5))
    assert notes[0].level == "skipped"
