"""The pictures of channels show what each rewrite did to them, and each rewrite keeps the function."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from channel_plot import ABOVE, HEIGHT, LEFT, NARROW, WIDE, WIDTH, Axis, Bars, draw
from channel_ranges import Version, change, pictures, tensors, uneven, versions
from even_channels import decoder

from ptqc.passes.quantize.prepare import CanonicalModel

TITLES = ["as they are", "reordered", "split", "scaled", "rotated"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[CanonicalModel, dict[str, Version]]:
    value = decoder(True, tmp_path_factory.mktemp("decoder"), count=8, length=16)
    return value, {version.title: version for version in versions(value)}


@pytest.mark.slow
def test_every_rewrite_keeps_the_function_and_does_its_part(network: tuple[CanonicalModel, dict[str, Version]]) -> None:
    value, result = network
    assert list(result) == TITLES
    assert [title for title in TITLES[1:] if not 0 < change(result[title], value, value.held_back) < 1e-5] == []
    names = tensors(value.model)
    bars = {
        title: {name: version.bars(names[name], value.tuning) for name in names} for title, version in result.items()
    }
    for name in ("norm", "hidden"):
        assert uneven(bars["as they are"][name]) > 15
        assert uneven(bars["split"][name]) < 4
        assert uneven(bars["scaled"][name]) < 4
        reach, sorted_reach = bars["as they are"][name].reach, bars["reordered"][name].reach
        np.testing.assert_allclose(np.sort(sorted_reach), np.sort(reach), rtol=1e-4)
    assert (np.diff(bars["reordered"]["hidden"].reach) < 1e-4).all()
    assert uneven(bars["rotated"]["norm"]) < 4
    assert uneven(bars["rotated"]["hidden"]) > 15  # no rotation passes the product with a gate


@pytest.mark.slow
def test_there_is_a_picture_of_each_tensor(network: tuple[CanonicalModel, dict[str, Version]], tmp_path: Path) -> None:
    value, result = network
    shown = ["as they are", "split"]
    pictures(value, [result[title] for title in shown], tmp_path / "pictures")
    files = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in files] == ["channels_hidden.svg", "channels_norm.svg"]
    for path in files:
        drawn = [element.text for element in ElementTree.parse(path).iter()]
        assert [text for text in drawn if text in TITLES] == shown


def test_bars_end_at_what_the_channels_reach() -> None:
    panel = Bars("net", np.array([1.0, 100.0, 0.0, 10.0]), np.array([False, True, False, False]))
    axis = Axis.of([panel])
    assert (axis.low, axis.high) == (-2, 2)  # a step of 20 / 255
    paths = dict(re.findall(r'<path d="([^"]*)" fill="([^"]*)"', draw([panel], "of a test")))
    by_color = {color: path for path, color in paths.items()}
    foot, quarter = ABOVE + HEIGHT, WIDTH / 4
    assert by_color[WIDE] == f"M{LEFT + quarter:.2f} {foot}V{ABOVE:.1f}H{LEFT + 2 * quarter:.2f}V{foot}"
    assert by_color[NARROW] == (
        f"M{LEFT:.2f} {foot}V{ABOVE + HEIGHT / 2:.1f}H{LEFT + quarter:.2f}V{foot}"
        f"M{LEFT + 2 * quarter:.2f} {foot}V{foot:.1f}H{LEFT + 3 * quarter:.2f}"
        f"V{ABOVE + HEIGHT / 4:.1f}H{LEFT + WIDTH:.2f}V{foot}"
    )
